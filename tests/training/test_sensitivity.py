"""What one neighbour can move of what gets noise, measured on the engines: never more than what is declared.

Noise of a budget that is infinite is none, so `Engine.updates` shows what would have been hidden.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mppfl.privacy import LocalWork, clip_rows
from mppfl.training import ClientSlot, GradientNoise, flat_model, local_work, make_model
from mppfl.training.engines import Engine
from tests.training.trainings import (
    CLIENT,
    LOCAL,
    SHUFFLED,
    SUMS,
    configured,
    pictures,
    small_cnn,
    trained,
)

CLIP, RATE = 0.5, 0.25
ENGINES = {
    "loop": ("float32", "float64"),
    "dense": ("float32", "float64"),
    "vmap": ("float32", "float64"),
    "batched": ("float32", "float64", "tf32", "bf16"),
    "processes": ("float32",),
}
ENGINES_AND_PRECISIONS = [(engine, precision) for engine, kinds in ENGINES.items() for precision in kinds]
IN_THIS_PROCESS = [pair for pair in ENGINES_AND_PRECISIONS if pair[0] != "processes"]
EVERY_ENGINE = pytest.mark.parametrize(("engine", "precision"), ENGINES_AND_PRECISIONS)


def answers_of(monkeypatch):
    """Every mean or sum of clipped gradients that noise would be added to, as it is made."""
    seen = []
    real = GradientNoise.gradient

    def noted(self, total):
        seen.append(total.double().clone() / self.answer_divisor)
        return real(self, total)

    monkeypatch.setattr(GradientNoise, "gradient", noted)
    return seen


def two_classes(size):
    """Examples nearly alike: at weights of 0 the gradients with one label and with the other are exactly opposite."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, 1, 8, 8)) + 0.05 * rng.standard_normal((size, 1, 8, 8))
    return features.astype(np.float32), np.zeros(size, dtype=np.int64)


def moved(engine, precision, size, way, place=None):
    """What protects one client of so many examples, and its update; one label is flipped, if asked."""
    features, labels = two_classes(size)
    if place is not None:
        labels[place] = 1
    protection = {**LOCAL, **SUMS}[way]
    model = flat_model(make_model("softmax", (1, 8, 8), 2))
    asked = {"clip_norm": CLIP, "engine": engine, "precision": precision, "learning_rate": RATE, "processes": 1}
    config = configured(**asked, **protection, batch_size=size, local_epochs=1, num_steps=1)
    noise = GradientNoise(config.protection, local_work(size, config, ""), math.inf)
    start = torch.zeros(model.num_parameters, dtype=torch.float64 if precision == "float64" else torch.float32)
    slot = ClientSlot(start, [np.arange(size)], noise if config.protection.clips_examples else None)
    (update,) = torch.cat([rows.clone() for rows in Engine(model, features, labels, config, 1).updates([slot])])
    return config.protection, noise.work, update.double()


