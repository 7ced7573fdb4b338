"""Checkpoints: whole or not there, and a resumed training is the undisturbed one."""

import dataclasses
import errno
import json
import os

import numpy as np
import pytest
import torch
from torch import nn

from mppfl.data import client_data
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    PER_CLIENT,
    PER_ROUND,
    Checkpoint,
    TrainingConfig,
    TrainingJob,
    checkpoint_after,
    history_of,
    joined,
    load_checkpoint,
    make_model,
    save_checkpoint,
    train_many,
    train_rounds,
    training_key,
)
from tests.training.trainings import pictures, plan_with

DATA = pictures()
PLAN = plan_with([0.5, 1.0, 2.0], 4)
CONFIG = TrainingConfig(batch_size=4, local_epochs=1, learning_rate=0.1, clip_norm=0.5)
MODEL = make_model("softmax", DATA.input_shape, 4)


def rounds_of(config=CONFIG, plan=PLAN, data=DATA, model=MODEL, **more):
    return list(train_rounds(model, data, plan, config, **more))


def checkpoint_of(records, config=CONFIG, plan=PLAN, data=DATA, model=MODEL):
    key = training_key(model, TrainingJob("training", plan, data, config))
    return checkpoint_after(records[-1], history_of(records, data.num_clients), key)


@pytest.fixture
def checkpoint():
    config = dataclasses.replace(CONFIG, server_optimizer="adam", average_rounds=2)
    return checkpoint_of(rounds_of(config)[:3], config)


def assert_same(one: Checkpoint, other: Checkpoint):
    for name in ("rounds_done", "clip_norm", "key"):
        assert getattr(one, name) == getattr(other, name)
    assert one.history.engine == other.history.engine
    assert one.history.refused == other.history.refused
    for mine, theirs in (
        ({"weights": one.weights}, {"weights": other.weights}),
        (one.server, other.server),
        (one.history.rounds, other.history.rounds),
        (one.history.clients, other.history.clients),
    ):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype
            assert mine[name].tobytes() == theirs[name].tobytes(), name


# ---- the file -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path, checkpoint):
    save_checkpoint(tmp_path / "new" / "folder" / "run.ckpt", checkpoint)
    assert_same(load_checkpoint(tmp_path / "new" / "folder" / "run.ckpt"), checkpoint)
    assert {"momentum", "variance", "average", "current"} < checkpoint.server.keys()
    assert len(checkpoint.history) == 3


def test_a_clip_norm_that_is_not_settled_and_refusals_come_back_too(tmp_path, checkpoint):
    history = dataclasses.replace(checkpoint.history, refused=((), ("ann", "bob"), ("Zoë",)))
    other = dataclasses.replace(checkpoint, clip_norm=0.1 + 0.2, history=history)
    save_checkpoint(tmp_path / "a", other)
    assert_same(load_checkpoint(tmp_path / "a"), other)
    save_checkpoint(tmp_path / "a", dataclasses.replace(checkpoint, clip_norm=np.nan))
    assert np.isnan(load_checkpoint(tmp_path / "a").clip_norm)


def refused_in_one_line(path):
    with pytest.raises(BadFile) as refused:
        load_checkpoint(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_checkpoint_is_refused(tmp_path, checkpoint, share):
    save_checkpoint(tmp_path / "run.ckpt", checkpoint)
    content = (tmp_path / "run.ckpt").read_bytes()
    (tmp_path / "run.ckpt").write_bytes(content[: int(share * len(content))])
    assert "not a whole checkpoint" in refused_in_one_line(tmp_path / "run.ckpt")


@pytest.mark.parametrize("content", [b"PK", b"hello\nworld\n" * 50, b"\x80\x04K\x01.", b"{}"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "run.ckpt").write_bytes(content)
    assert "not a whole checkpoint" in refused_in_one_line(tmp_path / "run.ckpt")
    np.savez(tmp_path / "a.npz", facts=np.frombuffer(b"[1, 2]", dtype=np.uint8))
    assert "not a whole checkpoint" in refused_in_one_line(tmp_path / "a.npz")
    assert "no checkpoint there" in refused_in_one_line(tmp_path / "nothing")


def test_a_checkpoint_of_another_format_is_refused_with_both_numbers(tmp_path, checkpoint):
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, checkpoint)
    with np.load(path) as file:
        arrays = dict(file)
    facts = json.loads(arrays["facts"].tobytes()) | {"format": 99}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    assert "checkpoint of format 99, this version reads 1" in refused_in_one_line(path)


def test_where_any_byte_of_the_arrays_is_damaged_the_checkpoint_is_refused(tmp_path, checkpoint):
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, checkpoint)
    content = path.read_bytes()
    directory = content.index(b"PK\x01\x02")
    refused = 0
    for at in np.random.default_rng(0).integers(0, directory, 150).tolist():
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        try:
            found = load_checkpoint(path)
        except BadFile:
            refused += 1
            continue
        assert_same(found, checkpoint)  # a byte that nothing depends on
    assert refused > 100


