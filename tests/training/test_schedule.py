"""Batches side by side: every look lies in its slot and step, and padding weighs nothing."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mppfl.training import ClientSlot
from mppfl.training.engines import padded_steps, steps_of

ROWS = st.lists(st.integers(0, 50), min_size=0, max_size=5).map(np.array).map(lambda rows: rows.astype(np.int64))
BATCHES = st.lists(st.lists(ROWS, min_size=0, max_size=4), min_size=1, max_size=5)


@given(BATCHES, st.booleans(), st.sampled_from([None, 5, 8]))
def test_every_batch_lies_in_its_slot_and_step(batches, is_private, width):
    noise = object() if is_private else None
    slots = [ClientSlot(torch.zeros(1), own, noise) for own in batches]
    num_steps = max(map(len, batches)) + 1
    rows, weight, moves = padded_steps(slots, num_steps, width, torch.zeros(51, 2, dtype=torch.float64))
    longest = max((len(batch) for own in batches for batch in own), default=0)
    assert rows.shape == weight.shape == (num_steps, len(slots), width or longest or 1)
    for slot, own in enumerate(batches):
        looks = [row for batch in own for row in batch.tolist()]
        for step in range(num_steps):
            batch = own[step].tolist() if step < len(own) else []
            assert moves[step, slot] == (step < len(own))
            assert rows[step, slot, : len(batch)].tolist() == batch
            share = 1.0 if is_private else 1 / max(1, len(batch))
            np.testing.assert_allclose(weight[step, slot, : len(batch)], share)
            assert not weight[step, slot, len(batch) :].any()
            if looks:  # padding shows a slot nobody else's examples
                assert set(rows[step, slot, len(batch) :].tolist()) <= {looks[0]}


def test_slots_that_share_batches_see_the_same():
    shared, other = [np.array([4, 2]), np.array([1])], [np.array([9])]
    slots = [ClientSlot(torch.zeros(1), own) for own in (shared, other, shared)]
    rows, weight, _ = padded_steps(slots, 2, None, torch.zeros(10, 1))
    assert torch.equal(rows[:, 0], rows[:, 2])
    assert rows[:, 0].tolist() == [[4, 2], [1, 4]]
    assert rows[:, 1].tolist() == [[9, 9], [9, 9]]
    assert weight[:, 1].tolist() == [[1, 0], [0, 0]]


def test_a_step_is_as_wide_as_its_longest_batch():
    slots = [
        ClientSlot(torch.zeros(1), [np.array([1, 2, 3]), np.array([4])]),
        ClientSlot(torch.zeros(1), [np.array([5])]),
    ]
    assert [tuple(rows.shape) for rows, _, _ in steps_of(slots, torch.zeros(6, 1))] == [(2, 3), (2, 1)]
    assert [tuple(rows.shape) for rows, _, _ in steps_of(slots, torch.zeros(6, 1), 8)] == [(2, 8), (2, 8)]
