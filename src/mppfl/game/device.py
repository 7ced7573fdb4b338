"""DeviceLoss, alone: torch is imported only where a device is asked for. B = I + αΣ and its inverse by PyTorch.

It stands where LossOperator stands, with NumPy's arrays in and out, so that what is above it need not know. The method
is that of loss.py, in double precision throughout: one product with W buys one Krylov vector, and where that stalls
GMRES on B goes on. Vectors stay on the device while equations are solved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array, BoolArray
from mppfl.device import DevicePropagation, find_device, matrix_bytes, propagation_on_device, require_room, to_device
from mppfl.errors import NotConverged
from mppfl.game.loss import KRYLOV_BASIS, LossOperator, answer_of_polynomial
from mppfl.game.model import Game

TOLERANCE = 1e-13  # of the largest entry: double precision has room for it, and a step costs little here
ENOUGH = 1e3 * TOLERANCE  # what is accepted where rounding stands in the way
GMRES_CYCLES = 8
PAIRS_AT_ONCE = 12  # pairs of vectors that a solution holds beside its Krylov basis
WORKING_BYTES = 2**30  # sums over clients, and what the sparse products ask for

Answer = Callable[[Any, float], tuple[Any, bool]]  # projected matrix, length of the start -> weights, whether enough


def game_on_device(game: Game, device: str) -> Game:
    """The same game whose network's equations a device solves; BadInput where it does not fit into its memory."""
    torch_device = find_device(device)
    size, edges = game.num_clients, game.graph.num_edges
    require_room(torch_device, solution_bytes(size, edges), f"equilibria of {size:,} clients and {edges:,} edges")
    loss = DeviceLoss(
        game.propagation, game.externality_strength, propagation_on_device(game.propagation, torch_device)
    )
    # Σ·1, which the proof of uniqueness asks for, is kept where NumPy would keep it.
    game.propagation.__dict__.setdefault("row_sums", _host(loss.spread @ loss.tensor(np.ones(size))))
    moved = replace(game)
    moved.__dict__["loss"] = loss
    return moved


def solution_bytes(num_clients: int, num_edges: int) -> int:
    """Memory that a game takes on a device while it is solved: the network, a Krylov basis and the vectors around it.

    12 bytes an edge and some 480 a client (a pair of vectors is 16), and a working space that small games do not fill.
    """
    pairs = 16 * (KRYLOV_BASIS + PAIRS_AT_ONCE) * num_clients
    working = min(WORKING_BYTES, 1000 * num_clients)
    return matrix_bytes(num_clients, num_edges) + pairs + 48 * num_clients + working


