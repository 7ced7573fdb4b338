"""Several trainings of the same people on one ledger: what they spend adds up, and its caps bind them all."""

from __future__ import annotations

import multiprocessing
import shutil

import numpy as np
import pytest

from mppfl.errors import BadInput, MppflError
from mppfl.experiment import find_runs, load_run, read_live, run_experiment
from mppfl.experiment.report import write_report
from mppfl.privacy import epsilon
from mppfl.privacy.ledger import PrivacyLedger
from tests.experiment.small import Killed, small, stop_after

approx = pytest.approx
CLIENTS = tuple("01234")


def real(name, **tables):
    """A training of two rounds, if not said otherwise, with noise that protects."""
    tables = {"mechanisms": ["mppfl"], "protection": {"noise": "gaussian"}} | tables
    tables["game"] = {"num_rounds": 2} | tables.get("game", {})
    return small(name=name, **tables)


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "people.sqlite"


def spent_in(ledger, run=None):
    with PrivacyLedger.open(ledger, must_exist=True) as opened:
        opened.verify()
        return opened.spent(list(CLIENTS), "client", run)


def test_two_trainings_of_the_same_people_add_up_and_each_says_so(ledger, tmp_path):
    (one,) = run_experiment(real("one"), ledger=ledger, folder=tmp_path / "a")
    with PrivacyLedger.open(ledger) as opened:
        head = opened.head
    (two,) = run_experiment(real("two", training={"seed": 9}), ledger=ledger, folder=tmp_path / "b")
    assert two.accounts.spent == approx(2 * one.accounts.spent)
    assert two.accounts.dp_epsilon == approx(epsilon(two.accounts.spent, 1e-5))
    (note,) = [note for note in two.notes if note.startswith("ε and spent ρ are those of all 2 runs in ")]
    assert note.endswith(f"this one alone ends at ε = {one.accounts.dp_epsilon.max():.4g}")
    assert not [note for note in one.notes if "runs in" in note]
    assert two.history.clients["spent"].sum(axis=0) == approx(one.accounts.spent)  # by round, of this training
    write_report([one, two], tmp_path / "page.html")
    assert "this one alone ends at" in (tmp_path / "page.html").read_text("utf-8")
    with PrivacyLedger.open(ledger) as opened:
        assert opened.runs == ("one/mppfl", "two/mppfl")
        assert opened.verify(head) == 20  # it goes on from the head noted after the first
        alone, both = (opened.get_attack_risk(run=run).true_positive_rate for run in ("two/mppfl", None))
        assert (alone < both).all()
        with pytest.raises(BadInput, match=r"run='three' has no releases in this ledger\. Runs: one/mppfl, two/mppfl"):
            opened.spent("0", run="three")
    assert not list(tmp_path.glob("*/mppfl/ledger.sqlite"))


@pytest.mark.parametrize("cap", ["cap", "epsilon_cap"])
def test_a_cap_in_the_ledger_binds_every_training_and_none_raises_it(ledger, cap):
    (one,) = run_experiment(real("one"), ledger=ledger)
    most = {"cap": 1.5 * one.accounts.spent.max(), "epsilon_cap": 1.5 * one.accounts.dp_epsilon.max()}[cap]
    (two,) = run_experiment(real("two", ledger={cap: most}), ledger=ledger)
    assert two.rounds_refused.any()
    assert getattr(two.accounts, {"cap": "spent", "epsilon_cap": "dp_epsilon"}[cap]).max() <= most
    (three,) = run_experiment(real("three", ledger={cap: 100 * most}), ledger=ledger)
    assert (three.rounds_refused >= two.rounds_refused).all()
    (four,) = run_experiment(real("four"), ledger=ledger)
    assert (four.rounds_refused >= three.rounds_refused).all()
    assert (spent_in(ledger) >= sum(spent_in(ledger, f"{name}/mppfl") for name in ("one", "two"))).all()


@pytest.mark.parametrize(
    "changed", [{"batches": "poisson", "unit": "record", "release": "steps"}, {"client_rate": 0.5}]
)
def test_samples_have_a_cap_in_epsilon_over_all_trainings(ledger, changed):
    sums = {"trust": "server", "noise": "discrete"} if "client_rate" in changed else {}
    tables = {"protection": {"noise": "gaussian", "budget_unit": 0.1, **sums, **changed}, "game": {"num_clients": 3}}
    (one,) = run_experiment(real("one", **tables), ledger=ledger)
    cap = 1.3 * float(one.accounts.dp_epsilon.max())
    (two,) = run_experiment(real("two", ledger={"epsilon_cap": cap}, **tables), ledger=ledger)
    assert two.rounds_refused.any()
    assert one.accounts.dp_epsilon.max() <= two.accounts.dp_epsilon.max() <= cap
    with PrivacyLedger.open(ledger) as opened:
        opened.verify()


