"""Whose example is whose: every training example is given to one client.

Each function returns the owner of every row, int64 [n], so that nothing can be used twice or left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mppfl.data.dataset import Labels
from mppfl.errors import BadInput

Owners = NDArray[np.int64]
REDRAWS = 10  # of a division by labels, before examples are moved instead


def iid_owners(num_rows: int, num_clients: int, rng: np.random.Generator, min_examples: int, uneven: float) -> Owners:
    """Rows in random order; sizes equal up to one, or with `uneven` > 0 in proportion to exp(uneven · normal).

    Uneven sizes: everyone gets `min_examples`, and what remains is divided in proportion to the lognormal weights,
    rounded so that all of it is used.
    """
    require_enough(num_rows, num_clients, min_examples)
    if uneven == 0:
        sizes = np.full(num_clients, num_rows // num_clients)
        sizes[: num_rows % num_clients] += 1
    else:
        exponents = uneven * rng.standard_normal(num_clients)
        weights = np.exp(exponents - exponents.max())  # at most 1: no weight overflows
        sizes = min_examples + _in_proportion(num_rows - num_clients * min_examples, weights)
    owners = np.repeat(np.arange(num_clients), sizes)
    rng.shuffle(owners)
    return owners


def dirichlet_owners(
    labels: Labels, num_clients: int, concentration: float, rng: np.random.Generator, min_examples: int
) -> tuple[Owners, int]:
    """Each class is divided among all clients in proportions drawn from a symmetric Dirichlet distribution.

    Also tells how many examples were moved so that everyone has `min_examples` (see `_with_enough_each`).
    """

    def draw() -> Owners:
        owners = np.empty(len(labels), dtype=np.int64)
        for rows in _rows_of_classes(labels):
            shares = rng.dirichlet(np.full(num_clients, concentration))
            ends = np.floor(np.cumsum(shares) * len(rows) + 1e-9).astype(np.int64)
            ends[-1] = len(rows)  # the shares sum to 1 but for rounding
            owners[rng.permutation(rows)] = np.repeat(np.arange(num_clients), np.diff(ends, prepend=0))
        return owners

    return _with_enough_each(draw, len(labels), num_clients, rng, min_examples)


def community_owners(
    labels: Labels, communities: NDArray[np.int64], concentration: float, rng: np.random.Generator, min_examples: int
) -> tuple[Owners, int]:
    """Clients of one community prefer the same labels. `communities` has one entry per client.

    Each community c draws its preferences q_c over the classes from a symmetric Dirichlet distribution. Every example
    of class k then goes to client i with probability q_c(i),k / Σ_j q_c(j),k, independently of the others: members of
    a community differ by chance only. A class that nobody prefers at all goes to everyone alike. Also tells how many
    examples were moved so that everyone has `min_examples`.
    """
    num_clients = len(communities)
    num_classes = int(labels.max()) + 1

    def draw() -> Owners:
        preferences = rng.dirichlet(np.full(num_classes, concentration), size=int(communities.max()) + 1)
        owners = np.empty(len(labels), dtype=np.int64)
        for rows in _rows_of_classes(labels):
            liking = preferences[communities, labels[rows[0]]]
            chances = liking / liking.sum() if liking.sum() > 0 else np.full(num_clients, 1.0 / num_clients)
            owners[rows] = rng.choice(num_clients, size=len(rows), p=chances)
        return owners

    return _with_enough_each(draw, len(labels), num_clients, rng, min_examples)


def members_of(owners: Owners, num_clients: int) -> tuple[NDArray[np.int64], ...]:
    """The rows of each client, in rising order."""
    in_order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=num_clients))
    return tuple(np.split(in_order, ends[:-1]))


def require_enough(num_rows: int, num_clients: int, min_examples: int) -> None:
    if num_rows < num_clients * min_examples:
        raise BadInput(
            f"{num_rows:,} training examples are too few for {num_clients:,} clients with at least {min_examples:,} "
            f"each. Take at most {num_rows // min_examples:,} clients, or lower min_examples."
        )


def _rows_of_classes(labels: Labels) -> list[NDArray[np.int64]]:
    """The rows of each class that occurs."""
    in_order = np.argsort(labels, kind="stable")
    classes: list[NDArray[np.int64]] = np.split(in_order, np.flatnonzero(np.diff(labels[in_order])) + 1)
    return classes


def _in_proportion(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers that sum to `total`, in proportion to the weights; the largest remainders are rounded up."""
    exact = total * (weights / weights.sum())
    sizes: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: total - int(sizes.sum())]] += 1
    return sizes


def _with_enough_each(
    draw: Callable[[], Owners], num_rows: int, num_clients: int, rng: np.random.Generator, min_examples: int
) -> tuple[Owners, int]:
    """A draw in which everyone has `min_examples`, and how many examples were moved to get there.

    Draws up to REDRAWS times; if none will do, takes the one that lacks the fewest examples, lowers the largest clients
    to a common size, and gives what they lose, chosen at random, to those who have too few.
    """
    require_enough(num_rows, num_clients, min_examples)
    fewest, nearest = num_rows + 1, np.empty(0, dtype=np.int64)
    for _ in range(REDRAWS):
        owners = draw()
        missing = int(np.maximum(min_examples - np.bincount(owners, minlength=num_clients), 0).sum())
        if missing < fewest:
            fewest, nearest = missing, owners
        if missing == 0:
            break
    return (_evened(nearest, num_clients, rng, min_examples) if fewest else nearest), fewest


def _evened(owners: Owners, num_clients: int, rng: np.random.Generator, min_examples: int) -> Owners:
    """The same owners, except that the largest clients have given what the smallest lacked."""
    sizes = np.bincount(owners, minlength=num_clients)
    lacking = np.maximum(min_examples - sizes, 0)
    needed = int(lacking.sum())
    low, high = min_examples, int(sizes.max())  # at `low` the larger clients can give enough, at `high` nothing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= needed else (low, middle)
    giving = np.maximum(sizes - low, 0)
    spare = int(giving.sum()) - needed  # less than one a giver
    giving[rng.permutation(np.flatnonzero(giving))[:spare]] -= 1
    members = members_of(owners, num_clients)
    given = [rng.choice(members[client], giving[client], replace=False) for client in np.flatnonzero(giving)]
    evened = owners.copy()
    evened[rng.permutation(np.concatenate(given))] = np.repeat(np.arange(num_clients), lacking)
    return evened