@dataclass(frozen=True, eq=False)
class DeviceLoss(LossOperator):
    """B = I + αΣ (model, eq. 5) on a device; `spread` is Σ there."""

    spread: DevicePropagation

    @property
    def is_dense(self) -> bool:
        return False

    @cached_property
    def T(self) -> DeviceLoss:  # noqa: N802  (the name numpy and scipy use)
        turned = DeviceLoss(self.propagation.T, self.externality_strength, self.spread.T)
        turned.__dict__["T"] = self
        return turned

    def tensor(self, values: Array) -> Tensor:
        return to_device(np.ascontiguousarray(values), self.spread.home.device)

    def __matmul__(self, budgets: Array) -> Array:
        return _host(self._times(self.tensor(budgets)))

    def _times(self, x: Tensor) -> Tensor:
        if self.externality_strength == 0:
            return x.clone()
        return (self.spread @ x).mul_(self.externality_strength).add_(x)

    def solve(
        self, right: Array, free: BoolArray | None = None, start: Array | None = None, tolerance: float = TOLERANCE
    ) -> Array:
        """x with (B x)_i = wanted_i on the free clients and x_i = 0 elsewhere; one column or two.

        The residual is at most `tolerance` of the largest entry of `wanted`, or ENOUGH where rounding allows no better.
        Raises NotConverged otherwise.
        """
        mask = None if free is None else self.tensor(free.astype(np.float64))
        # Two right-hand sides travel as the real and the imaginary part of one: each step reads the network once.
        goal = _restricted(_vector(self.tensor(right)).clone(), mask)
        allowed = tolerance * _largest(goal)
        if allowed == 0.0:
            return np.zeros_like(right)
        x = torch.zeros_like(goal) if start is None else _restricted(_vector(self.tensor(start)).clone(), mask)
        residual = goal.clone() if start is None else goal - self._image(x, mask)
        worst, before, fast = _largest(residual), np.inf, free is None
        for _ in range(30):
            if worst <= allowed:
                break
            if worst > 0.3 * before:
                if not fast:
                    break  # rounding, or a system too hard, stands in the way
                fast = False
            step = self._walk_step(residual, allowed / worst) if fast else self._gmres_step(residual, allowed, mask)
            x += step
            torch.sub(goal, self._image(x, mask), out=residual)
            before, worst = worst, _largest(residual)
        if not worst <= max(allowed, ENOUGH * _largest(goal)):
            raise NotConverged(
                f"the network's equations were solved only to {worst:.2g} (wanted {allowed:.2g}); "
                "lower externality_strength or max_hops.",
                _host(_columns(x)),
                worst,
            )
        return _host(_columns(x))

    def _image(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """B x on the free clients; x is zero on the others."""
        return _restricted(_vector(self._times(_columns(x))), mask)

    def _gmres_step(self, residual: Tensor, allowed: float, mask: Tensor | None) -> Tensor:
        """A correction by GMRES on B itself: K products with W a step, converges whatever the diagonal."""
        # The bound is on the largest entry; a residual spread over all clients has √N times that as its 2-norm.
        atol = 0.1 * allowed * self.num_clients**0.5

        def least(hessenberg: Any, length: float) -> tuple[Any, bool]:
            goal = np.zeros(len(hessenberg), dtype=hessenberg.dtype)
            goal[0] = length
            weights = np.linalg.lstsq(hessenberg, goal)[0]
            return weights, bool(np.linalg.norm(hessenberg @ weights - goal) <= atol)

        step, left = torch.zeros_like(residual), residual
        for _ in range(GMRES_CYCLES):
            step += _from_krylov(lambda x: self._image(x, mask), left, least)
            left = residual - self._image(step, mask)
            if float(torch.linalg.vector_norm(left)) <= atol:
                break
        return step

    def _walk_step(self, residual: Tensor, wanted_ratio: float) -> Tensor:
        """A correction from Krylov vectors of W, one product each: B is all but a polynomial in W.

        B = (I − αD)(I + αG(W + λW² + ...)) with D the diagonal taken out of Σ and G = (I − αD)⁻¹. Writing GW for every
        W makes the second factor f(GW)⁻¹ and errs by α²D only; f(GW)Gr is read off an Arnoldi basis.
        """
        strength, spread = self.externality_strength, self.spread
        inverse = (1 - strength * spread.home).reciprocal_()
        floor = strength**2 * float(spread.home.abs().max()) * spread.geometric_sum
        goal = max(0.1 * wanted_ratio, 0.1 * floor)
        before = np.zeros(0)

        def of_polynomial(hessenberg: Any, length: float) -> tuple[Any, bool]:
            nonlocal before
            try:
                weights = answer_of_polynomial(hessenberg[:-1], strength, spread.hop_decay, spread.max_hops, length)
            except np.linalg.LinAlgError:  # singular so far; one more vector, or GMRES, may do
                weights = np.zeros(len(hessenberg) - 1)
            moved = np.linalg.norm(weights - np.concatenate([before, [0.0]])) if len(weights) > 1 else np.inf
            before = weights
            return weights, bool(moved <= goal * np.linalg.norm(weights))

        def hop(x: Tensor) -> Tensor:
            return _restricted(_vector(spread.influence.times(_columns(x))), inverse)

        return _from_krylov(hop, _restricted(residual.clone(), inverse), of_polynomial)


def _from_krylov(apply: Callable[[Tensor], Tensor], start: Tensor, answer: Answer) -> Tensor:
    """Σ weights_k q_k over an Arnoldi basis q of `start` under `apply`, as soon as `answer` finds the weights enough.

    The basis stays on the device; its projected matrix, at most KRYLOV_BASIS wide, is on the host.
    """
    length = float(torch.linalg.vector_norm(start))
    if length == 0.0:
        return torch.zeros_like(start)
    basis = [start / length]
    hessenberg = np.zeros((KRYLOV_BASIS + 1, KRYLOV_BASIS), dtype=np.complex128 if start.is_complex() else np.float64)
    for m in range(1, KRYLOV_BASIS + 1):
        following = apply(basis[-1])
        shares = torch.stack([torch.vdot(vector, following) for vector in basis]).tolist()
        for vector, share in zip(basis, shares, strict=True):
            following.add_(vector, alpha=-share)
        left = float(torch.linalg.vector_norm(following))
        hessenberg[:m, m - 1], hessenberg[m, m - 1] = shares, left
        weights, enough = answer(hessenberg[: m + 1, :m], length)
        if enough or m == KRYLOV_BASIS or left <= 1e-14 * float(np.linalg.norm(hessenberg[: m + 1, m - 1])):
            break
        basis.append(following.div_(left))
    total = torch.zeros_like(start)
    for vector, weight in zip(basis, weights.tolist(), strict=True):
        total.add_(vector, alpha=weight)
    return total


def _host(values: Tensor) -> Array:
    return np.asarray(values.cpu().numpy())


def _vector(columns: Tensor) -> Tensor:
    """Two real columns as one complex vector, without copying; one column as it is."""
    return columns if columns.ndim == 1 else torch.view_as_complex(columns.contiguous())


def _columns(vector: Tensor) -> Tensor:
    return torch.view_as_real(vector) if vector.is_complex() else vector


def _restricted(vector: Tensor, factors: Tensor | None) -> Tensor:
    """The vector with every client's entry multiplied, in place, by its real factor; a mask is factors 0 and 1."""
    if factors is not None:
        columns = _columns(vector)
        columns.mul_(factors if columns.ndim == 1 else factors[:, None])
    return vector


def _largest(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(_columns(vector), ord=float("inf")))
