"""One record cannot move what the engines really compute farther than the mechanisms declare."""

import numpy as np
import pytest
import torch

from mppfl.learning.config import TrainingConfig
from mppfl.learning.dense import DenseGradients
from mppfl.learning.flat import flat_model
from mppfl.learning.layered import LayeredGradients
from mppfl.learning.local import Descent, Lane, Table, clipped_sum, local_update
from mppfl.learning.lockstep import VmappedGradients
from mppfl.learning.models import make_model
from mppfl.privacy.mechanism import LocalWork, privacy_mechanism
from tests.learning.trainings import small_cnn

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
    rounding = 1e-5 if dtype == torch.float32 else 1e-9  # of twelve summands of length CLIP
    assert CLIP / 10 < farthest <= 2 * CLIP * (1 + rounding)


def test_the_papers_update_moves_farther_than_it_declares():
    config = TrainingConfig(clip_norm=CLIP, learning_rate=0.05, local_epochs=5, batch_size=4)
    model = flat_model(make_model("mlp", (1, 8, 8), 4))
    inputs, labels = example_batch(torch.float32, size=64)
    start = model.initial_weights(0)
    rng = np.random.default_rng(0)
    batches = [rows for _ in range(5) for rows in np.split(rng.permutation(64), 16)]

    def clipped_update(features):
        update = local_update(model, Lane(start, batches), Table(features, labels), Descent(config.learning_rate))
        return update * min(1.0, CLIP / float(update.norm()))

    outlier = inputs.clone()
    outlier[3] *= 1000
    moved = float((clipped_update(inputs) - clipped_update(outlier)).norm())
    work = LocalWork(64, 5, 1, 4)
    assert moved > 5 * privacy_mechanism("paper").sensitivity(CLIP, work)
    assert moved <= privacy_mechanism("client").sensitivity(CLIP, work)
