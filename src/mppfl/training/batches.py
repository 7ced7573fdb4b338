"""Which examples a client looks at in which step, from a stream of its own for every round and client.

Streams that start anew for each round and client make a training independent of how many processes compute it, of who
else takes part, and of where it was interrupted.
"""

from __future__ import annotations

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, system_words
from mppfl.training.config import TrainingConfig

PURPOSES = {"batches": 1, "noise": 2, "layers": 3, "views": 4}


def stream(seed: int, purpose: str, round_index: int, client: int) -> np.random.Generator:
    """The random stream of one client in one round, for one purpose."""
    return np.random.default_rng([seed, PURPOSES[purpose], round_index, client])


def order_of_round(config: TrainingConfig, round_index: int, client: int) -> np.random.Generator | None:
    """Where a client's batches come from: its stream, or nobody's where a real guarantee rests on their secrecy."""
    if config.hides_samples:
        return None
    return stream(config.seed, "batches", round_index, client)


def _system_uniform(count: int) -> Array:
    return (system_words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def local_work(num_examples: int, config: TrainingConfig, client: str) -> LocalWork:
    """What a client with so many examples does in a round. Raises where its data do not fill one batch."""
    whole = config.privacy in ("full_batch", "full_batch_steps")
    if not whole and config.batch_size > num_examples:
        raise BadInput(
            f"batch_size={config.batch_size} is more than the {num_examples} examples of client {client!r}. Use at "
            f"most {num_examples}, or a split with larger clients."
        )
    return LocalWork(num_examples, config.local_epochs, config.num_steps, num_examples if whole else config.batch_size)


def batches_of_round(work: LocalWork, privacy: str, rng: np.random.Generator | None) -> list[IntArray]:
    """Positions of the examples of each step, under the named privacy mechanism.

    Shuffled epochs of disjoint batches, the last one short if need be; Poisson samples; or everything in every step.
    Without `rng` Poisson samples come from the system's randomness: what they hide is hidden from those alone who
    cannot draw them again.
    """
    size, per_batch = work.num_examples, work.batch_size
    if privacy in ("full_batch", "full_batch_steps"):
        return [np.arange(size)] * (work.num_steps if privacy == "full_batch_steps" else 1)
    if privacy == "dpsgd_poisson":
        steps = work.local_epochs * -(-size // per_batch)
        draw = _system_uniform if rng is None else rng.random
        return [np.flatnonzero(draw(size) < per_batch / size) for _ in range(steps)]
    if rng is None:
        raise BadInput("batches that hide nothing are drawn from a seed; give rng.")
    batches: list[IntArray] = []
    for _ in range(work.local_epochs):
        order = rng.permutation(size)
        batches += [order[start : start + per_batch] for start in range(0, size, per_batch)]
    return batches
