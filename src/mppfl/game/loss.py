"""LossOperator: B = I + αΣ, which turns budgets into privacy losses, and its inverse.

This is the one place where the game touches the network's size: small networks are factorised, large ones solved by
Krylov steps, which are written once for NumPy and for the vectors of a device (device.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NotConverged
from mppfl.network import EXACT_BELOW, Propagation, times

DENSE_BELOW = EXACT_BELOW  # clients; an LU factorisation then costs less than a handful of Krylov steps
KRYLOV_BASIS = 14  # vectors kept between restarts: 14 pairs are 22 % of a million-client network's memory
GMRES_CYCLES = 8
BLOCK = 256  # entries of a vector at a time: BLAS then starts no threads, which wait for each other on busy cores
TOLERANCE = 1e-11  # of the largest entry

Weights = Callable[[Any, float], tuple[Any, bool]]  # projected matrix, length of the start -> weights, whether enough


@dataclass(frozen=True, eq=False)
class LossOperator:
    """B = I + αΣ (model, eq. 5): `loss @ budgets` is everybody's privacy loss, `loss.solve` goes back."""

    propagation: Propagation
    externality_strength: float

    library: ClassVar[Any] = np  # of the vectors that Krylov steps compute with
    tolerance: ClassVar[float] = TOLERANCE
    step_error: ClassVar[float] = 1e-6  # a step is corrected by the next: single precision will do, at half the memory

    @property
    def num_clients(self) -> int:
        return self.propagation.num_clients

    @property
    def is_dense(self) -> bool:
        return self.num_clients <= DENSE_BELOW

    @cached_property
    def dense(self) -> Array:
        """B as an N×N array; for small networks."""
        if self.externality_strength == 0:
            return np.eye(self.num_clients)
        return np.eye(self.num_clients) + self.externality_strength * self.propagation.to_dense()

    @cached_property
    def _factors(self) -> Any:
        """B's LU factors, or None where B is singular (possible only when αS is 1 or more)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
            factors = scipy.linalg.lu_factor(self.dense)
        pivots = np.abs(np.diag(factors[0]))
        return factors if pivots.min() > 1e-13 * pivots.max() else None

    @cached_property
    def T(self) -> LossOperator:  # noqa: N802  (the name numpy and scipy use)
        turned = LossOperator(self.propagation.T, self.externality_strength)
        turned.__dict__["T"] = self
        if self.is_dense:
            turned.__dict__["dense"] = self.dense.T
        return turned

    def __matmul__(self, budgets: Array) -> Array:
        if self.is_dense:
            return np.asarray(self.dense @ budgets)
        return self._given_back(self._times(self._taken(budgets)))

    def solve(
        self,
        right: Array,
        free: BoolArray | None = None,
        start: Array | None = None,
        tolerance: float | None = None,
    ) -> Array:
        """x with (B x)_i = right_i on the free clients and x_i = 0 elsewhere; one column or two.

        The residual is at most `tolerance` of the largest entry of `right`. Raises NotConverged otherwise. Where B is
        singular (αS is then 1 or more) the least-squares answer is returned, which may solve nothing: check it.
        """
        if self.is_dense:
            return self._solve_dense(right, free)
        # Two right-hand sides travel as the real and the imaginary part of one: each step reads the network once.
        mask = None if free is None else self._taken(free.astype(np.float64))
        goal = _restricted(self._vector(self._taken(right)), mask)
        allowed = (self.tolerance if tolerance is None else tolerance) * self._largest(goal)
        if allowed == 0.0:
            return np.zeros_like(right)
        x = 0 * goal if start is None else _restricted(self._vector(self._taken(start)), mask)
        residual = goal if start is None else goal - self._image(x, mask)
        worst, before, fast = self._largest(residual), np.inf, free is None
        for _ in range(30):
            if worst <= allowed or (worst > 0.3 * before and not fast):
                break  # solved; or rounding, or a system too hard, stands in the way
            fast = fast and worst <= 0.3 * before
            step = (
                self._step_in_walks(residual, allowed / worst)
                if fast
                else self._step_in_losses(residual, allowed, mask)
            )
            x = x + step
            residual = goal - self._image(x, mask)
            before, worst = worst, self._largest(residual)
        answer = self._given_back(self._columns(x))
        if not worst <= 1e3 * allowed:
            raise NotConverged(
                f"the network's equations were solved only to {worst:.2g} (wanted {allowed:.2g}); "
                "lower externality_strength or max_hops.",
                answer,
                worst,
            )
        return answer

    def _solve_dense(self, right: Array, free: BoolArray | None) -> Array:
        if free is None or free.all():
            if self._factors is None:  # any solution will do, the shortest is as good as another
                return np.asarray(np.linalg.lstsq(self.dense, right)[0])
            return np.asarray(scipy.linalg.lu_solve(self._factors, right))
        x = np.zeros_like(right)
        if free.any():
            part = self.dense[np.ix_(free, free)]
            try:
                x[free] = np.linalg.solve(part, right[free])
            except np.linalg.LinAlgError:
                x[free] = np.linalg.lstsq(part, right[free])[0]
        return x

    # ---- vectors, which a device has elsewhere

    @property
    def spread(self) -> Any:
        return self.propagation

    @property
    def _home(self) -> Any:
        return self.propagation.home.values

    def _taken(self, values: Array) -> Any:
        return values

    def _given_back(self, values: Any) -> Array:
        return np.asarray(values)

    def _light(self, vector: Any) -> Any:
        return vector.astype(np.complex64 if np.iscomplexobj(vector) else np.float32)

    def _hop(self, columns: Any) -> Any:
        """W x for a light x."""
        return times(self.propagation.light_influence, columns)

    def _vector(self, columns: Any) -> Any:
        """Two real columns as one complex vector, without copying; one column as it is."""
        if columns.ndim == 1:
            return columns
        return np.ascontiguousarray(columns).view(np.result_type(columns, 1j)).ravel()

    def _columns(self, vector: Any) -> Any:
        return vector.view(vector.real.dtype).reshape(-1, 2) if np.iscomplexobj(vector) else vector

    # ---- Krylov steps

    def _times(self, x: Any) -> Any:
        if self.externality_strength == 0:
            return 1.0 * x
        losses = self.spread @ x
        losses *= self.externality_strength
        losses += x
        return losses

    def _image(self, x: Any, mask: Any) -> Any:
        """B x on the free clients; x is zero on the others."""
        return _restricted(self._vector(self._times(self._columns(x))), mask)

    def _largest(self, vector: Any) -> float:
        return float(abs(self._columns(vector)).max())

    def _step_in_losses(self, residual: Any, allowed: float, mask: Any) -> Any:
        """A correction by GMRES on B itself: K products with W a step, converges whatever the diagonal."""
        # The bound is on the largest entry; a residual spread over all clients has √N times that as its 2-norm.
        enough = 0.1 * allowed * self.num_clients**0.5

        def least(hessenberg: Any, length: float) -> tuple[Any, bool]:
            goal = length * np.eye(1, len(hessenberg), dtype=hessenberg.dtype)[0]
            weights = np.linalg.lstsq(hessenberg, goal)[0]
            return weights, bool(np.linalg.norm(hessenberg @ weights - goal) <= enough)

        step, left = 0 * residual, residual
        for _ in range(GMRES_CYCLES):
            step = step + self._from_krylov(lambda x: self._image(x, mask), left, least, 1e-14)
            left = residual - self._image(step, mask)
            if self._length(left) <= enough:
                break
        return step

    def _step_in_walks(self, residual: Any, wanted_ratio: float) -> Any:
        """A correction from Krylov vectors of W, one product each: B is all but a polynomial in W.

        B = (I − αD)(I + αG(W + λW² + ...)) with D the diagonal taken out of Σ and G = (I − αD)⁻¹. Writing GW for every
        W makes the second factor f(GW)⁻¹ and errs by α²D only; f(GW)Gr is read off an Arnoldi basis.
        """
        strength, spread = self.externality_strength, self.spread
        inverse = self._light(1 / (1 - strength * self._home))
        floor = strength**2 * float(abs(self._home).max()) * spread.geometric_sum
        goal, before = max(0.1 * wanted_ratio, 0.5 * floor, self.step_error), np.zeros(0)

        def of_polynomial(hessenberg: Any, length: float) -> tuple[Any, bool]:
            nonlocal before
            weights = answer_of_polynomial(hessenberg[:-1], strength, spread.hop_decay, spread.max_hops, length)
            moved = np.linalg.norm(weights - np.concatenate([before, [0.0]])) if len(weights) > 1 else np.inf
            before = weights
            return weights, bool(moved <= goal * np.linalg.norm(weights))

        def hop(x: Any) -> Any:
            return self._vector(self._hop(self._columns(x))) * inverse

        length = self._length(residual)
        start = self._light(residual / length) * inverse
        return length * self._from_krylov(hop, start, of_polynomial, self.step_error)

    def _from_krylov(self, apply: Callable[[Any], Any], start: Any, weights_of: Weights, rounding: float) -> Any:
        """Σ weights_k q_k over an Arnoldi basis q of `start` under `apply`, as soon as the weights are enough.

        The basis stays where the vectors are; its projected matrix, at most KRYLOV_BASIS wide, is on the host.
        """
        library, kind = self.library, {"dtype": start.dtype, "device": start.device}
        length = self._length(start)
        if length == 0.0:
            return start
        basis = library.empty((KRYLOV_BASIS, len(start)), **kind)
        basis[0] = start / length
        is_pair = self._columns(start) is not start
        hessenberg = np.zeros((KRYLOV_BASIS + 1, KRYLOV_BASIS), dtype=complex if is_pair else float)
        for m in range(1, KRYLOV_BASIS + 1):
            following = apply(basis[m - 1])
            shares = self._inner(basis[:m], following)
            following -= self._combined(shares, basis[:m])
            left = self._length(following)
            hessenberg[:m, m - 1], hessenberg[m, m - 1] = shares.tolist(), left
            weights, enough = weights_of(hessenberg[: m + 1, :m], length)
            if enough or m == KRYLOV_BASIS or left <= rounding * np.linalg.norm(hessenberg[: m + 1, m - 1]):
                break
            basis[m] = following / left
        return self._combined(library.asarray(weights.tolist(), **kind), basis[:m])

    def _length(self, vector: Any) -> float:
        columns = self._columns(vector)
        return float((columns * columns).sum() ** 0.5)

    def _inner(self, vectors: Any, vector: Any) -> Any:
        """The inner product of each row of `vectors` with one vector."""
        blocks, whole = self._blocks(vectors)
        turned = vector.conj()
        products = vectors[:, whole:] @ turned[whole:]
        if whole:
            products += (blocks @ turned[:whole].reshape(-1, BLOCK, 1)).sum(axis=0)[:, 0]
        return products.conj()

    def _combined(self, shares: Any, vectors: Any) -> Any:
        """The sum of the rows of `vectors`, weighted by `shares`."""
        blocks, whole = self._blocks(vectors)
        total = shares @ vectors[:, whole:]
        return self.library.concatenate([(shares @ blocks).reshape(-1), total]) if whole else total

    def _blocks(self, vectors: Any) -> tuple[Any, int]:
        """Whole blocks of all rows, [blocks, rows, BLOCK], without copying; and where they end. A device needs none."""
        whole = vectors.shape[1] // BLOCK * BLOCK if self.library is np else 0
        return vectors[:, :whole].reshape(len(vectors), -1, BLOCK).swapaxes(0, 1), whole


def _restricted(vector: Any, mask: Any) -> Any:
    return vector if mask is None else vector * mask


def answer_of_polynomial(hessenberg: Any, strength: float, decay: float, max_hops: int, length: float) -> Any:
    """(I + α(H + λH² + ... + λ^(K-1)H^K))⁻¹ e₁·length for a small matrix H; 0 where there is none."""
    unit = np.eye(len(hessenberg), dtype=hessenberg.dtype)
    total = hessenberg
    for _ in range(max_hops - 1):
        total = hessenberg @ (unit + decay * total)
    try:
        return np.linalg.solve(unit + strength * total, length * unit[0])
    except np.linalg.LinAlgError:  # one more vector, or GMRES, may do
        return 0 * unit[0]