# Flipping one label among so many. A sum of 2,000 gradients in float32 moves by up to 1e-5 farther than clipped
# gradients do, in bfloat16 three times as far.
@EVERY_ENGINE
@pytest.mark.parametrize("size", [2000, 20_000])
def test_a_flipped_label_among_many_like_examples_moves_a_gradient_by_no_more_than_declared(engine, precision, size):
    ways = [way for way in ("gradient", "secure_sum record", "server record") if size == 2000 or way == "gradient"]
    for way in ways:
        protection, work, update = moved(engine, precision, size, way)
        farthest = max(
            float((moved(engine, precision, size, way, place)[2] - update).norm()) / RATE
            for place in (0, size // 2, size - 1)
        )
        assert 1 - 2.0**-5 < farthest / protection.sensitivity(work) <= 1


@pytest.mark.parametrize("size", [2000, 20_000])
@pytest.mark.parametrize("way", ["steps", "shuffled"])
@pytest.mark.parametrize(("engine", "precision"), IN_THIS_PROCESS)
def test_a_flipped_label_among_many_moves_the_answer_of_a_step_by_no_more_than_declared(
    engine, precision, way, size, monkeypatch
):
    seen = answers_of(monkeypatch)
    for place in (None, 0, size // 2, size - 1):
        protection, work, _ = moved(engine, precision, size, way, place)
    as_it_was, *others = seen
    farthest = max(float((other - as_it_was).norm()) for other in others)
    assert 1 - 2.0**-5 < farthest / protection.sensitivity(work) <= 1


CHANGES = {
    "label flipped": lambda x, y: (x, (y + 1) % 4),
    "a thousand times as large": lambda x, y: (1000 * x, y),
    "mirrored and large": lambda x, y: (-1000 * x, (y + 2) % 4),
    "nothing in it": lambda x, y: (0 * x, y),
    "infinite products": lambda x, y: (np.float32(1e38) * x, y),
    "no numbers": lambda x, y: (np.full_like(x, np.nan), y),
}
STEPPED = {"gradient": {}, "steps": LOCAL["steps"], "shuffled": SHUFFLED}


@pytest.mark.parametrize("way", STEPPED)
@pytest.mark.parametrize(
    ("kind", "engine", "precision"),
    [(kind, *pair) for kind in ("mlp", "cnn") for pair in IN_THIS_PROCESS if (kind, pair[0]) != ("cnn", "dense")],
)
def test_one_changed_record_moves_no_answer_by_more_than_declared(kind, way, engine, precision, monkeypatch):
    seen, rng, size = answers_of(monkeypatch), np.random.default_rng(1), 12
    features, labels = rng.standard_normal((size, 1, 8, 8)).astype(np.float32), rng.integers(0, 4, size)
    asked = {"clip_norm": CLIP, "engine": engine, "precision": precision, "learning_rate": RATE}
    config = configured(**asked, **STEPPED[way], batch_size=size, local_epochs=1, num_steps=1)
    noise = GradientNoise(config.protection, local_work(size, config, ""), math.inf)
    for change in (lambda x, y: (x, y), *CHANGES.values()):
        model = flat_model(make_model("mlp", (1, 8, 8), 4) if kind == "mlp" else small_cnn())
        changed_features, changed_labels = features.copy(), labels.copy()
        changed_features[3], changed_labels[3] = change(features[3], labels[3])
        start = 3 * model.initial_weights(1)  # large gradients: most examples are clipped
        slot = ClientSlot(start.double() if precision == "float64" else start, [np.arange(size)], noise)
        list(Engine(model, changed_features, changed_labels, config, 1).updates([slot]))
    farthest = torch.cdist(torch.stack(seen), torch.stack(seen)).max().item()
    assert len(seen) == 1 + len(CHANGES)
    assert 0.1 < farthest / config.protection.sensitivity(noise.work) <= 1


@pytest.mark.parametrize("way", ["client", "secure_sum client", "server client"])
@EVERY_ENGINE
def test_all_data_of_a_client_move_its_update_by_no_more_than_declared(way, engine, precision):
    protection = configured(clip_norm=CLIP, **{**LOCAL, **SUMS}[way]).protection
    rng, size, rows = np.random.default_rng(2), 40, []
    asked = {"clip_norm": CLIP, "engine": engine, "precision": precision, "learning_rate": RATE, "processes": 1}
    config = configured(**asked, **CLIENT, batch_size=8, local_epochs=2)
    order = np.arange(size).reshape(5, 8)
    for scale, label in ((1, None), (100, 0), (-100, 0), (100, 1), (0, 2), (1e-3, 3)):
        features = (scale * (1 + rng.standard_normal((size, 1, 8, 8)))).astype(np.float32)
        labels = rng.integers(0, 4, size) if label is None else np.full(size, label)
        model = flat_model(make_model("softmax", (1, 8, 8), 4))
        start = torch.zeros(model.num_parameters, dtype=torch.float64 if precision == "float64" else torch.float32)
        slot = ClientSlot(start, [*order, *order], None, epochs=2)
        rows += [
            row.clone().numpy() for group in Engine(model, features, labels, config, 1).updates([slot]) for row in group
        ]
    clipped = torch.from_numpy(clip_rows(np.array(rows), protection.clip_norm)[0]).double()
    farthest = torch.cdist(clipped, clipped).max().item()
    assert 0.5 < farthest / protection.sensitivity(LocalWork(size)) <= 1


@pytest.mark.parametrize("way", ["client", "secure_sum client", "server client", "secure_sum record", "server record"])
@pytest.mark.parametrize("size", [4, 64, 2000])
def test_one_neighbour_moves_the_mean_of_a_round_by_no_more_than_its_weight_times_what_is_declared(way, size):
    """The same through the whole round: budgets are infinite, so the mean is the sum that would have got noise."""
    data, protection = pictures((size, size), num_classes=2), {**LOCAL, **SUMS}[way]
    rows, first = [], data.members[0]
    for change in (None, 1000.0, -1000.0):
        features, labels = data.features.copy(), data.labels.copy()
        if change is not None:
            chosen = first if protection["unit"] == "client" else first[:1]
            features[chosen] *= np.float32(change)
            labels[chosen] = 1 - labels[chosen]
        other = replace(data, features=features, labels=labels)
        asked = {"precision": "float64", "learning_rate": RATE, "clip_norm": CLIP, "batch_size": 4, **protection}
        (record,) = trained((np.inf, np.inf), 1, data=other, model=make_model("linear", (1, 8, 8), 2), **asked)
        rows.append(record.weights)
    config = configured(clip_norm=CLIP, batch_size=4, **protection)
    declared = config.protection.sensitivity(local_work(size, config, ""))
    pace = RATE if config.protection.clips_examples else 1.0
    farthest = max(np.linalg.norm(one - other) for one in rows for other in rows)
    assert 0.1 < farthest / (0.5 * pace * declared) <= 1 + 1e-12


@pytest.mark.parametrize("way", ["gradient", "client"])
def test_of_the_updates_of_3000_clients_less_than_half_are_held_at_once(way):
    model = flat_model(make_model("mlp", (784,), 10))
    features, labels = np.zeros((1, 784), dtype=np.float32), np.zeros(1, dtype=np.int64)
    config = configured(batch_size=1, local_epochs=1, **LOCAL[way])
    noise = GradientNoise(config.protection, LocalWork(1), math.inf) if way == "gradient" else None
    slot, made = ClientSlot(model.initial_weights(0), [np.zeros(1, dtype=np.int64)], noise), []
    slots = (made.append(number) or slot for number in range(3000))
    places, sizes = set(), []
    for rows in Engine(model, features, labels, config, 3000).updates(slots):
        places.add(rows.data_ptr())
        sizes.append(len(rows))
        assert len(made) == sum(sizes)  # and no slot before it is computed
    assert sum(sizes) == 3000
    assert max(sizes) < 1500
    assert len(places) == 1  # each group takes the place of the one before
