"""One record cannot move what the engines really compute farther than the mechanisms declare."""

import numpy as np
import pytest
import torch

from mppfl.privacy import LocalWork, privacy_mechanism
from mppfl.training import (
    ClientSlot,
    Descent,
    GradientNoise,
    Table,
    TrainingConfig,
    clip_factors,
    clipped_sum,
    flat_model,
    local_update,
    make_model,
)
from mppfl.training.engines import DenseGradients, Engine, LayeredGradients, VmappedGradients
from tests.training.trainings import small_cnn

CLIP = 0.5
CHANGES = {
    "label flipped": lambda x, y: (x, (y + 1) % 4),
    "ten times as large": lambda x, y: (10 * x, y),
    "a thousand times as large": lambda x, y: (1000 * x, y),
    "mirrored and large": lambda x, y: (-1000 * x, (y + 2) % 4),
    "nothing in it": lambda x, y: (0 * x, y),
}


def example_batch(dtype, seed=0, size=12):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((size, 1, 8, 8))).to(dtype), torch.from_numpy(rng.integers(0, 4, size))


def sum_by(engine, model, weights, inputs, labels):
    """The sum of clipped gradients as each engine finds it, flat."""
    if engine == "loop":
        return clipped_sum(model, weights, inputs, labels, CLIP)
    gradients = {"dense": DenseGradients, "batched": LayeredGradients, "vmap": VmappedGradients}[engine](model)
    ones = torch.ones((1, len(labels)), dtype=inputs.dtype)
    found = gradients(gradients.held(model.parts(weights[None])), inputs[None], labels[None], ones, CLIP)
    return torch.cat([part.flatten(1) for part in gradients.given(found).values()], 1)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("mlp", "loop"), ("mlp", "dense"), ("mlp", "batched"), ("mlp", "vmap"), ("cnn", "loop"), ("cnn", "batched")],
)
def test_a_changed_record_moves_the_clipped_sum_by_at_most_twice_the_clip_norm(kind, engine, dtype):
    model = flat_model(make_model("mlp", (1, 8, 8), 4) if kind == "mlp" else small_cnn())
    model.module.to(dtype)
    weights = 3 * model.initial_weights(1).to(dtype)  # large gradients: most examples are clipped
    inputs, labels = example_batch(dtype)
    answers = {"as it was": sum_by(engine, model, weights, inputs, labels)}
    for name, change in CHANGES.items():
        other_inputs, other_labels = inputs.clone(), labels.clone()
        other_inputs[3], other_labels[3] = change(inputs[3], labels[3])
        answers[name] = sum_by(engine, model, weights, other_inputs, other_labels)
    stack = torch.stack(list(answers.values())).double()
    farthest = torch.cdist(stack, stack).max().item()
    assert CLIP / 10 < farthest <= 2 * CLIP


@pytest.mark.parametrize("engine", ["loop", "dense", "vmap"])
def test_a_flipped_label_among_many_like_examples_moves_what_gets_noise_by_no_more_than_declared(engine, monkeypatch):
    """Two classes at weights of 0: the gradients of an example with one label and with the other are exactly opposite,
    and a sum of 2,000 such in float32 would move by up to 1e-5 farther than the clipped gradients do."""
    size, answers = 2000, []
    monkeypatch.setattr(GradientNoise, "gradient", lambda self, total: answers.append(total) or total)
    model = flat_model(make_model("softmax", (1, 28, 28), 2))
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, 1, 28, 28)) + 0.05 * rng.standard_normal((size, 1, 28, 28))
    config = TrainingConfig(clip_norm=CLIP, engine=engine, privacy="full_batch")
    noise = GradientNoise(
        privacy_mechanism("full_batch"), CLIP, LocalWork(size, 1, 1, size), "seeded", 1.0, rng=np.random.default_rng(0)
    )
    for flipped in (None, 0, size // 2, size - 1):
        labels = np.zeros(size, dtype=np.int64)
        labels[[] if flipped is None else flipped] = 1
        slot = ClientSlot(torch.zeros(model.num_parameters), [np.arange(size)], noise)
        engine = Engine(model, features.astype(np.float32), labels, config, 1)
        engine.updates([slot])
    as_it_was, *others = (answer.double() for answer in answers)
    moved = [float((answer - as_it_was).norm()) for answer in others]
    assert 2 * CLIP * (1 - 1e-6) < max(moved) <= 2 * CLIP


@pytest.mark.parametrize("norm", [CLIP * (1 - 2.0**-24), CLIP, CLIP * (1 + 1e-9), 1e3, 1e30])
@pytest.mark.parametrize("num_summed", [1, 50, 2**14, 10**6])
def test_clip_factors_leave_room_for_the_rounding_of_the_sum(norm, num_summed):
    factor = clip_factors(torch.tensor([norm], dtype=torch.float64), CLIP, num_summed).item()
    excess = num_summed * (num_summed + 3) * 2.0**-53
    assert factor * norm * (1 + excess) < CLIP
    assert factor * norm > CLIP * (1 - 4 * max(excess, 2.0**-24))


def test_the_papers_update_moves_farther_than_it_declares():
    config = TrainingConfig(clip_norm=CLIP, learning_rate=0.05, local_epochs=5, batch_size=4)
    model = flat_model(make_model("mlp", (1, 8, 8), 4))
    inputs, labels = example_batch(torch.float32, size=64)
    start = model.initial_weights(0)
    rng = np.random.default_rng(0)
    batches = [rows for _ in range(5) for rows in np.split(rng.permutation(64), 16)]

    def clipped_update(features):
        update = local_update(model, ClientSlot(start, batches), Table(features, labels), Descent(config.learning_rate))
        return update * min(1.0, CLIP / float(update.norm()))

    outlier = inputs.clone()
    outlier[3] *= 1000
    moved = float((clipped_update(inputs) - clipped_update(outlier)).norm())
    work = LocalWork(64, 5, 1, 4)
    assert moved > 5 * privacy_mechanism("paper").sensitivity(CLIP, work)
    assert moved <= privacy_mechanism("client").sensitivity(CLIP, work)
