"""From an experiment to its trainings and runs: games, data and plans, what is refused, and what comes out of each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from mppfl.errors import BadInput, MppflError, NoEquilibrium
from mppfl.experiment import (
    experiment_from,
    load_run,
    prepare,
    read_experiment,
    read_live,
    run_experiment,
    run_from_records,
    solve_all,
)
from mppfl.experiment.report import report_page, write_report
from mppfl.privacy.ledger import PrivacyLedger, epsilons
from mppfl.text import number
from mppfl.training import make_model, train_rounds
from tests.experiment.small import SMALL, Killed, require_same, small, stop_after
from tests.homes import home


def same_members(data, other):
    return all(np.array_equal(a, b) for a, b in zip(data.members, other.members, strict=True))


# ---- games, data and plans --------------------------------------------------------------------------------------


def test_a_training_plays_the_same_game_but_for_the_numbers_of_examples_which_change_no_budget_inside_the_bounds():
    chosen = small(data={"uneven": 0.5})
    cases, game = prepare(chosen), chosen.game.build()
    trained, solved = cases[0].solution.game, solve_all(chosen.game, chosen.mechanisms, game)
    assert (trained.graph.influence != game.graph.influence).nnz == 0
    for name in ("quadratic_cost", "linear_cost", "noise_harm", "budget_min", "budget_max"):
        assert np.array_equal(getattr(trained.clients, name), getattr(game.clients, name))
    assert (game.clients.data_size == 1).all()
    assert np.array_equal(trained.clients.data_size, cases[0].data.num_examples)
    assert len(set(trained.clients.data_size)) > 1
    for case in cases:
        assert np.array_equal(case.solution.plan.to_matrix(), solved[case.name].plan.to_matrix())


@pytest.fixture
def three_friends(tmp_path):
    """An experiment with a clients file that bounds cat to [0.1, 0.2]."""

    def read(game: str = "", bounds: tuple[str, str] = ("0,inf", "0.1,0.2")):
        (tmp_path / "edges.csv").write_text("ann,bob\nbob,cat\ncat,ann\n")
        rows = [f"{name},1,0.5,0.1,3,{bounds[name == 'cat']}\n" for name in ("ann", "bob", "cat")]
        header = "name,quadratic_cost,linear_cost,noise_harm,data_size,budget_min,budget_max\n"
        (tmp_path / "people.csv").write_text(header + "".join(rows))
        text = f'[game]\ngraph = "edges.csv"\nnum_clients = 3\nclients = "people.csv"\n{game}\n'
        (tmp_path / "three.toml").write_text(text)
        return read_experiment(tmp_path / "three.toml")

    return read


def test_bounds_hold_in_a_training_and_the_narrower_of_two_counts(three_friends):
    for case in prepare(small(game={"budget_min": 0.05, "budget_max": 0.3})):
        budgets = case.solution.plan.to_matrix()
        assert 0.05 - 1e-12 <= budgets.min() <= budgets.max() <= 0.3 + 1e-12
    clients = three_friends("budget_min = 0.05\nbudget_max = 1").game.build().clients
    assert clients.budget_min.tolist() == [0.05, 0.05, 0.1]
    assert clients.budget_max.tolist() == [1.0, 1.0, 0.2]
    with pytest.raises(BadInput, match=r"leave client 'cat' no budget: at least 0\.3, at most 0\.2 \(1 such\)"):
        three_friends("budget_min = 0.3").game.build()
    with pytest.raises(NoEquilibrium, match="budget_max is 0 for all 3 clients"):
        three_friends(bounds=("0,0", "0,0")).game.build()


def test_a_network_and_clients_of_ones_own_are_read(three_friends):
    chosen = three_friends()
    (case,) = prepare(chosen)
    assert case.data.names == ("ann", "bob", "cat")
    assert "data_size of the clients file was replaced" in case.notes[0]
    with pytest.raises(BadInput, match=r"num_clients=4, but .* has 3 clients"):
        prepare(replace(chosen, game=replace(chosen.game, num_clients=4)))


def test_another_seed_of_one_purpose_changes_that_purpose_alone():
    first, second, moved = (
        prepare(small(**tables))[0]
        for tables in ({"training": {"seed": 1}}, {"training": {"seed": 2}}, {"data": {"seed": 7}})
    )
    assert np.array_equal(first.solution.plan.to_matrix(), second.solution.plan.to_matrix())
    assert same_members(first.data, second.data)
    assert first.config.seed != second.config.seed
    assert (moved.solution.game.graph.influence != first.solution.game.graph.influence).nnz == 0
    assert not same_members(first.data, moved.data)


def test_seeds_and_aggregations_multiply_the_trainings_which_share_one_table_of_examples():
    chosen = small(seeds=[1, 2], mechanisms=["mppfl"], aggregations=["num_examples", "noise_aware"])
    several, (alone,) = prepare(chosen), prepare(small(seeds=[2], mechanisms=["mppfl"]))
    names = [f"mppfl-{weights}-seed{seed}" for seed in (1, 2) for weights in ("num_examples", "noise_aware")]
    assert [case.name for case in several] == names
    shared = several[-1].data  # one table of examples
    assert shared.features is several[0].data.features
    assert not shared.features.flags.writeable
    for name in ("features", "labels", "test_features", "test_labels"):
        assert np.array_equal(getattr(shared, name), getattr(alone.data, name))
    assert same_members(shared, alone.data)
    assert not same_members(shared, several[0].data)


def test_under_its_own_reward_a_case_has_its_own_rates_and_the_options_of_its_mechanism_alone():
    game = {"reward_rate": "own", "fixed_budget": "mean", "payment_limit": 2.0}
    cases = prepare(small(mechanisms=["mppfl", "dp_fedavg", "budget_limited", "social_agnostic"], game=game))
    options = [(case.experiment.game.fixed_budget, case.experiment.game.payment_limit) for case in cases]
    assert options == [("min", None), ("mean", None), ("min", 2.0), ("min", None)]
    assert not np.allclose(cases[0].solution.plan.reward_rates, cases[3].solution.plan.reward_rates)


def test_batches_that_the_smallest_client_cannot_fill_and_an_epsilon_under_infinite_budgets_are_refused():
    with pytest.raises(BadInput, match=r"training.batch_size=400, but client '\d' has 28\d examples. Use at most 28\d"):
        prepare(small(training={"batch_size": 400}))
    prepare(small(training={"batch_size": 400}, protection={"unit": "record"}))  # takes all there is
    kept = SMALL | {"protection": {"total_epsilon": 2.0}, "mechanisms": ["mppfl", "noiseless"]}
    with pytest.raises(BadInput, match=r"total_epsilon=2 cannot be kept by 'noiseless', whose budgets are infinite"):
        prepare(experiment_from(kept))


def test_the_private_recipe_asks_every_client_for_the_same_in_every_round():
    recipe = Path(__file__).parents[2] / "examples" / "fashion_mnist_private.toml"
    (case,) = prepare(read_experiment(recipe, ["data.name=digits", "data.features=none"]))
    assert np.array_equal(case.solution.plan.to_matrix(), np.ones((60, 20)))
    rho = 60 * case.config.protection.budget_unit
    assert rho == pytest.approx(0.2585649)  # of ε = 3 at δ = 1e-5, by dp-accounting


# ---- what comes out ---------------------------------------------------------------------------------------------


def test_the_stored_configuration_of_a_run_trains_it_alone(undisturbed):
    ours, fixed = undisturbed
    require_same(run_experiment(experiment_from(fixed.config)), [fixed])
    assert np.array_equal(ours.history.rounds["reward_rate"], fixed.history.rounds["reward_rate"])  # common reward
    assert not np.array_equal(ours.weights, fixed.weights)


def test_more_histories_than_can_be_composed_are_accounted_for_by_orders_and_that_is_said(monkeypatch):
    poisson = {"unit": "record", "release": "steps", "batches": "poisson", "clip_norm": 0.3, "budget_unit": 0.03}
    monkeypatch.setattr(home(epsilons), "MOST_HISTORIES", 1)
    asked = []
    really = PrivacyLedger.get_epsilon
    monkeypatch.setattr(PrivacyLedger, "get_epsilon", lambda *a, **k: asked.append(a[3]) or really(*a, **k))
    tables = {"game": {"num_clients": 3, "num_rounds": 1}, "data": {"uneven": 0.5}}
    (run,) = run_experiment(small(mechanisms=["mppfl"], training={"batch_size": 8}, protection=poisson, **tables))
    assert asked == ["pld", "rdp"] * 2  # of the last round, then of the account
    assert any("by the method rdp" in note for note in run.notes)
    assert run.accounts.dp_epsilon.max() == pytest.approx(run.history.rounds["dp_epsilon"][-1])


def test_provenance_says_when_the_training_started_and_how_long_its_rounds_took():
    before = datetime.now(UTC).replace(microsecond=0)
    (run, _) = run_experiment(small())
    assert before <= datetime.fromisoformat(run.provenance.started) <= datetime.now(UTC)
    assert run.provenance.seconds == pytest.approx(run.history.rounds["seconds"].sum())


def test_whoever_gives_most_ends_at_the_epsilon_that_was_asked_for():
    steps = {"release": "steps", "clip_norm": 0.5, "total_epsilon": 2.0}
    runs = run_experiment(experiment_from(SMALL | {"protection": steps}))
    for run in runs:
        assert 1.999 < run.accounts.dp_epsilon.max() <= 2.0
        assert run.history.rounds["dp_epsilon"][-1] <= 2.0
        unit = run.setting("budget_unit")
        assert run.accounts.spent == pytest.approx(unit * run.history.clients["budgets"].sum(axis=0))
        assert f"budget_unit={unit:.6g} was chosen so that no client's final ε exceeds 2 at δ = 1e-05" in run.notes
    assert runs[0].setting("budget_unit") != pytest.approx(runs[1].setting("budget_unit"))  # every training has its own
    require_same(run_experiment(experiment_from(runs[1].config)), runs[1:])  # stored with the unit that was found


# ---- a loop of one's own ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_training():
    """A case of the small experiment, trained by a loop outside `run_experiment`."""
    case, ledger = prepare(small())[0], PrivacyLedger.in_memory()
    model = make_model("softmax", case.data.input_shape, case.data.num_classes)
    records = list(train_rounds(model, case.data, case.solution.plan, case.config, ledger=ledger, run="mppfl"))
    return records, case.solution, case.data, case.config, ledger


def test_a_training_of_ones_own_becomes_the_run_that_train_returns(own_training, undisturbed, tmp_path):
    run = run_from_records(*own_training, name="mppfl", model="softmax")
    require_same([run, load_run(run.save(tmp_path))], [undisturbed[0]] * 2)
    assert np.array_equal(run.server_cost, undisturbed[0].server_cost)
    assert np.array_equal(run.welfare, undisturbed[0].welfare)
    assert (run.setting("model"), run.config["data"]["name"], run.mechanism) == ("softmax", "digits", "mppfl")
    assert write_report([run], tmp_path / "report.html").stat().st_size > 10_000
    assert read_live(tmp_path).finished
    records, *rest = own_training
    shorter = run_from_records(records[:3], *rest)  # a loop that stopped early
    assert (shorter.num_rounds, len(shorter.server_cost)) == (3, 3)


def test_records_that_belong_to_nothing_are_refused(own_training):
    records, *rest, _ = own_training
    with PrivacyLedger.in_memory() as empty:
        for some, message in (
            ([], "at least one round"),
            (records * 2, "8 records and data of 5 clients do not belong to a plan of 4 rounds"),
            (records, "misses releases of client"),
        ):
            with pytest.raises(MppflError, match=message):
                run_from_records(some, *rest, empty)


def test_a_clip_norm_that_follows_a_quantile_is_in_the_rounds_the_report_and_a_resumed_training(tmp_path):
    protection = {"clip_quantile": 0.5, "clip_norm": 0.01, "trust": "secure_sum", "budget_unit": 100.0}
    followed = small(protection=protection, mechanisms=["mppfl"])
    (run,) = run_experiment(followed)
    norms = run.history.rounds["clip_norm"]
    assert norms[0] == 0.01
    assert len(set(norms)) == 4
    assert run.to_pandas()["clip_norm"].tolist() == norms.tolist()
    assert (
        f"The clip norm went from {number(0.01)} in the first round to {number(norms[-1])} in the last"
        in report_page([run])
    )
    with pytest.raises(Killed):
        run_experiment(followed, folder=tmp_path / "run", on_round=stop_after(3))
    require_same(run_experiment(followed, folder=tmp_path / "run", resume=True), [run])


@pytest.mark.parametrize("trust", ["server", "secure_sum"])
def test_cohorts_of_an_experiment_join_in_turns_and_go_on_where_they_stopped(tmp_path, trust):
    asked = {**SMALL["protection"], "trust": trust, "cohorts": 2, "total_epsilon": 2.0}
    del asked["budget_unit"]
    chosen = replace(small(mechanisms=["mppfl"]), protection=asked, training=SMALL["training"])
    (run,) = run_experiment(chosen, folder=tmp_path / "whole")
    joined = run.history.clients["participating"].astype(bool)
    assert sorted(joined.sum(axis=1).tolist()) == [2, 2, 3, 3]
    assert (joined[:2].sum(axis=0) == 1).all()
    assert (joined[2:] == joined[:2]).all()
    assert ((run.history.clients["payments"] > 0) == joined).all()
    assert 1.99 < run.accounts.dp_epsilon.max() <= 2
    assert "clients join in turns, each of 2 cohorts every 2 rounds" in run.notes
    assert load_run(tmp_path / "whole" / "mppfl").accounts.protection.endswith("in 2 cohorts")
    with pytest.raises(Killed):
        run_experiment(chosen, folder=tmp_path / "stopped", on_round=stop_after(3))
    (again,) = run_experiment(chosen, folder=tmp_path / "stopped", resume=True)
    require_same([run], [again])
