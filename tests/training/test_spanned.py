"""Clients computed in the span of their own examples move as the plain loop moves them."""

import numpy as np
import pytest
import torch
from torch import nn

from mppfl.training import Cohort, Lane, TrainingConfig, flat_model, is_less_work, make_model, own_examples, schedule_of
from tests.homes import home
from tests.tolerances import assert_float32_close, assert_same_products

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
    own = rng.choice(PICTURES, size, replace=False)
    orders = [rng.permutation(own) for _ in range(epochs)]
    return [order[start : start + per_batch] for order in orders for start in range(0, size, per_batch)]


def lanes_from(starts, sizes=SIZES, epochs=3):
    return [
        Lane(start, batches(k, size, epochs), epochs=epochs)
        for k, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def cohort_of(model, num_lanes, epochs=3, precision="float64", **more):
    data = examples(np.float64 if precision == "float64" else np.float32)
    config = TrainingConfig(batch_size=4, local_epochs=epochs, learning_rate=0.2, precision=precision, **more)
    return Cohort(model, *data, config, num_lanes)


def starts_of(model, count, alike):
    rng = np.random.default_rng(2)
    start = model.initial_weights(0).double()
    starts = [start + torch.from_numpy(0.1 * rng.normal(size=len(start))) for _ in range(1 if alike else count)]
    return starts * (count if alike else 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("alike", [True, False], ids=["one start", "starts of their own"])
@pytest.mark.parametrize("at_once", [1, 2, 20, None])
def test_small_clients_move_as_the_plain_loop_moves_them(model, alike, at_once):
    flat = flat_model(MODELS[model]())
    lanes = lanes_from(starts_of(flat, len(SIZES), alike))
    with cohort_of(flat, len(lanes), engine="dense", clients_at_once=at_once) as cohort:
        assert len(cohort._spanned.which_pay(lanes)) == len(lanes)
        found = [cohort.updates(lanes) for _ in range(2)]  # the second finds its Gram matrices kept
    with cohort_of(flat_model(MODELS[model]()), len(lanes), engine="loop") as plain:
        wanted = plain.updates(lanes)
    assert wanted.abs().max() > 0.01
    for updates in found:
        torch.testing.assert_close(updates, wanted, atol=1e-11, rtol=0)


def test_large_clients_beside_small_ones_are_computed_plainly_and_land_in_their_rows():
    flat = flat_model(MODELS["mlp"]())
    sizes = (5, 200, 12, 150)
    lanes = lanes_from(starts_of(flat, len(sizes), alike=True), sizes)
    with cohort_of(flat, len(lanes), engine="dense") as cohort:
        assert cohort._spanned.which_pay(lanes) == [0, 2]
        found = cohort.updates(lanes)
    with cohort_of(flat_model(MODELS["mlp"]()), len(lanes), engine="loop") as plain:
        torch.testing.assert_close(found, plain.updates(lanes), atol=1e-11, rtol=0)


def test_an_example_that_comes_twice_in_a_batch_counts_twice():
    flat = flat_model(MODELS["mlp"]())
    lane = Lane(flat.initial_weights(0).double(), [np.array([3, 7, 3]), np.array([7, 7, 7, 9])], epochs=2)
    with cohort_of(flat, 1, epochs=2, engine="dense") as cohort:
        assert cohort._spanned.which_pay([lane]) == [0]
        found = cohort.updates([lane])
    with cohort_of(flat_model(MODELS["mlp"]()), 1, engine="loop") as plain:
        torch.testing.assert_close(found, plain.updates([lane]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [12, 17, 60])
def test_clients_of_one_size_are_the_same_to_the_bit_alone_and_in_company(size):
    flat = flat_model(make_model("mlp", SHAPE, CLASSES, hidden=(16,)))
    lanes = lanes_from([flat.initial_weights(0)] * 6, [size] * 6)
    with cohort_of(flat, len(lanes), precision="float32", engine="dense") as cohort:
        assert len(cohort._spanned.which_pay(lanes)) == len(lanes)
        together = cohort.updates(lanes)
        for k, lane in enumerate(lanes):
            assert_same_products(cohort.updates([lane])[0], together[k], steps=100)


def test_gram_matrices_never_take_more_than_the_examples():
    flat = flat_model(MODELS["mlp"]())
    start = flat.initial_weights(0).double()
    with cohort_of(flat, 1, engine="dense") as cohort:
        for seed in range(40):  # other examples every time
            cohort.updates([Lane(start, batches(seed, 60, 3), epochs=3)])
            kept = sum(gram.numel() for gram in cohort._spanned._grams.values())
            assert 0 < kept == cohort._spanned._kept <= PICTURES * 64


def test_what_leaves_the_span_is_computed_plainly():
    model = MODELS["mlp"]
    lanes = lanes_from([flat_model(model()).initial_weights(0).double()] * len(SIZES))
    with cohort_of(flat_model(model()), 6, engine="dense", momentum=0.9) as cohort:
        assert cohort._spanned is None
    with cohort_of(flat_model(model()), 6, engine="dense", augmentation="crop_and_flip") as cohort:
        assert cohort._spanned is None
    with cohort_of(flat_model(model()), 6, engine="dense") as cohort:
        assert cohort._spanned.which_pay(lanes)
        assert not cohort._spanned.which_pay([Lane(lanes[0].start, lanes[0].batches, noise=object())])
        assert not cohort._spanned.which_pay([Lane(lanes[0].start, [])])


@pytest.mark.parametrize(
    ("looks", "epochs", "inputs", "pays"),
    [(60, 1, 784, True), (300, 1, 784, False), (1500, 5, 784, True), (5 * 784, 5, 784, True), (5 * 785, 5, 784, False)],
)
def test_the_span_is_used_where_it_is_less_work(looks, epochs, inputs, pays):
    assert is_less_work(looks, epochs, inputs) is pays


def test_own_examples_tells_where_every_look_is():
    lanes = [Lane(torch.zeros(1), [np.array([8, 3]), np.array([3])]), Lane(torch.zeros(1), [np.array([5])])]
    own, counts, position = own_examples(schedule_of(lanes, 2))
    assert own.tolist() == [[3, 8], [5, 5]]
    assert counts.tolist() == [2, 1]
    assert position.tolist() == [1, 0, 0, 0]


def test_examples_whose_products_are_infinite_are_computed_plainly():
    features, labels = examples(np.float32)
    config = TrainingConfig(batch_size=4, local_epochs=3, learning_rate=1e-30, engine="dense")
    flat = flat_model(make_model("softmax", SHAPE, CLASSES))
    lane = Lane(torch.zeros(flat.num_parameters), batches(0, 12, 3), epochs=3)
    with Cohort(flat, np.float32(1e19) * features, labels, config, 1) as cohort:
        assert cohort._spanned.which_pay([lane]) == []
        assert torch.isfinite(cohort.updates([lane])).all()


def test_arms_that_pass_over_their_examples_more_or_less_often_are_judged_each_by_its_own():
    flat = flat_model(MODELS["mlp"]())
    start = flat.initial_weights(0).double()
    once, thrice = Lane(start, batches(0, 60, 1)), Lane(start, batches(0, 60, 3), epochs=3)
    with cohort_of(flat, 2, engine="dense") as cohort:
        assert cohort._spanned.which_pay([once, thrice]) == [1]


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
        config = TrainingConfig(batch_size=10, local_epochs=3, learning_rate=1e-4, precision=precision, engine=engine)
        lanes = [Lane(start.to(dtype), batches(k, size, 3, 10), epochs=3) for k, size in enumerate(sizes)]
        with Cohort(flat, features.astype(precision), labels, config, len(lanes)) as cohort:
            return flat.parts(cohort.updates(lanes).double())

    exact, plain, found = moved("loop", "float64"), moved("loop", "float32"), moved("dense", "float32")
    for name, part in exact.items():
        assert (found[name] - part).norm() <= 1.5 * (plain[name] - part).norm()


@pytest.mark.parametrize("engine", ["dense", "vmap"])
@pytest.mark.parametrize("size", [1e17, 1e19])  # in the span and plainly where the engine is dense
def test_nobody_diverges_by_how_long_others_train(size, engine):
    """After its one step this client's own examples overflow; others have three, and it is padded with its first."""
    features, labels = examples(np.float32)
    features[:4] *= np.float32(size)
    flat = flat_model(make_model("mlp", SHAPE, CLASSES, hidden=(16,)))
    config = TrainingConfig(batch_size=4, local_epochs=1, learning_rate=0.2, engine=engine)
    large, others = Lane(flat.initial_weights(0), [np.arange(3)]), lanes_from([flat.initial_weights(0)], [12], epochs=1)
    with Cohort(flat, features, labels, config, 2) as cohort:
        alone, together = cohort.updates([large])[0], cohort.updates([large, *others])[0]
    assert torch.isfinite(alone).all()
    for name, part in flat.parts(alone).items():  # layers are of very different size here
        assert_float32_close(flat.parts(together)[name], part, steps=200)


def test_lanes_step_side_by_side_while_they_are_alike_and_fit(monkeypatch):
    flat = flat_model(MODELS["mlp"]())
    with cohort_of(flat, 2, engine="dense") as cohort:
        spanned = cohort._spanned
        assert spanned._together([10] * 70 + [11] * 5 + [12], None) == 75
        assert spanned._together([10] * 5 + [40] * 90, None) == 20  # so few are padded rather than called for
        assert spanned._together([10] * 70, 7) == 7
        monkeypatch.setattr(home(is_less_work), "MOST_ENTRIES", 30 * 10 * 64)
        assert spanned._together([10] * 70, None) == 30


def test_more_lanes_than_are_multiplied_at_once_move_as_the_plain_loop_moves_them():
    flat, sizes = flat_model(MODELS["mlp"]()), (8,) * 43
    for alike in (True, False):
        lanes = lanes_from(starts_of(flat, len(sizes), alike), sizes)
        with cohort_of(flat, len(lanes), engine="dense") as cohort:
            found = cohort.updates(lanes)
        with cohort_of(flat_model(MODELS["mlp"]()), len(lanes), engine="loop") as plain:
            torch.testing.assert_close(found, plain.updates(lanes), atol=1e-11, rtol=0)