def test_arms_of_a_comparison_add_up_where_they_share_a_ledger(ledger):
    runs = run_experiment(small(game={"num_rounds": 1}, ledger={"file": str(ledger)}))
    alone = sum(run.history.clients["spent"].sum(axis=0) for run in runs)
    assert spent_in(ledger) == approx(alone)
    assert all(run.accounts.spent == approx(alone) for run in runs)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"name": "other", "game": {"num_clients": 6}},
            "is the account of other clients: '5' is in this training and not",
        ),
        (
            {"name": "other", "game": {"num_clients": 4}},
            "is the account of other clients: '4' is in the ledger and not",
        ),
        ({"name": "one", "seed": 8}, "run='one/mppfl' is another training in"),
    ],
)
def test_a_ledger_of_others_or_of_another_training_of_that_name_is_refused_before_anything(
    ledger, tmp_path, other, told
):
    run_experiment(real("one", game={"num_rounds": 1, "num_clients": 5}), ledger=ledger)
    before = spent_in(ledger)
    with pytest.raises(BadInput, match=told) as refused:
        run_experiment(real(**other), ledger=ledger, folder=tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()  # so that the mistake can be corrected there
    assert (spent_in(ledger) == before).all()


def test_a_training_is_resumed_and_watched_on_a_ledger_that_others_charge(ledger, tmp_path):
    run_experiment(real("one"), ledger=ledger)
    going = real("two", game={"num_rounds": 4})
    with pytest.raises(Killed):
        run_experiment(going, ledger=ledger, folder=tmp_path / "out", on_round=stop_after(3))
    live = read_live(tmp_path / "out" / "mppfl")
    assert (live.rounds_done, live.rounds_charged) == (2, 3)
    assert live.accounts.spent == approx(spent_in(ledger))
    assert live.accounts.rounds.tolist() == [3] * 5
    with pytest.raises(BadInput, match=r"another experiment: ledger\.file: \"not given\", was"):
        run_experiment(going, folder=tmp_path / "out", resume=True)
    (run,) = run_experiment(going, ledger=ledger, folder=tmp_path / "out", resume=True)
    assert load_run(tmp_path / "out").accounts.spent == approx(run.accounts.spent)
    own = spent_in(ledger, "two/mppfl")
    by_round = run.history.clients["spent"]
    assert own == approx(by_round.sum(axis=0) + by_round[2])  # the third was paid again with fresh noise
    lost = shutil.copy(ledger, tmp_path / "copy.sqlite")
    ledger.unlink()
    with pytest.raises(MppflError, match="no such ledger"):
        run_experiment(going, ledger=ledger, folder=tmp_path / "out", resume=True)
    with PrivacyLedger.open(ledger) as opened:  # what others paid is not taken for its own
        opened.reserve("one/mppfl", 1, [])
    with pytest.raises(MppflError, match="misses releases of client '0'"):
        run_experiment(going, ledger=ledger, folder=tmp_path / "out", resume=True)
    assert spent_in(lost).shape == (5,)


def test_the_folder_of_a_ledger_that_others_charged_is_not_overwritten(tmp_path):
    first = small(game={"num_rounds": 1})
    run_experiment(first, folder=tmp_path / "out")
    own = tmp_path / "out" / "mppfl" / "ledger.sqlite"
    run_experiment(real("later"), ledger=own)
    with pytest.raises(BadInput, match=r"is the account of other trainings, too \(later/mppfl\)"):
        run_experiment(first, folder=tmp_path / "out", overwrite=True)
    assert {path.name for path in find_runs(tmp_path / "out")} == {"mppfl", "dp_fedavg"}


def train_real(name, ledger):
    run_experiment(real(name, ledger={"cap": 0.02}), ledger=ledger)


def test_two_processes_at_once_keep_one_cap(ledger):
    other = multiprocessing.get_context("spawn").Process(target=train_real, args=("one", ledger))
    other.start()
    train_real("two", ledger)
    other.join()
    assert other.exitcode == 0
    spent = spent_in(ledger)
    assert (spent <= 0.02 * (1 + 1e-9)).all()
    assert spent == approx(np.sum([spent_in(ledger, f"{name}/mppfl") for name in ("one", "two")], axis=0))


def test_a_ledger_that_is_named_is_kept():
    with pytest.raises(BadInput, match=r"file=\"people\.sqlite\" is to be kept, and keep=false keeps none"):
        small(ledger={"file": "people.sqlite", "keep": False})
