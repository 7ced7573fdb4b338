"""LossOperator: B = I + αΣ, which turns budgets into privacy losses, and its inverse.

This is the one place where the game touches the network's size: small networks are factorised, large ones solved by
Krylov steps. Anything with the same four methods can stand in its place.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, gmres

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NotConverged
from mppfl.network import EXACT_BELOW, Propagation, times

DENSE_BELOW = EXACT_BELOW  # clients; an LU factorisation then costs less than a handful of Krylov steps
KRYLOV_BASIS = 14  # vectors kept between restarts: 14 pairs are 22 % of a million-client network's memory
TOLERANCE = 1e-11  # of the largest entry


@dataclass(frozen=True, eq=False)
class LossOperator:
    """B = I + αΣ (model, eq. 5): `loss @ budgets` is everybody's privacy loss, `loss.solve` goes back."""

    propagation: Propagation
    externality_strength: float

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
    def has_one_answer(self) -> bool:
        """Whether clients' equilibrium is surely unique at any prices and bounds: αΣ's rows sum to less than 1, or B's
        symmetric part is positive definite (asked only of small networks).
        """
        if self.externality_strength * float(self.propagation.row_sums.max()) < 1:
            return True
        if not self.is_dense:
            return False
        try:
            np.linalg.cholesky(self.dense + self.dense.T - 1e-6 * np.eye(self.num_clients))
        except np.linalg.LinAlgError:
            return False
        return True

    def weighed_both_ways(self, weights: Array) -> tuple[Array, bool]:
        """AB + BᵀA with A = diag(weights), and whether it is positive definite; kept for the weights last asked for."""
        last = self.__dict__.get("_weighed")
        if last is None or not np.array_equal(last[0], weights):
            scaled = weights[:, None] * self.dense
            matrix = scaled + scaled.T
            try:
                np.linalg.cholesky(matrix - 1e-9 * np.diag(np.diag(matrix)))
                last = (weights, matrix, True)
            except np.linalg.LinAlgError:
                last = (weights, matrix, False)
            self.__dict__["_weighed"] = last
        return last[1], last[2]

    @cached_property
    def T(self) -> LossOperator:  # noqa: N802  (the name numpy and scipy use)
        turned = LossOperator(self.propagation.T, self.externality_strength)
        turned.__dict__["T"] = self
        if self.is_dense:
            turned.__dict__["dense"] = self.dense.T
        return turned

    def __matmul__(self, budgets: Array) -> Array:
        if self.externality_strength == 0:
            return budgets.copy()
        if self.is_dense:
            return np.asarray(self.dense @ budgets)
        losses = self.propagation @ budgets
        losses *= self.externality_strength
        losses += budgets
        return losses

    def solve(
        self, right: Array, free: BoolArray | None = None, start: Array | None = None, tolerance: float = TOLERANCE
    ) -> Array:
        """x with (B x)_i = wanted_i on the free clients and x_i = 0 elsewhere; one column or two.

        The residual is at most `tolerance` of the largest entry of `wanted`. Raises NotConverged otherwise. Where B is
        singular (αS is then 1 or more) the least-squares answer is returned, which may solve nothing: check it.
        """
        if self.is_dense:
            return self._solve_dense(right, free)
        if right.ndim == 1:
            return np.asarray(self._solve_krylov(right, free, start, tolerance))
        # Two right-hand sides travel as the real and the imaginary part of one: each step reads the network once.
        pair = np.ascontiguousarray(right).view(np.complex128).ravel()
        first = None if start is None else np.ascontiguousarray(start).view(np.complex128).ravel()
        return _columns(self._solve_krylov(pair, free, first, tolerance))

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

    def _solve_krylov(self, right: Any, free: BoolArray | None, start: Any, tolerance: float) -> Any:
        goal = right if free is None else np.where(free, right, 0.0)
        allowed = tolerance * float(np.abs(goal).max(initial=0.0))
        if allowed == 0.0:
            return np.zeros_like(goal)
        x = np.zeros_like(goal) if start is None else start
        residual = goal.copy() if start is None else goal - self._product(x, free)
        worst, fast = np.inf, free is None
        for _ in range(30):
            before, worst = worst, float(np.abs(residual).max())
            if worst <= allowed:
                return x
            if worst > 0.3 * before:
                if not fast:
                    break  # rounding, or a system too hard, stands in the way
                fast = False
            step = (
                self._step_in_walks(residual, allowed / worst)
                if fast
                else self._step_in_losses(residual, allowed, free)
            )
            x = x + step
            residual = goal - self._product(x, free)
        worst = float(np.abs(residual).max())
        if worst > 1e3 * allowed:
            raise NotConverged(
                f"the network's equations were solved only to {worst:.2g} (wanted {allowed:.2g}); "
                "lower externality_strength or max_hops.",
                x,
                worst,
            )
        return x

    def _product(self, x: Any, free: BoolArray | None) -> Any:
        """B x on the free clients, for one column or a complex pair of columns."""
        if free is not None:
            x = np.where(free, x, 0.0)
        image = self @ x if x.dtype == np.float64 else (self @ _columns(x)).view(np.complex128).ravel()
        return image if free is None else np.where(free, image, 0.0)

    def _step_in_losses(self, residual: Any, allowed: float, free: BoolArray | None) -> Any:
        """A correction by GMRES on B itself: K products with W a step, converges whatever the diagonal."""
        shape = (self.num_clients, self.num_clients)
        operator = LinearOperator(shape, matvec=lambda x: self._product(x.ravel(), free), dtype=residual.dtype)
        # The bound is on the largest entry; a residual spread over all clients has √N times that as its 2-norm.
        atol = 0.1 * allowed * np.sqrt(self.num_clients)
        step, _ = gmres(operator, residual, rtol=0.0, atol=atol, restart=KRYLOV_BASIS, maxiter=8)
        return step

    def _step_in_walks(self, residual: Any, wanted_ratio: float) -> Any:
        """A correction from Krylov vectors of W, one product each: B is all but a polynomial in W.

        B = (I − αD)(I + αG(W + λW² + ...)) with D the diagonal taken out of Σ and G = (I − αD)⁻¹. Writing GW for every
        W makes the second factor f(GW)⁻¹ and errs by α²D only; f(GW)Gr is read off an Arnoldi basis. Since the step is
        corrected by the next, single precision will do, at half the memory.
        """
        strength, spread = self.externality_strength, self.propagation
        paired = residual.dtype == np.complex128
        kind, gemv = (np.complex64, scipy.linalg.blas.cgemv) if paired else (np.float32, scipy.linalg.blas.sgemv)
        inverse = (1 / (1 - strength * spread.home.values)).astype(np.float32)
        floor = strength**2 * float(np.abs(spread.home.values).max()) * spread.geometric_sum
        goal = max(0.1 * wanted_ratio, 0.5 * floor, 1e-6)
        length = float(np.linalg.norm(residual))
        basis = np.empty((KRYLOV_BASIS, self.num_clients), dtype=kind)
        np.divide(residual, length, out=basis[0], casting="unsafe")
        basis[0] *= inverse
        first = float(np.linalg.norm(basis[0]))
        basis[0] /= first
        hessenberg = np.zeros((KRYLOV_BASIS + 1, KRYLOV_BASIS), dtype=np.complex128 if paired else np.float64)
        weights = before = np.zeros(0, dtype=hessenberg.dtype)
        for m in range(1, KRYLOV_BASIS + 1):
            last = _columns(basis[m - 1]) if paired else basis[m - 1]
            image = times(spread.light_influence, last)
            following = image.view(kind).ravel() if paired else image
            following *= inverse
            columns = basis[:m].T  # Fortran order: BLAS reads it in place
            shares = gemv(1.0, columns, following, trans=2)
            following = gemv(-1.0, columns, shares, beta=1.0, y=following, overwrite_y=True)
            hessenberg[:m, m - 1] = shares
            hessenberg[m, m - 1] = norm = float(np.linalg.norm(following))
            weights = answer_of_polynomial(hessenberg[:m, :m], strength, spread.hop_decay, spread.max_hops, first)
            moved = np.linalg.norm(weights - np.concatenate([before, [0.0]])) if m > 1 else np.inf
            before = weights
            if moved <= goal * np.linalg.norm(weights) or norm <= 1e-6 or m == KRYLOV_BASIS:
                break
            np.divide(following, norm, out=basis[m])
        step = gemv(1.0, basis[: len(weights)].T, weights.astype(kind)).astype(residual.dtype)
        step *= length
        return step


def _columns(pair: Any) -> Array:
    """A complex vector as two real columns, without copying."""
    return np.asarray(pair.view(pair.real.dtype).reshape(-1, 2))


def answer_of_polynomial(hessenberg: Any, strength: float, decay: float, max_hops: int, length: float) -> Any:
    """(I + α(H + λH² + ... + λ^(K-1)H^K))⁻¹ e₁·length for a small matrix H."""
    size = len(hessenberg)
    total = hessenberg
    for _ in range(max_hops - 1):
        total = hessenberg @ (np.eye(size) + decay * total)
    unit = np.zeros(size, dtype=hessenberg.dtype)
    unit[0] = length
    return np.linalg.solve(np.eye(size) + strength * total, unit)