# ---- the disk -----------------------------------------------------------------------------------------------------


def full_disk(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("has_old", [True, False])
def test_a_full_disk_leaves_the_old_checkpoint_and_no_draft(tmp_path, checkpoint, monkeypatch, has_old):
    path = tmp_path / "run.ckpt"
    if has_old:
        save_checkpoint(path, checkpoint)
    later = dataclasses.replace(checkpoint, weights=checkpoint.weights + 1)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full_disk)
        with pytest.raises(MppflError, match=r"run.ckpt could not be written: No space left on device.*make room"):
            save_checkpoint(path, later)
    assert os.listdir(tmp_path) == (["run.ckpt"] if has_old else [])
    if has_old:
        assert_same(load_checkpoint(path), checkpoint)
    save_checkpoint(path, later)
    assert_same(load_checkpoint(path), later)


def test_an_error_that_says_the_old_checkpoint_is_untouched_is_right(tmp_path, checkpoint, monkeypatch):
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, checkpoint)
    calls = []

    def fails_the_second_time(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            full_disk(descriptor)

    monkeypatch.setattr(os, "fsync", fails_the_second_time)
    with pytest.raises(MppflError) as failed:
        save_checkpoint(path, dataclasses.replace(checkpoint, weights=checkpoint.weights + 1))
    assert "untouched" not in str(failed.value) or np.array_equal(load_checkpoint(path).weights, checkpoint.weights)


@pytest.mark.parametrize("parent", ["a file", "no permission"])
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, checkpoint, parent, monkeypatch):
    if parent == "a file":
        (tmp_path / "place").write_text("in the way")
    else:

        def forbidden(*_, **__):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("pathlib.Path.mkdir", forbidden)
    with pytest.raises(MppflError, match=r"run\.ckpt could not be written"):
        save_checkpoint(tmp_path / "place" / "run.ckpt", checkpoint)


# ---- going on -----------------------------------------------------------------------------------------------------

WAYS = {
    "plain": {},
    "momentum": {"server_optimizer": "momentum"},
    "adam": {"server_optimizer": "adam", "server_learning_rate": 0.1},
    "average": {"average_rounds": 3},
    "average with momentum": {"average_rounds": 2, "server_optimizer": "momentum"},
    "num_examples": {"aggregation": "num_examples"},
    "median clip norm": {"clip_norm": "first_round_median"},
    "local momentum": {"momentum": 0.9, "privacy": "client"},
    "gradient noise": {"privacy": "dpsgd_shuffle"},
    "float64": {"precision": "float64"},
}


@pytest.mark.parametrize("changed", WAYS.values(), ids=WAYS)
def test_a_training_resumed_after_any_round_is_the_undisturbed_one_bit_for_bit(tmp_path, changed):
    config = dataclasses.replace(CONFIG, **changed)
    undisturbed = rounds_of(config)
    whole = history_of(undisturbed, 3)
    for done in range(1, 5):
        save_checkpoint(tmp_path / "run.ckpt", checkpoint_of(undisturbed[:done], config))
        kept = load_checkpoint(tmp_path / "run.ckpt")
        rest = rounds_of(config, resume=kept)
        assert [record.round_index for record in rest] == list(range(done + 1, 5))
        for record, expected in zip(rest, undisturbed[done:], strict=True):
            assert record.weights.tobytes() == expected.weights.tobytes()
            assert record.weights.dtype == expected.weights.dtype
            assert record.server.keys() == expected.server.keys()
            assert all(record.server[name].tobytes() == expected.server[name].tobytes() for name in record.server)
        history = joined(kept.history, history_of(rest, 3))
        for name in PER_CLIENT:
            np.testing.assert_array_equal(history.clients[name], whole.clients[name])
        for name in set(PER_ROUND) - {"seconds"}:
            np.testing.assert_array_equal(history.rounds[name], whole.rounds[name])


def test_a_training_whose_first_rounds_had_nobody_resumes_with_its_clip_norm_still_open():
    budgets = [np.zeros(3), np.zeros(3), np.ones(3), np.ones(3)]
    plan = plan_from_rounds("by hand", [RoundTerms(t, 1.0, 1.0, each) for t, each in enumerate(budgets, start=1)])
    config = dataclasses.replace(CONFIG, clip_norm="first_round_median")
    undisturbed = rounds_of(config, plan)
    rest = rounds_of(config, plan, resume=checkpoint_of(undisturbed[:1], config, plan))
    assert rest[-1].weights.tobytes() == undisturbed[-1].weights.tobytes()
    assert rest[-1].clip_norm == undisturbed[-1].clip_norm > 0


