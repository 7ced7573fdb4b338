"""The fast engines compute what the plain loop computes; and the layers and worker processes they are made of."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, max_pool2d
from torch.nn.utils import parameters_to_vector

import mppfl
from mppfl.errors import BadInput, MppflError
from mppfl.training import (
    ClientSlot,
    TrainingConfig,
    TrainingJob,
    flat_model,
    make_model,
    train_many,
    train_rounds,
)
from mppfl.training.cuda import FEW_PARTS, MANY_SLOTS, PARTS, stages
from mppfl.training.engines import (
    ROUNDED,
    Engine,
    LayeredGradients,
    batch_norm_relu,
    can_travel,
    choose_engine,
    is_dense,
    is_layered,
    relu_pool,
    slot_convolution,
)
from tests.tolerances import assert_float32_close
from tests.training.trainings import (
    BUDGETS,
    CLIENT,
    FREE,
    NOMINAL,
    POISSON,
    SHUFFLED,
    STEPS,
    SUMS,
    WAYS,
    TwoPaths,
    batch_normed,
    configured,
    pictures,
    plan_with,
    small_cnn,
    trained,
)

EXACT = {"precision": "float64", "learning_rate": 0.2, "batch_size": 4, "local_epochs": 2}


def own_module():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return TwoPaths()


MODELS = {
    "linear": lambda: make_model("linear", (1, 8, 8), 4),
    "softmax": lambda: make_model("softmax", (1, 8, 8), 4),
    "mlp": lambda: make_model("mlp", (1, 8, 8), 4, hidden=(7, 5)),
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6, bias=False), nn.ReLU(), nn.Linear(6, 4, bias=False)
    ),
    "cnn": small_cnn,
    "batch norm": batch_normed,
    "own module": own_module,
}
UPDATE_LEVEL = {  # one that clips, one that does not
    "clipped client": {**CLIENT, "clip_norm": 0.5},
    "client": {**CLIENT, "clip_norm": 50.0},
}
GRADIENT_LEVEL = {
    "gradient": {"clip_norm": 0.7},
    "steps": {"clip_norm": 0.7, "num_steps": 3, **STEPS},
    "shuffled": {"clip_norm": 0.7, **SHUFFLED},
}
ENGINES_OF = {
    "linear": ("dense", "vmap", "batched"),
    "softmax": ("dense", "vmap", "batched"),
    "mlp": ("dense", "vmap", "batched"),
    "cnn": ("vmap", "batched"),
    "batch norm": ("batched",),
    "own module": ("vmap",),
}


def final_weights(model, budgets=FREE, **changed):
    """On oblong pictures: height and width are not to be confused."""
    return trained(budgets, 2, model=model, data=pictures(shape=(1, 4, 16)), **changed)[-1].weights


def combinations():
    for model, engines in ENGINES_OF.items():
        for way, more in {**UPDATE_LEVEL, **GRADIENT_LEVEL}.items():
            for engine in engines:
                if way in UPDATE_LEVEL or model != "batch norm":
                    yield pytest.param(model, way, more, engine, id=f"{model}-{way}-{engine}")


@pytest.mark.parametrize(("model", "way", "more", "engine"), combinations())
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_engine_agrees_with_the_plain_loop_without_noise(model, way, more, engine, momentum):
    asked = {"momentum": momentum, **EXACT, **more}
    plain, fast = (final_weights(MODELS[model](), engine=name, **asked) for name in ("loop", engine))
    assert np.abs(plain).max() > 0.01
    np.testing.assert_allclose(fast, plain, atol=1e-9, rtol=0)


def test_clients_that_end_early_stay_finite_in_deep_networks_with_batch_norm(caplog):
    # A batch of padding alone has no deviation: divided by √ε, layer by layer, it would grow past all bounds.
    model = batch_normed(depth=16)
    begin = parameters_to_vector(model.parameters()).detach().numpy()
    asked = {"model": model, "local_epochs": 5, "learning_rate": 1e-4, **NOMINAL}
    (plain,), (fast,) = (trained(FREE, 1, engine=engine, **asked) for engine in ("loop", "batched"))
    assert "NaN" not in caplog.text
    assert np.linalg.norm(fast.weights - plain.weights) < 1e-5 * np.linalg.norm(plain.weights - begin)


class Residual(nn.Sequential):
    """Layers in a row, and past them."""

    def forward(self, x):
        return super().forward(x) + x.flatten(1)[:, :4]


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def frozen_first_layer():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    model[1].requires_grad_(False)
    return model


def layer_that_comes_twice():
    twice, once = nn.Linear(8, 8), nn.Linear(8, 8)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), twice, nn.ReLU(), once, nn.ReLU(), twice, nn.ReLU(), nn.Linear(8, 4)
    )


def tied_weights():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[5].weight = model[3].weight
    return model


def one_relu_for_all():
    relu = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 4), relu)


UNUSUAL = {
    "a layer that comes twice": layer_that_comes_twice,
    "tied weights": tied_weights,
    "one ReLU for all": one_relu_for_all,
    "forward of its own": lambda: Residual(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)),
    "layer of its own": lambda: nn.Sequential(nn.Flatten(), Doubled(64, 8), nn.ReLU(), nn.Linear(8, 4)),
    "frozen layer": frozen_first_layer,
    "reflected edges": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_no_engine_trains_another_network_than_the_one_given(name):
    torch.manual_seed(0)
    model = UNUSUAL[name]()
    assert not is_dense(model)
    assert not is_layered(model)
    asked = {**EXACT, **NOMINAL, "processes": 1}
    plain = final_weights(model, engine="loop", **asked)
    for engine in ("auto", "vmap"):
        np.testing.assert_allclose(final_weights(model, engine=engine, **asked), plain, atol=1e-7, rtol=0)


def test_frozen_weights_are_neither_moved_nor_sent():
    model = frozen_first_layer()
    before = model[1].weight.detach().clone()
    for way in ("client", "shuffled"):
        assert len(final_weights(model, (1.0, 1.0, 1.0), **WAYS[way], engine="loop")) == 8 * 4 + 4
    torch.testing.assert_close(model[1].weight, before, rtol=0, atol=0)


@pytest.mark.parametrize("engine", ["dense", "vmap", "batched"])
@pytest.mark.parametrize("way", [*UPDATE_LEVEL, *GRADIENT_LEVEL, "poisson"])
def test_simulated_noise_and_samples_are_the_same_in_every_engine(way, engine):
    asked = {**EXACT, **{**UPDATE_LEVEL, **GRADIENT_LEVEL, "poisson": POISSON}[way]}
    plain, fast, other = (
        final_weights(MODELS["mlp"](), budgets, engine=name, **asked)
        for budgets, name in ((BUDGETS, "loop"), (BUDGETS, engine), (2 * np.array(BUDGETS), "loop"))
    )
    np.testing.assert_allclose(fast, plain, atol=1e-9, rtol=0)
    assert np.abs(plain - other).max() > 1e-3


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("way", ["gradient", "client", "shuffled"])
def test_processes_give_the_loop_bit_for_bit(processes, way):
    asked = {"budgets": (0.5, 1.0, 2.0), **WAYS[way], "processes": processes}
    alone, shared = (final_weights(small_cnn(), engine=engine, **asked) for engine in ("loop", "processes"))
    np.testing.assert_array_equal(shared, alone)


def test_arms_side_by_side_are_the_arms_one_by_one():
    data = pictures()
    asked = {"batch_size": 4, "local_epochs": 2, "learning_rate": 0.1, "clip_norm": 1.0}
    config = configured(**asked, **CLIENT)
    arms = [
        TrainingJob("free", plan_with([np.inf] * 3), data, config),
        TrainingJob("noisy", plan_with([3.0, 0.0, 1.0]), data, dataclasses.replace(config, aggregation="num_examples")),
        TrainingJob("other seed", plan_with([3.0, 1.0, 1.0], 3), data, dataclasses.replace(config, seed=5)),
        TrainingJob("private", plan_with([3.0, 1.0, 1.0]), data, configured(**asked, **SHUFFLED)),
        TrainingJob("gradient", plan_with([3.0, 1.0, 1.0]), data, configured(**asked)),
        TrainingJob("another length", plan_with([3.0, 1.0, 1.0]), data, configured(**asked | {"clip_norm": 3.0})),
        TrainingJob("in a sum", plan_with([3.0, 1.0, 1.0]), data, configured(**asked, **SUMS["secure_sum record"])),
    ]
    model = make_model("mlp", data.input_shape, 4)
    together = list(train_many(model, arms))
    assert [len(records) for records in together] == [7, 7, 1]
    for arm in arms:
        *_, alone = train_rounds(model, data, arm.plan, arm.config, run=arm.name)
        last = [records[arm.name] for records in together if arm.name in records][-1]
        np.testing.assert_array_equal(last.weights, alone.weights)
        assert last.round_index == alone.round_index
        np.testing.assert_array_equal(last.spent, alone.spent)


@pytest.mark.parametrize(
    ("model", "way", "expected"),
    [("mlp", "client", "dense"), ("mlp", "shuffled", "dense"), ("cnn", "client", "processes")],
)
def test_auto_chooses_by_model_and_says_what_it_chose(model, way, expected):
    config = configured(**WAYS[way], batch_size=4, processes=2)
    data = pictures()
    engine = Engine(flat_model(MODELS[model]()), data.features, data.labels, config, 3)
    assert engine.chosen == expected
    assert engine.name.startswith(f"{expected}, CPU, float32")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"engine": "dense"}, "not Linear layers"),
        ({"engine": "vmap", "precision": "bf16"}, "computes in float32"),
    ],
)
def test_an_engine_that_cannot_do_the_work_is_refused(change, match):
    with pytest.raises(BadInput, match=match):
        choose_engine(flat_model(small_cnn()), TrainingConfig(**change), torch.device("cpu"), 3)


@pytest.mark.parametrize("most", [1, 3, 20, MANY_SLOTS, 240])
def test_every_slot_is_computed_as_long_as_it_has_batches_and_hardly_longer(most):
    rng = np.random.default_rng(most)
    for _ in range(50):
        lengths = sorted(rng.integers(1, 100, rng.integers(1, most + 1)).tolist(), reverse=True)
        parts = stages(lengths, most)
        assert sum(steps for _, steps in parts) == lengths[0]
        assert len(parts) <= (PARTS if most >= MANY_SLOTS else FEW_PARTS)
        step, step_of_part = 0, -(-most // (PARTS if most >= MANY_SLOTS else FEW_PARTS))
        for size, steps in parts:
            moving = sum(length > step for length in lengths)
            last = sum(length > step + steps - 1 for length in lengths)
            assert moving <= size <= last + step_of_part
            step += steps


# ---- layers of many slots, where no training above takes them: other shapes, ties, padding, low precision ---------


def draws(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (5, 4)])
def test_a_slot_convolution_is_the_convolution_of_each_slot(side, height, width):
    x, taps = draws(2, 3, height, width, 4), draws(2, side, side, 4, 7, seed=1)
    convolved = slot_convolution(x, taps)
    for slot in range(2):
        plain = conv2d(x[slot].permute(0, 3, 1, 2), taps[slot].permute(3, 2, 0, 1), padding=side // 2)
        torch.testing.assert_close(convolved[slot], plain.permute(0, 2, 3, 1))
    assert torch.autograd.gradcheck(slot_convolution, (x, taps), fast_mode=True)


def test_of_pixels_that_are_alike_the_first_takes_the_gradient_as_in_pytorch():
    x = torch.ones((1, 1, 4, 4, 1), dtype=torch.float64, requires_grad=True)
    (back,) = torch.autograd.grad(relu_pool(x).sum(), x)
    plain = x.detach()[0].permute(0, 3, 1, 2).requires_grad_()
    (expected,) = torch.autograd.grad(max_pool2d(plain.relu(), 2).sum(), plain)
    torch.testing.assert_close(back[0], expected.permute(0, 2, 3, 1))
    assert back.sum() == 4


def test_rounded_copies_follow_the_weights_as_they_descend():
    model = flat_model(make_model("cnn_fmnist", (1, 8, 8), 3))
    rounding, plain = (LayeredGradients(model, torch.bfloat16, rounded=rounded) for rounded in (True, False))
    starts = model.initial_weights(0).expand(2, -1)
    held, expected = rounding.held(model.parts(starts)), plain.held(model.parts(starts))
    inputs = draws(2, 4, 1, 8, 8).detach().float()
    labels, weight = torch.tensor([[0, 1, 2, 0], [2, 1, 0, 1]]), torch.full((2, 4), 0.25)
    for _ in range(3):
        rounding.descend(held, inputs, labels, weight, 0.1)
        plain.descend(expected, inputs, labels, weight, 0.1)
    parts = rounding.given(held)
    assert parts.keys() == model.shapes.keys()
    for name, part in plain.given(expected).items():
        assert_float32_close(parts[name], part, steps=100)
    copies = [name for name in held if name not in expected]
    assert len(copies) == len(expected)
    assert all(torch.equal(held[name], held[name.removesuffix(ROUNDED)].bfloat16()) for name in copies)
    assert not torch.equal(parts["0.weight"], model.parts(starts)["0.weight"])


def test_low_precision_is_averaged_in_a_higher_one():
    x, scale, shift = 3 * draws(3, 64, 16, 16, 6) + 52, 1 + draws(3, 6, seed=1), draws(3, 6, seed=2)
    low, present = [tensor.detach().bfloat16() for tensor in (x, scale, shift)], torch.ones(3, 64, dtype=torch.bool)
    rounded = batch_norm_relu(*low, present, 1e-5)
    assert rounded.dtype == torch.bfloat16
    exact = batch_norm_relu(*(tensor.double() for tensor in low), present, 1e-5)
    torch.testing.assert_close(rounded.double(), exact, atol=0.05, rtol=2**-6)  # of bfloat16's eight bits


SHAPE, CLASSES, PICTURES = (1, 8, 8), 4, 400
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


@pytest.mark.parametrize(
    ("model", "sizes", "in_span", "at_once"),
    [
        *((model, SIZES, range(6), at_once) for model in ("softmax", "mlp", "no bias") for at_once in (1, 2, 20, None)),
        ("mlp", (5, 200, 12, 150), [0, 2], None),  # large clients beside small ones
        ("mlp", (8,) * 43, range(43), None),  # more than are multiplied at once
    ],
)
@pytest.mark.parametrize("alike", [True, False], ids=["one start", "starts of their own"])
def test_small_clients_move_as_the_plain_loop_moves_them(model, sizes, in_span, at_once, alike):
    slots = slots_from(starts_of(flat_model(MODELS[model]()), len(sizes), alike), sizes)
    engine, plain = (
        engine_of(flat_model(MODELS[model]()), len(slots), engine=name, clients_at_once=at_once)
        for name in ("dense", "loop")
    )
    assert sorted(engine._spanned.which_pay(slots)) == list(in_span)
    expected = all_updates(plain, slots)
    assert expected.abs().max() > 0.01
    for _ in range(2):  # the second time finds its Gram matrices kept
        torch.testing.assert_close(all_updates(engine, slots), expected, atol=1e-11, rtol=0)


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
        assert (fast[name] - part).norm() <= 3 * (plain[name] - part).norm()


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


# ---- worker processes: what happens when one dies, what they refuse, and how they are started ----------------------


class OnExamples(nn.Linear):
    """Does something where it trains on a batch, and not where two examples try it out."""

    def forward(self, x):
        if len(x) > 2:
            self.happens()
        return super().forward(x.flatten(1))


class Dies(OnExamples):
    def happens(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Fails(OnExamples):
    def happens(self):
        raise ZeroDivisionError("of the model itself")


def train_in_processes(module):
    return trained(FREE, 2, model=module, engine="processes", processes=2, **CLIENT)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_killed_worker_is_reported_and_the_next_training_finds_new_ones():
    with pytest.raises(MppflError, match="a worker process ended in the middle of a round"):
        train_in_processes(Dies(64, 4))
    assert len(train_in_processes(TwoPaths())) == 2


def test_an_error_in_a_worker_reaches_the_caller_as_it_is():
    with pytest.raises(ZeroDivisionError, match="of the model itself"):
        train_in_processes(Fails(64, 4))


def test_a_module_that_cannot_travel_is_refused():
    class Local(nn.Linear):
        pass

    assert can_travel(TwoPaths())
    assert not can_travel(Local(3, 2))
    with pytest.raises(BadInput, match=r"engine='processes' cannot run this training.*Use engine='auto'"):
        train_in_processes(nn.Sequential(nn.Flatten(), Local(64, 4)))


SCRIPT = """
import numpy as np
from mppfl.data import client_data
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.training import TrainingConfig, make_model, train_rounds

print("started")
rng = np.random.default_rng(0)
x, y = rng.standard_normal((20, 6)).astype(np.float32), rng.integers(0, 2, 20)
data = client_data(x, y, [np.arange(10), np.arange(10, 20)], x, y, num_classes=2)
plan = plan_from_rounds("by hand", [RoundTerms(t, 1.0, 1.0, np.ones(2)) for t in (1, 2, 3)])
config = TrainingConfig(engine="processes", processes=2, batch_size=5, local_epochs=1)
for record in train_rounds(make_model("softmax", (6,), 2), data, plan, config):
    print(record.engine, record.round_index)
    break
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    source = Path(mppfl.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["started", "processes, CPU, float32, 2 processes 1"]
