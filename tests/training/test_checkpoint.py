"""Checkpoints: whole or not there, and a resumed training is the undisturbed one."""

import dataclasses
import errno
import json
import os
from itertools import islice
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    PER_CLIENT,
    PER_ROUND,
    Checkpoint,
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
from tests.training.trainings import NOMINAL, QUICK, SUMS, WAYS, configured, pictures, plan_with, softmax_on, trained

DATA, NAMES = pictures(), ["0", "1", "2"]
PLAN = plan_with([0.5, 1.0, 2.0], 4)
MODEL = softmax_on(DATA)


def rounds_of(**asked):
    return trained(**{"plan": PLAN, "data": DATA, "model": MODEL, **asked})


def checkpoint_of(records, plan=PLAN, data=DATA, model=MODEL, **changed):
    key = training_key(model, TrainingJob("training", plan, data, configured(**{**QUICK, **changed})))
    return checkpoint_after(records[-1], history_of(records, data.num_clients), key)


@pytest.fixture
def checkpoint():
    changed = {"server_optimizer": "adam", "average_rounds": 2}
    return checkpoint_of(rounds_of(**changed)[:3], **changed)


def assert_same(one: Checkpoint, other: Checkpoint):
    for name in ("rounds_done", "clip_norm", "key"):
        assert getattr(one, name) == getattr(other, name)
    assert (one.history.engine, one.history.refused) == (other.history.engine, other.history.refused)
    ours, theirs = (
        {"weights": kept.weights, **kept.server, **kept.history.rounds, **kept.history.clients} for kept in (one, other)
    )
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert (values.dtype, values.tobytes()) == (theirs[name].dtype, theirs[name].tobytes()), name


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path, checkpoint):
    history = dataclasses.replace(checkpoint.history, refused=((), ("ann", "bob"), ("Zoë",)))
    path = tmp_path / "new" / "folder" / "run.ckpt"
    for kept in (checkpoint, dataclasses.replace(checkpoint, clip_norm=0.1 + 0.2, history=history)):
        save_checkpoint(path, kept)
        assert_same(load_checkpoint(path), kept)
    assert {"momentum", "variance", "average", "current"} < checkpoint.server.keys()
    assert len(checkpoint.history) == 3
    save_checkpoint(path, dataclasses.replace(checkpoint, clip_norm=np.nan))  # which no round has settled yet
    assert np.isnan(load_checkpoint(path).clip_norm)


def refused_in_one_line(path):
    with pytest.raises(BadFile) as refused:
        load_checkpoint(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_file_that_is_no_whole_checkpoint_is_refused(tmp_path, checkpoint):
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, checkpoint)
    whole = path.read_bytes()
    truncated = [whole[: int(share * len(whole))] for share in (0.0, 0.001, 0.2, 0.5, 0.9, 0.999)]
    flipped = [whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :] for place in (300, len(whole) // 2)]
    for content in (*truncated, *flipped, b"PK", b"hello\nworld\n" * 50, b"\x80\x04K\x01.", b"{}"):
        path.write_bytes(content)
        assert "not a whole checkpoint" in refused_in_one_line(path)
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


def test_a_full_disk_leaves_the_old_checkpoint_and_no_draft(tmp_path, checkpoint, monkeypatch):
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, checkpoint)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(MppflError, match=r"run.ckpt could not be written: No space left on device.*make room"):
        save_checkpoint(path, dataclasses.replace(checkpoint, weights=checkpoint.weights + 1))
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert_same(load_checkpoint(path), checkpoint)


# ---- going on -----------------------------------------------------------------------------------------------------

GOING_ON = {
    **{way: WAYS[way] for way in ("gradient", "steps", "shuffled", "client", "cohorts", *SUMS)},
    "momentum": {"server_optimizer": "momentum"},
    "adam": {"server_optimizer": "adam", "server_learning_rate": 0.1},
    "average": {"average_rounds": 3},
    "average with momentum": {"average_rounds": 2, "server_optimizer": "momentum"},
    "num_examples": {"aggregation": "num_examples"},
    "clip norm of the first round": NOMINAL,
    "total epsilon": {"total_epsilon": 2.0},
    "local momentum": {"momentum": 0.9, **WAYS["client"]},
    "float64": {"precision": "float64"},
}