def one_pixel_changed():
    features = DATA.features.copy()
    features[0, 0, 0, 0] += 1e-3
    return client_data(features, DATA.labels, DATA.members, DATA.test_features, DATA.test_labels, num_classes=4)


def one_example_less():
    members = [DATA.members[0][:-1], *DATA.members[1:]]
    return client_data(DATA.features, DATA.labels, members, DATA.test_features, DATA.test_labels, num_classes=4)


OTHERS = {
    "seed": {"config": dataclasses.replace(CONFIG, seed=1)},
    "learning rate": {"config": dataclasses.replace(CONFIG, learning_rate=0.1000001)},
    "budget unit": {"config": dataclasses.replace(CONFIG, budget_unit=2.0)},
    "average": {"config": dataclasses.replace(CONFIG, average_rounds=2)},
    "precision": {"config": dataclasses.replace(CONFIG, precision="float64")},
    "budgets": {"plan": plan_with([0.5, 1.0, 2.0000001], 4)},
    "number of rounds": {"plan": plan_with([0.5, 1.0, 2.0], 5)},
    "data": {"data": one_pixel_changed()},
    "members": {"data": one_example_less()},
    "model": {"model": make_model("linear", DATA.input_shape, 4)},
    "run": {"run": "another"},
    "round numbers": {
        "plan": plan_from_rounds("by hand", [RoundTerms(t, 2.0, 2.0, np.array([0.5, 1.0, 2.0])) for t in (5, 6, 7, 8)])
    },
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_of_another_training_is_refused(other):
    kept = checkpoint_of(rounds_of()[:2])
    with pytest.raises(BadInput, match="belongs to another training"):
        rounds_of(**other, resume=kept)


def own_module(first=1.0, activation=nn.ReLU, shift=0.0):
    """Its first layer is frozen."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8).requires_grad_(False), activation(), nn.Linear(8, 4))
    with torch.no_grad():
        module[1].weight *= first
    module.register_buffer("shift", torch.tensor(shift))
    return module


@pytest.mark.parametrize("other", [{"first": 2.0}, {"activation": nn.Tanh}, {"shift": 1.0}])
def test_a_checkpoint_of_another_frozen_layer_activation_or_buffer_is_refused(other):
    plan, config = plan_with([0.5, 1.0, 2.0], 2), dataclasses.replace(CONFIG, engine="loop")
    kept = checkpoint_of(rounds_of(config, plan, model=own_module())[:1], config, plan, model=own_module())
    assert len(rounds_of(config, plan, model=own_module(), resume=kept)) == 1
    with pytest.raises(BadInput, match="belongs to another training"):
        rounds_of(config, plan, model=own_module(**other), resume=kept)


@pytest.mark.parametrize(
    "changed", [{"engine": "loop"}, {"engine": "vmap"}, {"processes": 7}, {"clients_at_once": 1}, {"evaluate_every": 3}]
)
def test_a_training_may_go_on_with_another_engine_or_other_processes(changed):
    undisturbed = rounds_of()
    rest = rounds_of(dataclasses.replace(CONFIG, **changed), resume=checkpoint_of(undisturbed[:2]))
    np.testing.assert_allclose(rest[-1].weights, undisturbed[-1].weights, atol=1e-6)
    assert rest[-1].spent.tolist() == undisturbed[-1].spent.tolist()


def test_arms_resume_after_the_same_round_only():
    records = rounds_of()
    arms = [
        TrainingJob("training", PLAN, DATA, CONFIG, resume=checkpoint_of(records[:1])),
        TrainingJob("another", PLAN, DATA, CONFIG),
    ]
    with pytest.raises(BadInput, match="resume after the same round"):
        next(train_many(MODEL, arms))


@pytest.mark.parametrize(("noise", "times_paid"), [("seeded", 1), ("gaussian", 2)])
@pytest.mark.parametrize("privacy", ["client", "full_batch"])
def test_a_round_computed_again_is_paid_again_only_where_its_noise_is_fresh(noise, times_paid, privacy):
    config, ledger = dataclasses.replace(CONFIG, noise=noise, privacy=privacy), PrivacyLedger.in_memory()
    records = []
    for record in train_rounds(MODEL, DATA, PLAN, config, ledger=ledger):
        records.append(record)
        if len(records) == 2:
            break  # killed after round 2 was released, before its checkpoint was written
    rest = rounds_of(config, resume=checkpoint_of(records[:1], config), ledger=ledger)
    np.testing.assert_allclose(ledger.spent(["0", "1", "2"]), (3 + times_paid) * np.array([0.5, 1.0, 2.0]))
    assert rest[-1].dp_epsilon == pytest.approx(ledger.get_epsilon("2", config.dp_delta), rel=1e-9)
    if noise == "seeded":
        assert rest[0].weights.tobytes() == records[1].weights.tobytes()
