"""Without clipping and noise a training is federated averaging, as twenty plain lines compute it."""

import numpy as np
import pytest

from mppfl.training import TrainingConfig, batches_of_round, local_work, make_model, stream, training_rounds
from tests.training.trainings import pictures, plan_with

SIZES = (9, 5, 12, 7)
EVERYBODY = (np.inf,) * 4
NO_CLIP = 1e9


def config_of(**changed):
    plain = {"precision": "float64", "learning_rate": 0.2, "batch_size": 4, "local_epochs": 2, "clip_norm": NO_CLIP}
    return TrainingConfig(**{"aggregation": "size", "seed": 3, **plain, **changed})


def federated_averages(data, config, num_rounds, taking_part, weighed_by):
    """Softmax regression by numpy alone: models after each round, as [weights | bias] flat, float64."""
    classes, width = data.num_classes, int(np.prod(data.input_shape))
    features = data.features.reshape(len(data.features), -1).astype(np.float64)
    first = make_model("softmax", data.input_shape, classes, seed=config.seed)[1]
    weights, bias = first.weight.detach().double().numpy(), first.bias.detach().double().numpy()
    after = []
    for round_index in range(1, num_rounds + 1):
        shares, parts = [], []
        for k in taking_part:
            w, b, vw, vb = weights.copy(), bias.copy(), np.zeros_like(weights), np.zeros_like(bias)
            work = local_work(len(data.members[k]), config, data.names[k])
            for rows in batches_of_round(work, config.privacy, stream(config.seed, "batches", round_index, k)):
                x, y = features[data.members[k][rows]], data.labels[data.members[k][rows]]
                scores = x @ w.T + b
                odds = np.exp(scores - scores.max(1, keepdims=True))
                error = (odds / odds.sum(1, keepdims=True) - np.eye(classes)[y]) / len(rows)
                vw, vb = config.momentum * vw + error.T @ x, config.momentum * vb + error.sum(0)
                w, b = w - config.learning_rate * vw, b - config.learning_rate * vb
            shares.append(weighed_by(len(data.members[k])))
            parts.append((w, b))
        total = sum(shares)
        weights = sum(share / total * w for share, (w, _) in zip(shares, parts, strict=True))
        bias = sum(share / total * b for share, (_, b) in zip(shares, parts, strict=True))
        after.append(np.concatenate([weights.reshape(classes * width), bias]))
    return after


def trained(data, config, budgets=EVERYBODY, num_rounds=3):
    model = make_model("softmax", data.input_shape, data.num_classes)
    return list(training_rounds(model, data, plan_with(budgets, num_rounds), config))


@pytest.mark.parametrize("engine", ["loop", "dense"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("aggregation", ["size", "uniform"])
def test_a_training_without_noise_is_federated_averaging(engine, momentum, aggregation):
    data, config = pictures(SIZES), config_of(engine=engine, momentum=momentum, aggregation=aggregation)
    weighed_by = float if aggregation == "size" else (lambda _: 1.0)
    expected = federated_averages(data, config, 3, range(4), weighed_by)
    records = trained(data, config)
    for record, weights in zip(records, expected, strict=True):
        np.testing.assert_allclose(record.weights, weights, atol=1e-9, rtol=0)
    assert np.abs(expected[2] - expected[0]).max() > 1e-3  # the rounds really differ


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_clients_with_budget_zero_are_left_out_and_the_others_weigh_more(momentum):
    data, config = pictures(SIZES), config_of(momentum=momentum)
    records = trained(data, config, (np.inf, 0.0, np.inf, 0.0))
    expected = federated_averages(data, config, 3, (0, 2), float)
    for record, weights in zip(records, expected, strict=True):
        np.testing.assert_allclose(record.weights, weights, atol=1e-9, rtol=0)
        np.testing.assert_allclose(record.theta, [9 / 21, 0, 12 / 21, 0], atol=1e-15)
        np.testing.assert_array_equal(record.participating, [True, False, True, False])
    with_all = federated_averages(data, config, 3, range(4), float)
    assert np.abs(with_all[-1] - expected[-1]).max() > 1e-3  # leaving somebody out matters here


def test_noise_aware_weights_without_noise_are_the_size_weights():
    data = pictures(SIZES)
    by_size, aware = (trained(data, config_of(aggregation=how)) for how in ("size", "noise_aware"))
    np.testing.assert_array_equal(aware[-1].weights, by_size[-1].weights)


def test_the_federation_learns_what_there_is_to_learn():
    data = pictures((40, 30, 50), num_test=200)
    records = trained(data, config_of(), (np.inf,) * 3, 4)
    assert records[-1].accuracy > 0.9
    assert records[-1].loss < records[0].loss
