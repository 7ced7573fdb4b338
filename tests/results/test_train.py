"""train: every mechanism side by side, kept in a folder; killed at any moment it goes on to the same end."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from mppfl.errors import BadInput, MppflError, UnknownClient
from mppfl.learning.checkpoint import load_checkpoint
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.results import train as module
from mppfl.results.experiment import experiment_from, read_experiment
from mppfl.results.run import find_runs, load_run
from mppfl.results.train import prepare, train

SMALL = {
    "name": "small",
    "seed": 3,
    "mechanisms": ["mppfl", "fixed"],
    "network": {"num_clients": 5},
    "game": {"num_rounds": 4},
    "training": {"model": "softmax", "learning_rate": 0.1, "local_epochs": 1, "budget_unit": 0.01},
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
        for name in ("spent", "worst_case_spent", "dp_epsilon", "worst_case_epsilon"):
            assert np.allclose(getattr(run.accounts, name), getattr(other.accounts, name), rtol=1e-12), name
        assert np.array_equal(run.exposure, other.exposure)


@pytest.fixture(scope="module")
def undisturbed():
    """What the small experiment comes to when nothing happens."""
    return train(small())


# ---- what comes out ---------------------------------------------------------------------------------------------


def test_every_mechanism_is_trained_on_the_same_network_data_and_seed(undisturbed):
    ours, fixed = undisturbed
    assert [run.mechanism for run in undisturbed] == ["mppfl", "fixed"]
    assert ours.num_rounds == fixed.num_rounds == 4
    assert np.array_equal(ours.num_examples, fixed.num_examples)
    assert (ours.graph.influence != fixed.graph.influence).nnz == 0
    assert np.array_equal(ours.history.rounds["reward_rate"], fixed.history.rounds["reward_rate"])  # common reward
    assert ours.final_accuracy > fixed.final_accuracy > 0.1


def test_the_account_holds_what_the_rounds_spent(undisturbed):
    for run in undisturbed:
        spent = run.history.clients["spent"].sum(axis=0)
        assert run.accounts.spent == pytest.approx(spent)
        assert run.accounts.spent == pytest.approx(0.01 * run.history.clients["budgets"].sum(axis=0))
        assert run.accounts.worst_case_spent == pytest.approx(spent * run.num_examples**2)
        assert run.accounts.dp_epsilon.max() == pytest.approx(run.history.rounds["dp_epsilon"][-1])
        assert run.accounts.simulation


def test_exposure_costs_and_welfare_are_those_of_the_game(undisturbed):
    for run, case in zip(undisturbed, prepare(small()), strict=True):
        assert run.exposure == pytest.approx(case.solution.game.propagation @ run.accounts.spent)
        assert run.server_cost == pytest.approx(case.solution.outcome.server_costs)
        assert run.welfare == pytest.approx(case.solution.outcome.welfare)


def test_an_experiment_gives_the_same_run_twice(undisturbed):
    require_same(undisturbed, train(small()))


def test_clients_hold_as_many_examples_in_the_game_as_in_the_split():
    (case, _) = prepare(small(data={"uneven": 0.5}))
    assert np.array_equal(case.solution.game.clients.data_size, case.data.num_examples)
    assert len(set(case.data.num_examples)) > 1


def test_another_seed_of_one_purpose_changes_that_purpose_alone():
    one, other = (prepare(small(training={"seed": seed}))[0] for seed in (1, 2))
    assert np.array_equal(one.solution.plan.to_matrix(), other.solution.plan.to_matrix())
    assert all(np.array_equal(a, b) for a, b in zip(one.data.members, other.data.members, strict=True))
    assert one.config.seed != other.config.seed
    moved = prepare(small(data={"seed": 7}))[0]
    assert (moved.solution.game.graph.influence != one.solution.game.graph.influence).nnz == 0
    assert not all(np.array_equal(a, b) for a, b in zip(one.data.members, moved.data.members, strict=True))


def test_seeds_and_aggregations_multiply_the_trainings():
    chosen = small(seeds=[1, 2], mechanisms=["mppfl"], aggregations=["size", "noise_aware"])
    assert [case.name for case in prepare(chosen)] == [
        "mppfl-size-seed1",
        "mppfl-noise_aware-seed1",
        "mppfl-size-seed2",
        "mppfl-noise_aware-seed2",
    ]


def test_without_noise_nobody_is_protected():
    (run,) = train(small(mechanisms=["noiseless"], game={"num_rounds": 2}))
    assert (run.accounts.noise, run.accounts.simulation) == ("none", False)
    assert np.isinf(run.accounts.dp_epsilon).all()
    assert np.isinf(run.exposure).all()


def test_a_cap_is_kept():
    (free,) = train(small(mechanisms=["mppfl"]))
    cap = 1.5 * float(free.history.clients["spent"][0].max())
    (run,) = train(small(mechanisms=["mppfl"], ledger={"cap": cap}))
    assert run.accounts.spent.max() <= cap * (1 + 1e-9)
    assert run.rounds_refused.sum() > 0


def test_own_reward_lets_each_server_set_its_rates():
    ours, theirs = prepare(small(mechanisms=["mppfl", "social_agnostic"], game={"convention": "own"}))
    assert not np.allclose(ours.solution.plan.reward_rates, theirs.solution.plan.reward_rates)


def test_a_network_and_clients_of_ones_own_are_read(tmp_path):
    (tmp_path / "links.csv").write_text("ann,bob\nbob,cat\ncat,ann\n")
    lines = "".join(f"{name},0.5,0.5,0.1,3\n" for name in ("ann", "bob", "cat"))
    (tmp_path / "who.csv").write_text(f"name,quadratic_cost,linear_cost,noise_harm,data_size\n{lines}")
    text = 'mechanism = "mppfl"\n[network]\nsource = "links.csv"\nnum_clients = 3\n[game]\nclients = "who.csv"\n'
    (tmp_path / "own.toml").write_text(text)
    chosen = read_experiment(tmp_path / "own.toml")
    (case,) = prepare(chosen)
    assert case.data.names == ("ann", "bob", "cat")
    assert "data_size of the clients file was replaced" in case.notes[0]
    with pytest.raises(BadInput, match=r"num_clients=4, but .* has 3 clients"):
        prepare(replace(chosen, network=replace(chosen.network, num_clients=4)))
    capped = replace(chosen, ledger=replace(chosen.ledger, caps={"dan": 1.0}))
    with pytest.raises(UnknownClient, match="dan"):
        train(capped)


# ---- what is refused --------------------------------------------------------------------------------------------


def test_batches_that_the_smallest_client_cannot_fill_are_refused_with_the_largest_that_fits():
    with pytest.raises(BadInput, match=r"training.batch_size=400, but client '\d' has 28\d examples. Use at most 28\d"):
        train(small(training={"batch_size": 400}))
    prepare(small(training={"batch_size": 400, "privacy": "full_batch", "clip_norm": 1.0}))  # takes all there is


@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_a_gpu_that_is_not_there_is_said_to_be_missing(device, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=f"training.device='{device}', but PyTorch finds no GPU here"):
        train(small(training={"device": device}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadInput, match="there are 2 GPUs"):
        train(small(training={"device": "cuda:7"}))


def test_a_device_that_nobody_knows_is_refused():
    with pytest.raises(BadInput, match=r"training\.device='gpu' is not known"):
        train(small(training={"device": "gpu"}))


# ---- the folder -------------------------------------------------------------------------------------------------


def test_a_folder_keeps_runs_ledgers_and_the_experiment(tmp_path, undisturbed):
    runs = train(small(), folder=tmp_path / "out")
    require_same(runs, undisturbed)
    require_same([load_run(path) for path in find_runs(tmp_path / "out")], sorted(runs, key=lambda run: run.name))
    assert read_experiment(tmp_path / "out" / "experiment.toml") == small()
    with PrivacyLedger.open(tmp_path / "out" / "mppfl" / "ledger.sqlite", must_exist=True) as ledger:
        assert ledger.spent(list(runs[0].names)) == pytest.approx(runs[0].accounts.spent)


def test_the_stored_configuration_of_a_run_trains_it_alone(undisturbed):
    alone = train(experiment_from(undisturbed[1].config))
    require_same(alone, undisturbed[1:])


def test_a_folder_that_holds_something_is_not_written_over(tmp_path):
    out = tmp_path / "out"
    train(small(game={"num_rounds": 1}), folder=out)
    with pytest.raises(BadInput, match="holds a training already"):
        train(small(), folder=out)
    runs = train(small(), folder=out, overwrite=True)
    assert load_run(out / "mppfl").num_rounds == runs[0].num_rounds == 4
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("keep me")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="is not empty, and holds no training"):
            train(small(), folder=tmp_path / "letters", overwrite=overwrite)
    assert (tmp_path / "letters" / "mine.txt").read_text() == "keep me"


def test_an_experiment_that_cannot_be_trained_leaves_the_folder_to_the_next(tmp_path):
    for _ in range(2):
        with pytest.raises(BadInput, match="batch_size=999"):
            train(small(training={"batch_size": 999}), folder=tmp_path / "out")
    train(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    with pytest.raises(BadInput, match="batch_size=999"):
        train(small(training={"batch_size": 999}), folder=tmp_path / "out", overwrite=True)
    assert load_run(tmp_path / "out" / "mppfl").num_rounds == 1


def test_a_training_without_a_kept_ledger_cannot_be_resumed(tmp_path):
    chosen = small(game={"num_rounds": 1}, ledger={"keep": False})
    train(chosen, folder=tmp_path / "out")
    assert not (tmp_path / "out" / "mppfl" / "ledger.sqlite").exists()
    with pytest.raises(BadInput, match=r"ledger\.keep=false left no account"):
        train(chosen, folder=tmp_path / "out", resume=True)


def test_the_account_of_real_releases_is_never_overwritten(tmp_path):
    real = small(training={"noise": "gaussian"}, game={"num_rounds": 1})
    train(real, folder=tmp_path / "out")
    with pytest.raises(BadInput, match="account of real releases"):
        train(real, folder=tmp_path / "out", overwrite=True)


def test_two_trainings_do_not_share_a_folder(tmp_path):
    def meanwhile(records):
        with pytest.raises(MppflError, match="another training is at work there"):
            train(small(), folder=tmp_path / "out", resume=True)

    train(small(game={"num_rounds": 1}), folder=tmp_path / "out", on_round=meanwhile)


# ---- going on ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a process that ends there and then."""


