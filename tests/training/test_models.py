"""Models by name: how large they are, what they answer, and where their weights come from."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from mppfl.errors import BadInput
from mppfl.training import (
    TrainingConfig,
    flat_model,
    gflop_per_example,
    history_of,
    load_weights,
    make_model,
)
from tests.training.trainings import CLIENT, FREE, WAYS, TwoPaths, batch_normed, pictures, trained


def convolution(before, after, side):
    return after * (before * side * side + 1)


def dense(before, after):
    return after * (before + 1)


def vgg(widths, num_classes, norms):
    """Convolutions, one scale and shift per channel where layers are normalised, and one dense layer on 512 values."""
    pairs = list(zip([3, *widths[:-1]], widths, strict=True))
    return sum(convolution(a, b, 3) + 2 * b * norms for a, b in pairs) + dense(512, num_classes)


VGG11 = [64, 128, 256, 256, 512, 512, 512, 512]
VGG16 = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
SIZES = {
    ("linear", (1, 28, 28), 10, "group"): 7840,
    ("softmax", (1, 28, 28), 10, "group"): 7850,
    ("mlp", (1, 8, 8), 10, "group"): dense(64, 64) + dense(64, 10),
    ("cnn_fmnist", (1, 28, 28), 10, "group"): 1_663_370,
    ("cnn_cifar", (3, 32, 32), 10, "group"): 1_756_426,
    ("vgg11", (3, 32, 32), 10, "group"): vgg(VGG11, 10, 1),
    ("vgg11", (3, 32, 32), 10, "none"): vgg(VGG11, 10, 0),
    ("vgg16", (3, 32, 32), 100, "group"): vgg(VGG16, 100, 1),
    ("vgg16", (3, 32, 32), 100, "batch"): vgg(VGG16, 100, 1),
}


@pytest.mark.parametrize(("asked", "expected"), SIZES.items(), ids=lambda value: str(value).replace(" ", ""))
def test_a_model_has_as_many_parameters_as_its_layers_say(asked, expected):
    name, shape, num_classes, norm = asked
    assert flat_model(make_model(name, shape, num_classes, norm=norm)).num_parameters == expected


NO_SHAPE = r"must be a shape such as \(1, 28, 28\) and a whole number"


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "says"),
    [
        ("cnn_fmnist", (64,), 10, r"cnn_fmnist takes pictures.*at least.*Use softmax or mlp"),
        ("cnn_cifar", (3, 3, 9), 10, r"cnn_cifar takes pictures.*at least.*Use softmax or mlp"),
        ("vgg11", (3, 28, 28), 10, r"vgg11 takes pictures.*at least.*Use softmax or mlp"),
        ("resnet", (3, 32, 32), 10, r"'resnet' is not known. Known: linear"),
        ("softmax", (3, 0, 2), 10, "nothing to learn"),
        ("mlp", 64, 10, NO_SHAPE),
        ("mlp", (1, 8, 8), "ten", NO_SHAPE),
        ("mlp", (8, 2.5), 10, NO_SHAPE),
        ("mlp", None, 3, NO_SHAPE),
    ],
)
def test_what_is_no_model_is_refused_with_what_is(name, shape, num_classes, says):
    with pytest.raises(BadInput, match=says):
        make_model(name, shape, num_classes)


def test_a_normalisation_that_is_not_known_is_refused():
    with pytest.raises(BadInput, match="norm='layer' is not known"):
        make_model("vgg11", (3, 32, 32), 10, norm="layer")


def with_nan():
    module = nn.Linear(3, 2)
    module.bias.data[1] = np.nan
    return module


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("softmax", r"must be a torch.nn.Module, got str"),
        (nn.ReLU(), "no parameters"),
        (with_nan(), "parameter bias holds NaN"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 4)),
            r"layer '1' keeps running statistics.*GroupNorm, or track_running_stats=False",
        ),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)), "running statistics"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused_with_what_to_use(module, says):
    with pytest.raises(BadInput, match=says):
        flat_model(module)


def weights_of(model):
    return torch.cat([part.detach().flatten() for part in model.parameters()])


@pytest.mark.parametrize("name", ["softmax", "mlp", "cnn_fmnist"])
def test_the_same_seed_draws_the_same_weights_and_leaves_the_global_generator_alone(name):
    state = torch.get_rng_state()
    first, again, other = (weights_of(make_model(name, (1, 8, 8), 10, seed=seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("make", [TwoPaths, batch_normed, lambda: make_model("mlp", (1, 8, 8), 4, seed=9)])
def test_the_callers_module_is_not_changed_by_a_training(make):
    module = make().eval()
    before = copy.deepcopy(module.state_dict())
    last = trained(FREE, 2, model=module, learning_rate=0.5, precision="float64", engine="loop", **CLIENT)[-1]
    assert not module.training
    assert all(part.dtype == torch.float32 and part.grad is None for part in module.parameters())
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert np.abs(last.weights - weights_of(module).numpy()).max() > 1e-3


def test_arithmetic_is_counted_by_hand():
    model = make_model("cnn_fmnist", (1, 28, 28), 10)
    forward = 28 * 28 * 32 * 25 + 14 * 14 * 64 * 25 * 32 + 3136 * 512 + 512 * 10  # products of each layer
    assert gflop_per_example(model, (1, 28, 28)) == pytest.approx(3 * 2 * forward / 1e9)
    assert not any(layer._forward_hooks for layer in model)


def test_a_records_weights_go_back_into_the_model():
    data = pictures()
    model = make_model("mlp", data.input_shape, data.num_classes)
    last = trained(FREE, 2, model=model, data=data, learning_rate=0.5)[-1]
    for weights in (last, last.weights, last.weights.tolist()):
        loaded = load_weights(make_model("mlp", data.input_shape, data.num_classes, seed=7), weights).eval()
        right = loaded(torch.from_numpy(data.test_features.copy())).argmax(1).numpy() == data.test_labels
        assert right.mean() == last.accuracy
    with pytest.raises(BadInput, match=r"Stack trains 260 parameters, but the weights have shape \(4420,\)"):
        load_weights(make_model("softmax", data.input_shape, data.num_classes), last)


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "match"),
    [
        ("softmax", (1, 5, 5), 4, r"cannot take inputs of shape \(1, 8, 8\).*Make it for this shape"),
        ("cnn_fmnist", (3, 8, 8), 4, r"cannot take inputs of shape \(1, 8, 8\)"),
        ("mlp", (1, 8, 8), 3, r"the data have 4 classes: it must give \(2, 4\). Make it with num_classes=4"),
    ],
)
@pytest.mark.parametrize("way", ["client", "shuffled"])
def test_a_model_that_does_not_fit_the_data_is_refused_in_one_line(name, shape, num_classes, match, way):
    with pytest.raises(BadInput, match=match) as refused:
        trained([1.0] * 3, model=make_model(name, shape, num_classes), **WAYS[way])
    assert "\n" not in str(refused.value)


def test_a_record_a_history_and_a_configuration_print_in_a_few_lines():
    records = trained([1.0, 0, 2.0], 2, model=make_model("mlp", (1, 8, 8), 4))
    lines = repr(records[0]).splitlines()
    assert lines[0] == "RoundRecord: round 1, 2 of 3 clients participating, reward rate 2.00"
    assert "4,420 weights" in repr(records[0])
    assert len(lines) <= 12
    assert repr(history_of(records, 3)).startswith("History of 2 rounds, 3 clients: accuracy ")
    assert repr(TrainingConfig(batch_size=4)) == "TrainingConfig(batch_size=4)"