@pytest.mark.parametrize("changed", GOING_ON.values(), ids=GOING_ON)
def test_a_training_resumed_after_any_round_is_the_undisturbed_one_bit_for_bit(tmp_path, changed):
    undisturbed = rounds_of(**changed)
    whole = history_of(undisturbed, 3)
    for done in range(1, 5):
        save_checkpoint(tmp_path / "run.ckpt", checkpoint_of(undisturbed[:done], **changed))
        kept = load_checkpoint(tmp_path / "run.ckpt")
        rest = rounds_of(**changed, resume=kept)
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
    plan = plan_from_rounds("by hand", [RoundTerms(t, 1.0, 1.0, row) for t, row in enumerate(budgets, start=1)])
    asked = {"plan": plan, **NOMINAL}
    undisturbed = rounds_of(**asked)
    rest = rounds_of(**asked, resume=checkpoint_of(undisturbed[:1], **asked))
    assert rest[-1].weights.tobytes() == undisturbed[-1].weights.tobytes()
    assert rest[-1].clip_norm == undisturbed[-1].clip_norm > 0


ONE_PIXEL = np.zeros_like(DATA.features)
ONE_PIXEL[0, 0, 0, 0] = 1e-3
OTHERS = {
    "seed": {"seed": 1},
    "learning rate": {"learning_rate": 0.1000001},
    "budget unit": {"budget_unit": 2.0},
    "average": {"average_rounds": 2},
    "precision": {"precision": "float64"},
    "budgets": {"plan": plan_with([0.5, 1.0, 2.0000001], 4)},
    "number of rounds": {"plan": plan_with([0.5, 1.0, 2.0], 5)},
    "data": {"data": dataclasses.replace(DATA, features=DATA.features + ONE_PIXEL)},
    "members": {"data": dataclasses.replace(DATA, members=(DATA.members[0][:-1], *DATA.members[1:]))},
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
    asked = {"plan": plan_with([0.5, 1.0, 2.0], 2), "model": own_module(), "engine": "loop"}
    kept = checkpoint_of(rounds_of(**asked)[:1], **asked)
    assert len(rounds_of(**asked | {"model": own_module()}, resume=kept)) == 1
    with pytest.raises(BadInput, match="belongs to another training"):
        rounds_of(**asked | {"model": own_module(**other)}, resume=kept)


@pytest.mark.parametrize(
    "changed", [{"engine": "loop"}, {"engine": "vmap"}, {"processes": 7}, {"clients_at_once": 1}, {"evaluate_every": 3}]
)
def test_a_training_may_go_on_with_another_engine_or_other_processes(changed):
    undisturbed = rounds_of()
    rest = rounds_of(**changed, resume=checkpoint_of(undisturbed[:2]))
    np.testing.assert_allclose(rest[-1].weights, undisturbed[-1].weights, atol=1e-6)
    assert rest[-1].spent.tolist() == undisturbed[-1].spent.tolist()


def test_arms_resume_after_the_same_round_only():
    arm = TrainingJob("training", PLAN, DATA, configured(**QUICK), resume=checkpoint_of(rounds_of()[:1]))
    with pytest.raises(BadInput, match="resume after the same round"):
        next(train_many(MODEL, [arm, dataclasses.replace(arm, name="another", resume=None)]))


def killed_in_round_2(ledger, **changed):
    """Records of a training that was killed after round 2 was released, before its checkpoint was written."""
    return list(islice(train_rounds(MODEL, DATA, PLAN, configured(**QUICK, **changed), ledger=ledger), 2))


@pytest.mark.parametrize(("noise", "times_paid"), [("simulated", 1), ("discrete", 2)])
@pytest.mark.parametrize("way", ["client", "gradient", *SUMS])
def test_a_round_computed_again_is_paid_again_only_where_its_noise_is_fresh(noise, times_paid, way):
    changed, ledger = {"noise": noise, **WAYS[way]}, PrivacyLedger.in_memory()
    records = killed_in_round_2(ledger, **changed)
    rest = rounds_of(**changed, resume=checkpoint_of(records[:1], **changed), ledger=ledger)
    np.testing.assert_allclose(ledger.spent(NAMES), (3 + times_paid) * records[0].spent)
    method = configured(**changed).protection.accounting
    assert rest[-1].dp_epsilon == pytest.approx(ledger.get_epsilon("2", 1e-5, method), rel=1e-9)
    assert (rest[0].weights.tobytes() == records[1].weights.tobytes()) == (noise == "simulated")


SAMPLED = {"trust": "server", "unit": "client", "client_rate": 0.5}


@pytest.mark.parametrize("way", [WAYS["client"], WAYS["gradient"], *SUMS.values(), SAMPLED], ids=str)
@pytest.mark.parametrize("times_killed", [1, 2])
def test_noise_drawn_again_takes_nobody_past_total_epsilon(way, times_killed, caplog):
    changed, ledger = {"noise": "discrete", "total_epsilon": 3.0, **way}, PrivacyLedger.in_memory()
    records = killed_in_round_2(ledger, **changed)
    resume = checkpoint_of(records[:1], **changed)
    for _ in range(times_killed - 1):  # in the last round, and everything since the checkpoint is lost
        next(train_rounds(MODEL, DATA, PLAN, configured(**QUICK, **changed), ledger=ledger, resume=resume))
    rest = rounds_of(**changed, resume=resume, ledger=ledger)
    protection = configured(**changed).protection
    spent = ledger.get_epsilon(NAMES, 1e-5, protection.accounting)
    assert len(rest) == 3
    assert 2.0 < max(spent) <= 3.0
    assert rest[-1].dp_epsilon == pytest.approx(max(spent), rel=1e-6)
    refused = [record.refused for record in rest]
    if protection.is_zcdp:  # whose budgets are smaller than the largest have something left
        assert "2" in refused[-1]
        assert "0" not in refused[0] + refused[1]
    else:
        assert refused == [("0", "1", "2"), (), ()]
    assert "opt out" in caplog.text
    assert "noise drawn again would take them past total_epsilon=3" in caplog.text


@pytest.mark.parametrize("way", SUMS)
def test_a_sum_computed_again_has_those_who_were_in_it_before(way):
    ledger, changed = PrivacyLedger.in_memory(), WAYS[way]
    ledger.set_cap("1", 1.5, configured(**changed).protection.unit)  # too little for a second round
    records = killed_in_round_2(ledger, **changed)
    assert [record.refused for record in records] == [(), ("1",)]
    spent = ledger.spent(NAMES)
    again = rounds_of(**changed, resume=checkpoint_of(records[:1], **changed), ledger=ledger)[0]
    assert again.weights.tobytes() == records[1].weights.tobytes()
    assert again.refused == ("1",)
    np.testing.assert_array_equal(again.spent, records[1].spent)
    np.testing.assert_allclose(ledger.spent(NAMES), spent + 2 * again.spent, rtol=1e-12)  # rounds 3 and 4


@pytest.mark.parametrize("way", SUMS)
def test_who_cannot_pay_twice_for_a_sum_stays_out_of_it_and_the_others_pay_what_they_paid(way):
    ledger, changed = PrivacyLedger.in_memory(), {**WAYS[way], "noise": "discrete"}
    ledger.set_cap("1", 2.5, configured(**changed).protection.unit)  # for two rounds, and not for three
    records = killed_in_round_2(ledger, **changed)
    assert records[1].participating.all()
    before = ledger.spent(NAMES)
    config = configured(**QUICK, **changed)
    resume = checkpoint_of(records[:1], **changed)
    again = next(train_rounds(MODEL, DATA, PLAN, config, ledger=ledger, resume=resume))
    assert again.refused == ("1",)
    theta = np.where(again.participating, records[1].theta, 0)
    np.testing.assert_allclose(again.theta, theta / theta.sum())
    np.testing.assert_array_equal(again.spent, np.where(again.participating, records[1].spent, 0))
    np.testing.assert_allclose(ledger.spent(NAMES) - before, again.spent)
    assert ledger.verify() == 8


@pytest.mark.parametrize("noise", ["simulated", "discrete"])
def test_noise_of_cohorts_goes_on_after_a_stop_and_is_kept_no_longer_than_needed(noise):
    changed, ledger = {**WAYS["cohorts"], "noise": noise}, PrivacyLedger.in_memory()
    records = killed_in_round_2(ledger, **changed)
    rest = rounds_of(**changed, ledger=ledger, resume=checkpoint_of(records, **changed))
    kept = [[name for name in record.server if name.startswith("noise")] for record in (*records, *rest)]
    assert kept == [["noise.000000"]] * 3 + [[]]  # nothing takes back what is left at the end
    paid = ledger.spent(NAMES)
    np.testing.assert_allclose(paid, sum(record.spent for record in (*records, *rest)))
    np.testing.assert_allclose(paid, 2 * np.array([0.5, 1.0, 2.0]), rtol=1e-5)


def test_a_sum_computed_again_with_fresh_noise_takes_nothing_back_of_the_rounds_before():
    # Else what it tells of the cohorts before would come on top of what they paid for.
    changed, ledger = {**WAYS["cohorts"], "cohorts": 3, "noise": "discrete"}, PrivacyLedger.in_memory()
    records = killed_in_round_2(ledger, **changed)
    assert len([name for name in records[1].server if name.startswith("noise")]) == 2
    again, then, _ = rounds_of(**changed, ledger=ledger, resume=checkpoint_of(records[:1], **changed))
    assert [len([name for name in r.server if name.startswith("noise")]) for r in (again, then)] == [1, 2]
    np.testing.assert_array_equal(again.spent, records[1].spent)
    np.testing.assert_allclose(ledger.spent(NAMES), 2 * again.spent + records[0].spent * 2 + then.spent)
