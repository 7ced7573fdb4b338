"""Small dense clients in the span of their own examples, and batches of many slots side by side."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mppfl.training import ClientSlot, flat_model, make_model
from mppfl.training.engines import Engine, is_less_work, padded_steps, steps_of
from tests.training.trainings import CLIENT, configured

ROWS_OF_A_BATCH = (
    st.lists(st.integers(0, 50), min_size=0, max_size=5).map(np.array).map(lambda rows: rows.astype(np.int64))
)
BATCHES = st.lists(st.lists(ROWS_OF_A_BATCH, min_size=0, max_size=4), min_size=1, max_size=5)


@given(BATCHES, st.booleans(), st.sampled_from([None, 5, 8]))
def test_every_batch_lies_in_its_slot_and_step(batches, is_private, width):
    batches.append(batches[0])  # slots may share theirs
    noise = object() if is_private else None
    slots = [ClientSlot(torch.zeros(1), batches_of_slot, noise) for batches_of_slot in batches]
    num_steps = max(map(len, batches)) + 1
    rows, weight, moves = padded_steps(slots, num_steps, width, torch.zeros(51, 2, dtype=torch.float64))
    longest = max((len(batch) for batches_of_slot in batches for batch in batches_of_slot), default=0)
    assert rows.shape == weight.shape == (num_steps, len(slots), width or longest or 1)
    for slot, batches_of_slot in enumerate(batches):
        looks = [row for batch in batches_of_slot for row in batch.tolist()]
        for step in range(num_steps):
            batch = batches_of_slot[step].tolist() if step < len(batches_of_slot) else []
            assert moves[step, slot] == (step < len(batches_of_slot))
            assert rows[step, slot, : len(batch)].tolist() == batch
            share = 1.0 if is_private else 1 / max(1, len(batch))
            np.testing.assert_allclose(weight[step, slot, : len(batch)], share)
            assert not weight[step, slot, len(batch) :].any()
            if looks:  # padding shows a slot nobody else's examples
                assert set(rows[step, slot, len(batch) :].tolist()) <= {looks[0]}


def test_a_step_is_as_wide_as_its_longest_batch():
    slots = [
        ClientSlot(torch.zeros(1), [np.array([1, 2, 3]), np.array([4])]),
        ClientSlot(torch.zeros(1), [np.array([5])]),
    ]
    assert [tuple(rows.shape) for rows, _, _ in steps_of(slots, torch.zeros(6, 1))] == [(2, 3), (2, 1)]
    assert [tuple(rows.shape) for rows, _, _ in steps_of(slots, torch.zeros(6, 1), 8)] == [(2, 8), (2, 8)]


SHAPE, CLASSES, PICTURES = (1, 8, 8), 4, 400
MODELS = {
    "softmax": lambda: make_model("softmax", SHAPE, CLASSES),
    "mlp": lambda: make_model("mlp", SHAPE, CLASSES, hidden=(7, 5)),
    "without biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6, bias=False), nn.ReLU(), nn.Linear(6, CLASSES, bias=False)
    ),
}
SIZES = (5, 12, 5, 31, 1, 20)  # examples of the clients, none alike in order


def examples(dtype=np.float64):
    rng = np.random.default_rng(1)
    return rng.normal(size=(PICTURES, *SHAPE)).astype(dtype), rng.integers(CLASSES, size=PICTURES)


def batches(seed, size, epochs, per_batch=4):
    rng = np.random.default_rng(seed)
    examples_of_client = rng.choice(PICTURES, size, replace=False)
    orders = [rng.permutation(examples_of_client) for _ in range(epochs)]
    return [order[start : start + per_batch] for order in orders for start in range(0, size, per_batch)]


def slots_from(starts, sizes=SIZES, epochs=3):
    return [
        ClientSlot(start, batches(k, size, epochs), epochs=epochs)
        for k, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def all_updates(engine, slots):
    """The updates of all slots as one tensor; an engine gives some after others."""
    return torch.cat([rows.clone() for rows in engine.updates(slots)])


def engine_of(model, num_slots, epochs=3, precision="float64", **more):
    data = examples(np.float64 if precision == "float64" else np.float32)
    config = configured(**CLIENT, batch_size=4, local_epochs=epochs, learning_rate=0.2, precision=precision, **more)
    return Engine(model, *data, config, num_slots)


def starts_of(model, count, alike):
    rng = np.random.default_rng(2)
    start = model.initial_weights(0).double()
    starts = [start + torch.from_numpy(0.1 * rng.normal(size=len(start))) for _ in range(1 if alike else count)]
    return starts * (count if alike else 1)


def assert_moves_as_the_plain_loop(model, slots, in_span, atol=1e-11, **more):
    engine, plain = (
        engine_of(flat_model(MODELS[model]()), len(slots), engine=name, **more) for name in ("dense", "loop")
    )
    assert sorted(engine._spanned.which_pay(slots)) == list(in_span)
    expected = all_updates(plain, slots)
    assert expected.abs().max() > 0.01
    for _ in range(2):  # the second time finds its Gram matrices kept
        torch.testing.assert_close(all_updates(engine, slots), expected, atol=atol, rtol=0)


ONE_START_OR_MANY = pytest.mark.parametrize("alike", [True, False], ids=["one start", "starts of their own"])


@pytest.mark.parametrize("model", MODELS)
@ONE_START_OR_MANY
@pytest.mark.parametrize("at_once", [1, 2, 20, None])
def test_small_clients_move_as_the_plain_loop_moves_them(model, alike, at_once):
    slots = slots_from(starts_of(flat_model(MODELS[model]()), len(SIZES), alike))
    assert_moves_as_the_plain_loop(model, slots, range(len(SIZES)), clients_at_once=at_once)


@pytest.mark.parametrize(
    ("sizes", "in_span"),
    [((5, 200, 12, 150), [0, 2]), ((8,) * 43, range(43))],
    ids=["large clients beside small ones", "more than are multiplied at once"],
)
@ONE_START_OR_MANY
def test_clients_computed_plainly_or_in_turn_land_in_their_rows(sizes, in_span, alike):
    slots = slots_from(starts_of(flat_model(MODELS["mlp"]()), len(sizes), alike), sizes)
    assert_moves_as_the_plain_loop("mlp", slots, in_span)


def test_an_example_that_comes_twice_in_a_batch_counts_twice():
    start = flat_model(MODELS["mlp"]()).initial_weights(0).double()
    slot = ClientSlot(start, [np.array([3, 7, 3]), np.array([7, 7, 7, 9])], epochs=2)
    assert_moves_as_the_plain_loop("mlp", [slot], [0], atol=1e-12, epochs=2)


@pytest.mark.parametrize("size", [12, 17, 60])
def test_clients_of_one_size_are_the_same_to_the_bit_alone_and_in_company(size):
    flat = flat_model(make_model("mlp", SHAPE, CLASSES, hidden=(16,)))
    slots = slots_from([flat.initial_weights(0)] * 6, [size] * 6)
    engine = engine_of(flat, len(slots), precision="float32", engine="dense")
    assert len(engine._spanned.which_pay(slots)) == len(slots)
    together = all_updates(engine, slots)
    for k, slot in enumerate(slots):
        assert torch.equal(all_updates(engine, [slot])[0], together[k])


def test_what_leaves_the_span_is_computed_plainly():
    flat = flat_model(MODELS["mlp"]())
    slots = slots_from([flat.initial_weights(0).double()] * len(SIZES))
    for change in ({"momentum": 0.9}, {"augmentation": "crop_and_flip"}):
        assert engine_of(flat, 6, engine="dense", **change)._spanned is None
    engine = engine_of(flat, 6, engine="dense")
    assert engine._spanned.which_pay(slots)
    assert not engine._spanned.which_pay([ClientSlot(slots[0].start, slots[0].batches, noise=object())])
    assert not engine._spanned.which_pay([ClientSlot(slots[0].start, [])])


@pytest.mark.parametrize(
    ("looks", "epochs", "inputs", "pays"),
    [(60, 1, 784, True), (300, 1, 784, False), (1500, 5, 784, True), (5 * 784, 5, 784, True), (5 * 785, 5, 784, False)],
)
def test_the_span_is_used_where_it_is_less_work(looks, epochs, inputs, pays):
    assert is_less_work(looks, epochs, inputs) is pays


def test_examples_whose_products_are_infinite_are_computed_plainly():
    features, labels = examples(np.float32)
    config = configured(**CLIENT, batch_size=4, local_epochs=3, learning_rate=1e-30, engine="dense")
    flat = flat_model(make_model("softmax", SHAPE, CLASSES))
    slot = ClientSlot(torch.zeros(flat.num_parameters), batches(0, 12, 3), epochs=3)
    engine = Engine(flat, np.float32(1e19) * features, labels, config, 1)
    assert engine._spanned.which_pay([slot]) == []
    assert torch.isfinite(all_updates(engine, [slot])).all()


@pytest.mark.parametrize("sizes", [(12, 20, 31), (200, 200, 200)], ids=["in the span", "plainly"])
def test_examples_that_are_nearly_alike_are_computed_as_exactly_as_by_the_plain_loop(sizes):
    """Pictures of one grey with a little noise: every example rounds the last layer's weights the same way."""
    rng = np.random.default_rng(3)
    features = (3 + 0.003 * rng.normal(size=(PICTURES, *SHAPE))).astype(np.float32)
    labels = rng.integers(10, size=PICTURES)
    start = flat_model(make_model("mlp", SHAPE, 10, hidden=(32,))).initial_weights(0)

    def moved(engine, precision):
        dtype = torch.float64 if precision == "float64" else torch.float32
        flat = flat_model(make_model("mlp", SHAPE, 10, hidden=(32,)))
        config = configured(
            **CLIENT, batch_size=10, local_epochs=3, learning_rate=1e-4, precision=precision, engine=engine
        )
        slots = [ClientSlot(start.to(dtype), batches(k, size, 3, 10), epochs=3) for k, size in enumerate(sizes)]
        engine = Engine(flat, features.astype(precision), labels, config, len(slots))
        return flat.parts(all_updates(engine, slots).double())

    exact, plain, fast = moved("loop", "float64"), moved("loop", "float32"), moved("dense", "float32")
    for name, part in exact.items():
        assert (fast[name] - part).norm() <= 1.5 * (plain[name] - part).norm()


@pytest.mark.parametrize("engine", ["dense", "vmap"])
@pytest.mark.parametrize("size", [1e17, 1e19])  # in the span and plainly where the engine is dense
def test_nobody_diverges_by_how_long_others_train(size, engine):
    """After its one step this client's own examples overflow; others have three, and it is padded with its first."""
    features, labels = examples(np.float32)
    features[:4] *= np.float32(size)
    flat = flat_model(make_model("mlp", SHAPE, CLASSES, hidden=(16,)))
    config = configured(**CLIENT, batch_size=4, local_epochs=1, learning_rate=0.2, engine=engine)
    large = ClientSlot(flat.initial_weights(0), [np.arange(3)])
    others = slots_from([flat.initial_weights(0)], [12], epochs=1)
    engine = Engine(flat, features, labels, config, 2)
    alone, together = all_updates(engine, [large])[0], all_updates(engine, [large, *others])[0]
    assert torch.isfinite(alone).all()
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=0)
