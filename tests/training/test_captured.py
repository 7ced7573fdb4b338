"""Recordings for fewer and fewer slots: everybody is computed to the end, and nobody long after it."""

import numpy as np
import pytest

from mppfl.training.cuda import FEW_PARTS, MANY_SLOTS, PARTS, stages


@pytest.mark.parametrize("most", [1, 3, 20, MANY_SLOTS, 240])
def test_every_slot_is_computed_as_long_as_it_has_batches_and_hardly_longer(most):
    rng = np.random.default_rng(most)
    for _ in range(50):
        lengths = sorted(rng.integers(1, 100, rng.integers(1, most + 1)).tolist(), reverse=True)
        found = stages(lengths, most)
        assert sum(steps for _, steps in found) == lengths[0]
        assert len(found) <= (PARTS if most >= MANY_SLOTS else FEW_PARTS)
        step, step_of_part = 0, -(-most // (PARTS if most >= MANY_SLOTS else FEW_PARTS))
        for size, steps in found:
            moving = sum(length > step for length in lengths)
            last = sum(length > step + steps - 1 for length in lengths)
            assert moving <= size <= last + step_of_part
            step += steps
