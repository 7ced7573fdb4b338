"""train: every mechanism side by side, and what comes out of each."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from mppfl.errors import BadInput, MppflError
from mppfl.experiment import experiment_from, load_run, prepare, read_live, run_experiment, run_from_records
from mppfl.experiment.report import write_report
from mppfl.game import RoundTerms, evaluate, plan_from_rounds
from mppfl.privacy.ledger import PrivacyLedger, epsilons
from mppfl.training import make_model, train_rounds
from tests.experiment.small import SMALL, require_same, small
from tests.homes import home


def test_every_mechanism_is_trained_on_the_same_network_data_and_seed(undisturbed):
    ours, fixed = undisturbed
    assert [run.mechanism for run in undisturbed] == ["mppfl", "dp_fedavg"]
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


def test_without_noise_nobody_is_protected():
    (run,) = run_experiment(small(mechanisms=["noiseless"], game={"num_rounds": 2}))
    assert (run.accounts.noise, run.accounts.simulation) == ("none", False)
    assert np.isinf(run.accounts.dp_epsilon).all()
    assert np.isinf(run.exposure).all()


def test_more_histories_than_can_be_composed_are_accounted_for_by_orders_and_that_is_said(monkeypatch):
    training = {"privacy": "dpsgd_poisson", "clip_norm": 0.3, "batch_size": 8, "budget_unit": 0.03}
    monkeypatch.setattr(home(epsilons), "MOST_HISTORIES", 1)
    asked = []
    really = PrivacyLedger.get_epsilon
    monkeypatch.setattr(PrivacyLedger, "get_epsilon", lambda *a, **k: asked.append(a[3]) or really(*a, **k))
    tables = {"game": {"num_clients": 3, "num_rounds": 1}, "data": {"uneven": 0.5}}
    (run,) = run_experiment(small(mechanisms=["mppfl"], training=training, **tables))
    assert asked == ["rdp", "pld", "rdp"]  # of the last round, then of the account, once
    assert any("by the method rdp" in note for note in run.notes)
    assert run.accounts.dp_epsilon.max() == pytest.approx(run.history.rounds["dp_epsilon"][-1])
    assert np.array_equal(run.accounts.worst_case_epsilon, run.accounts.dp_epsilon)


def test_costs_and_welfare_are_of_what_was_given_where_a_cap_refuses():
    (run,) = run_experiment(experiment_from(SMALL | {"mechanisms": ["mppfl"], "ledger": {"cap": 0.02}}))
    game, history = prepare(experiment_from(run.config))[0].solution.game, run.history
    given = np.where(history.clients["participating"].astype(bool), history.clients["budgets"], 0.0)
    assert (given == 0).any()
    assert run.accounts.spent.max() <= 0.02 * (1 + 1e-9)
    assert run.rounds_refused.sum() > 0
    rates = history.rounds["reward_rate"]
    terms = [RoundTerms(i + 1, rate, rate, budgets) for i, (rate, budgets) in enumerate(zip(rates, given, strict=True))]
    expected = evaluate(game, plan_from_rounds("given", terms))
    np.testing.assert_allclose(run.server_cost, expected.server_costs)
    np.testing.assert_allclose(run.welfare, expected.welfare)


def test_the_stored_configuration_of_a_run_trains_it_alone(undisturbed):
    alone = run_experiment(experiment_from(undisturbed[1].config))
    require_same(alone, undisturbed[1:])


def test_provenance_says_when_the_training_started_and_how_long_its_rounds_took():
    before = datetime.now(UTC).replace(microsecond=0)
    first: list[datetime] = []
    (run, _) = run_experiment(small(), on_round=lambda records: first.append(datetime.now(UTC)))
    assert before <= datetime.fromisoformat(run.provenance.started) <= first[0]
    assert run.provenance.seconds == pytest.approx(run.history.rounds["seconds"].sum())


@pytest.mark.parametrize("noise", ["seeded", "gaussian", "discrete"])
def test_whoever_gives_most_ends_at_the_epsilon_that_was_asked_for(noise):
    sound = {"privacy": "full_batch_steps", "clip_norm": 0.5, "noise": noise}
    raw = {key: value for key, value in SMALL["training"].items() if key != "budget_unit"}
    runs = run_experiment(experiment_from(SMALL | {"training": raw | sound | {"dp_epsilon": 2.0}}))
    for run in runs:
        assert 1.999 < run.accounts.dp_epsilon.max() <= 2.0
        assert run.history.rounds["dp_epsilon"][-1] <= 2.0
        unit = run.setting("budget_unit")
        assert run.accounts.spent == pytest.approx(unit * run.history.clients["budgets"].sum(axis=0))
        told = f"budget_unit={unit:.6g} was chosen so that no client's final ε exceeds 2 at δ = 1e-05"
        assert told in run.notes
    units = [run.setting("budget_unit") for run in runs]
    assert units[0] != pytest.approx(units[1])  # every training has its own
    if noise == "seeded":
        require_same(run_experiment(experiment_from(runs[1].config)), runs[1:])  # stored with the unit that was found


# ---- a loop of one's own ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_training():
    """A case of the small experiment, trained by a loop outside `train`."""
    case, ledger = prepare(small())[0], PrivacyLedger.in_memory()
    model = make_model("softmax", case.data.input_shape, case.data.num_classes)
    records = list(train_rounds(model, case.data, case.solution.plan, case.config, ledger=ledger, run="mppfl"))
    return records, case.solution, case.data, case.config, ledger


def test_a_training_of_ones_own_becomes_the_run_that_train_returns(own_training, undisturbed, tmp_path):
    run = run_from_records(*own_training, name="mppfl", model="softmax")
    require_same([run], undisturbed[:1])
    assert np.array_equal(run.server_cost, undisturbed[0].server_cost)
    assert np.array_equal(run.welfare, undisturbed[0].welfare)
    assert (run.setting("model"), run.config["data"]["name"], run.mechanism) == ("softmax", "digits", "mppfl")
    require_same([load_run(run.save(tmp_path))], [run])
    assert write_report([run], tmp_path / "report.html").stat().st_size > 10_000
    assert read_live(tmp_path).finished


def test_a_loop_that_stopped_early_is_a_shorter_run(own_training):
    records, *rest = own_training
    run = run_from_records(records[:3], *rest)
    assert (run.num_rounds, len(run.server_cost)) == (3, 3)


def test_records_that_belong_to_nothing_are_refused(own_training):
    records, solution, data, config, ledger = own_training
    with pytest.raises(BadInput, match="at least one round"):
        run_from_records([], solution, data, config, ledger)
    with pytest.raises(BadInput, match="8 records and data of 5 clients do not belong to a plan of 4 rounds"):
        run_from_records(records * 2, solution, data, config, ledger)
    with PrivacyLedger.in_memory() as empty, pytest.raises(MppflError, match="misses releases of client"):
        run_from_records(records, solution, data, config, empty)
