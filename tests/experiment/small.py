"""A training of a second, how it is stopped, and what it means for two to be the same."""

from __future__ import annotations

import itertools

import numpy as np

from mppfl.experiment import experiment_from

SMALL = {
    "name": "small",
    "seed": 3,
    "mechanisms": ["mppfl", "dp_fedavg"],
    "game": {"num_clients": 5, "num_rounds": 4, "reward_rate": "common"},
    "training": {"model": "softmax", "learning_rate": 0.1, "local_epochs": 1},
    "protection": {"unit": "client", "budget_unit": 0.01},
    "output": {"checkpoint_every": 2},
}


def small(**tables):
    """A training of a second, with some values changed."""
    raw = {key: value for key, value in SMALL.items() if key != "seed" or "seeds" not in tables}
    for key, value in tables.items():
        raw[key] = {**SMALL.get(key, {}), **value} if isinstance(value, dict) else value
    return experiment_from(raw)


def require_same(runs, others):
    """Equal to the last bit, but for how long it took."""
    assert [run.name for run in runs] == [other.name for other in others]
    for run, other in zip(runs, others, strict=True):
        assert np.array_equal(run.weights, other.weights)
        for name, values in run.history.rounds.items():
            if name != "seconds":
                assert np.array_equal(values, other.history.rounds[name], equal_nan=True), name
        for name, values in run.history.clients.items():
            assert np.array_equal(values, other.history.clients[name], equal_nan=True), name
        for name in ("spent", "dp_epsilon"):
            assert np.allclose(getattr(run.accounts, name), getattr(other.accounts, name), rtol=1e-12), name
        assert np.array_equal(run.exposure, other.exposure)


class Killed(BaseException):
    """Stands for a process that ends there and then."""


def stop_after(rounds, error=Killed):
    """For `on_round`: ends a training after so many rounds."""
    counter = itertools.count(1)

    def stop(records):
        if next(counter) == rounds:
            raise error

    return stop