def stop_after(rounds):
    counter = itertools.count(1)

    def stop(records):
        if next(counter) == rounds:
            raise Killed

    return stop


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_a_training_stopped_after_any_round_ends_as_if_nothing_had_happened(tmp_path, undisturbed, rounds):
    with pytest.raises(Killed):
        train(small(), folder=tmp_path / "out", on_round=stop_after(rounds))
    seen = []
    runs = train(
        small(), folder=tmp_path / "out", resume=True, on_round=lambda now: seen.append(now["mppfl"].round_index)
    )
    require_same(runs, undisturbed)
    assert seen == list(range(rounds // 2 * 2 + 1, 5))  # from the last checkpoint, taken every second round


def test_ctrl_c_loses_no_finished_round(tmp_path, undisturbed):
    def interrupt(records):
        if records["mppfl"].round_index == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small(), folder=tmp_path / "out", on_round=interrupt)
    assert load_checkpoint(tmp_path / "out" / "fixed" / "checkpoint-3.npz").rounds_done == 3
    require_same(train(small(), folder=tmp_path / "out", resume=True), undisturbed)


def test_a_finished_training_resumed_is_the_finished_training(tmp_path, undisturbed):
    train(small(), folder=tmp_path / "out")
    require_same(train(small(), folder=tmp_path / "out", resume=True), undisturbed)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_training_killed_at_any_write_goes_on_to_the_same_end(tmp_path, undisturbed, monkeypatch, step):
    # Every file but the ledger's is made durable by os.fsync before it takes its place: dying there, at the first,
    # second, third ... call, is dying between any two steps of keeping a training.
    real, calls = os.fsync, itertools.count(1)

    def dying(at):
        def fsync(handle):
            if next(calls) == at:
                raise Killed
            real(handle)

        return fsync

    for at in itertools.count(2, step):
        calls = itertools.count(1)
        out = tmp_path / f"out{at}"
        monkeypatch.setattr(os, "fsync", dying(at))
        try:
            train(small(), folder=out)
        except Killed:
            monkeypatch.setattr(os, "fsync", real)
            started = (out / "experiment.toml").exists()
            require_same(train(small(), folder=out, resume=started), undisturbed)
        else:
            break
    assert at > 20


def test_resuming_another_experiment_is_refused_with_what_differs(tmp_path):
    train(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    with pytest.raises(BadInput, match=r"holds another experiment: game.num_rounds: 4, was 1. Undo that"):
        train(small(), folder=tmp_path / "out", resume=True)
    with pytest.raises(BadInput, match="holds no training to resume"):
        train(small(), folder=tmp_path / "elsewhere", resume=True)
    with pytest.raises(BadInput, match="nothing to resume without a folder"):
        train(small(), resume=True)


def test_changed_data_behind_the_same_names_are_noticed(tmp_path, monkeypatch):
    train(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    real = module.load_data

    def other(*arguments, **options):
        data = real(*arguments, **options)
        return replace(data, train=replace(data.train, labels=np.roll(data.train.labels, 1)))

    monkeypatch.setattr(module, "load_data", other)
    with pytest.raises(BadInput, match="belongs to another training"):
        train(small(game={"num_rounds": 1}), folder=tmp_path / "out", resume=True)


def test_a_full_disk_is_said_in_one_line_and_the_last_checkpoint_stays(tmp_path, undisturbed, monkeypatch):
    real = os.fsync

    def full(handle):
        if (tmp_path / "out" / "checkpoint.json").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MppflError, match="could not be written: No space left on device") as told:
        train(small(), folder=tmp_path / "out")
    assert "\n" not in str(told.value)
    monkeypatch.setattr(os, "fsync", real)
    assert load_checkpoint(tmp_path / "out" / "mppfl" / "checkpoint-2.npz").rounds_done == 2
    require_same(train(small(), folder=tmp_path / "out", resume=True), undisturbed)


def rounds_kept(out):
    return (out / "checkpoint.json").read_bytes() if (out / "checkpoint.json").exists() else b""


def killed_at_random(path, out, times, rng):
    """Starts the training in a process of its own, again and again, and kills it -9 at random moments."""
    line = [sys.executable, "-m", "mppfl.apps.cli", "train", str(path), "--output", str(out), "--quiet", "--json"]
    for kill in range(times + 1):
        resume = ["--resume"] if (out / "experiment.toml").exists() else []
        before = rounds_kept(out)
        process = subprocess.Popen([*line, *resume], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if kill < times:
            while process.poll() is None and rounds_kept(out) == before:  # until it has gone on by itself
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
        assert process.returncode in ((0, -signal.SIGKILL) if kill < times else (0,)), told.decode()


@pytest.mark.parametrize(("times", "rounds"), [(2, 12), pytest.param(30, 90, marks=pytest.mark.slow)])
def test_a_training_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path, times, rounds):
    chosen = small(game={"num_rounds": rounds}, output={"checkpoint_every": 1})
    (tmp_path / "small.toml").write_text(chosen.to_toml())
    killed_at_random(tmp_path / "small.toml", tmp_path / "out", times, random.Random(times))
    runs = [load_run(path) for path in find_runs(tmp_path / "out")]
    require_same(runs, sorted(train(chosen), key=lambda run: run.name))
