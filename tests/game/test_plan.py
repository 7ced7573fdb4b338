"""Plans that somebody else made: what is refused, in whose name, and that looking costs next to nothing."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest

import mppfl
from mppfl.errors import BadFile
from mppfl.game import (
    MECHANISMS,
    AlongLine,
    Comparison,
    Horizon,
    Mechanism,
    Plan,
    Stored,
    budgets_along,
    check_plan,
    load_plan,
    rounds_up_to,
)
from tests.game.games import paper_scale_game, two_friends

GAME = paper_scale_game(1, num_clients=8, preset="benign")


def of_budgets(budgets, prices=1.0, rate=1.0):
    """A mechanism that gives everybody these budgets in every round."""

    def mine(game, horizon):
        return mppfl.plan_from_rounds("mine", [mppfl.RoundTerms(int(t), rate, prices, budgets) for t in horizon.rounds])

    return mine


def with_one(value):
    values = np.full(8, 0.3)
    values[5] = value
    return values


def held(budgets):
    """A mechanism whose plan holds budgets in a form of its own."""
    return lambda game, horizon: Plan("mine", horizon.rounds, np.ones(len(horizon.rounds)), budgets, 8)


def stored(rows, row_of_round):
    return held(Stored(np.array(rows), np.array(row_of_round)))


@pytest.mark.parametrize(
    ("mechanism", "told"),
    [
        (of_budgets(with_one(np.nan)), "mechanism 'mine': budgets hold nan; each must be at least 0."),
        (of_budgets(with_one(-1.0)), "mechanism 'mine': budgets hold -1; each must be at least 0."),
        (of_budgets(np.ones(7)), "mechanism 'mine' planned for 7 clients of 8."),
        (of_budgets(np.ones(8), prices=with_one(np.nan)), "mechanism 'mine': prices hold nan"),
        (of_budgets(np.ones(8), prices=with_one(np.inf)), "mechanism 'mine': prices hold inf; each must be finite"),
        (of_budgets(np.ones(8), prices=np.ones(7)), "'mine', round 1: budgets of shape (8,) and prices of shape (7,)"),
        (of_budgets(np.ones(8), rate=np.nan), "mechanism 'mine': reward_rates=nan at position 0"),
        (of_budgets(np.ones(8), rate=-2.0), "mechanism 'mine': reward_rates=-2 at position 0"),
        (of_budgets(np.ones(8) * 1j), "'mine', round 1: budgets must be real numbers, got array([0.+1.j"),
        (of_budgets(["a"] * 8), "'mine', round 1: budgets must be real numbers, got ['a'"),
        (of_budgets([[1.0], [1.0, 2.0]]), "'mine', round 1: budgets must be real numbers, one each, got [[1.0], [1.0"),
        (of_budgets(None), "'mine', round 1: budgets must be real numbers, got None"),
        (lambda game, horizon: None, "mechanism 'mine' returned NoneType, not a plan."),
        (held(np.ones((3, 8))), "mechanism 'mine': budgets are held as ndarray, not round by round."),
        (stored([[1.0] * 8], [0.0] * 3), "mechanism 'mine': budgets have row_of_round=array([0., 0., 0.])"),
        (stored([[1.0] * 8], [0, 1, 2]), "mechanism 'mine': budgets have row_of_round=array([0, 1, 2])"),
        (stored([[1.0] * 8], [0, 0]), "budgets have row_of_round=array([0, 0]) for"),
        (stored([1.0] * 8, [0, 0, 0]), "mechanism 'mine': budgets have shape () for 8 clients"),
    ],
)
@pytest.mark.parametrize("participation", ["everyone", "rational"])
def test_a_plan_that_cannot_be_is_refused_in_its_mechanisms_name(mechanism, told, participation):
    if told.startswith("mechanism 'mine': budgets have row") and participation == "rational":
        pytest.skip("rounds are then asked for one by one")
    mine = Mechanism(mechanism, "mine")
    with pytest.raises(mppfl.BadInput) as refused:
        mppfl.solve(GAME, mine, num_rounds=3, participation=participation)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(mppfl.BadInput, match=r"'theirs'|'mine', round 1"):
        mppfl.compare(GAME, {"mppfl": MECHANISMS["mppfl"], "theirs": mine}, num_rounds=3)


def test_a_plan_of_other_rounds_is_refused():
    def half(game, horizon):
        return mppfl.plan_from_rounds("half", [mppfl.RoundTerms(1, 1.0, 1.0, np.full(game.num_clients, 0.3))])

    told = r"mechanism 'half' planned 1 round \(1\), and was asked for 3 rounds \(1 to 3\)\."
    with pytest.raises(mppfl.BadInput, match=told):
        mppfl.solve(GAME, half, num_rounds=3)
    with pytest.raises(mppfl.BadInput, match="the plan of mechanism 'x' has no rounds"):
        mppfl.plan_from_rounds("x", [])


def test_a_price_for_all_that_is_not_the_rate_is_paid_as_it_is_given():
    for prices in (2.0, 2, np.full(3, 2.0)):
        plan = mppfl.plan_from_rounds("mine", [mppfl.RoundTerms(1, 1.0, prices, np.ones(3))])
        assert np.sum(plan[0].prices * plan[0].budgets) == 6.0
    assert mppfl.solve(GAME, of_budgets(np.ones(8), prices=2.0)).outcome.payments[0] == 16.0


def test_whole_numbers_and_lists_are_numbers_like_others():
    wanted = mppfl.solve(GAME, of_budgets(np.ones(8), prices=np.full(8, 2.0), rate=2.0), num_rounds=2).outcome

    def written(game, horizon):
        return Plan("mine", [1, 2], [2, 2], Stored([[1] * 8], [0, 0]), 8)  # type: ignore[arg-type]

    whole, listed = of_budgets(np.ones(8, dtype=int), prices=[2] * 8, rate=2), of_budgets([1] * 8, prices=2, rate=2)
    for mine in (whole, listed, written):
        found = mppfl.solve(GAME, mine, num_rounds=2)
        assert found.outcome.server_costs == pytest.approx(wanted.server_costs)


def test_one_note_may_be_a_string_and_there_may_be_none():
    terms = [mppfl.RoundTerms(1, 1.0, 1.0, np.ones(8))]
    assert mppfl.plan_from_rounds("mine", terms, "abc").notes == ("abc",)  # type: ignore[arg-type]
    assert mppfl.plan_from_rounds("mine", terms, None).notes == ()  # type: ignore[arg-type]
    with pytest.raises(mppfl.BadInput, match="mechanism 'mine': notes=3 must be strings"):
        mppfl.plan_from_rounds("mine", terms, 3)  # type: ignore[arg-type]


def test_a_budget_above_its_ceiling_is_refused_with_client_round_and_value():
    game = GAME.with_bounds(np.zeros(8), with_one(0.5) + 0.2)  # everybody may give .5, client 5 gives at most .7
    told = r"client '0' has a budget of 0\.6 in round 1, above 0\.5, the most it may give \(14 such\)\. "
    with pytest.raises(mppfl.BadInput, match=told):
        mppfl.solve(game, of_budgets(np.full(8, 0.6)), num_rounds=2)
    later = Stored(np.array([np.full(8, 0.5), with_one(0.8)]), np.array([0, 1]))
    with pytest.raises(mppfl.BadInput, match=r"client '5' has a budget of 0\.8 in round 2, above 0\.7"):
        mppfl.solve(game, lambda g, h: Plan("mine", h.rounds, np.ones(2), later, 8), num_rounds=2)
    for budgets in (np.zeros(8), np.full(8, 0.5) * (1 + 1e-10), np.full(8, np.inf), with_one(np.inf)):
        assert len(mppfl.solve(game, of_budgets(budgets), num_rounds=2).plan) == 2
    with pytest.raises(mppfl.BadInput, match=r"a budget of 1e\+160 in round 1, above 1e\+100"):
        mppfl.solve(GAME, of_budgets(np.full(8, 1e160)))


def test_rounding_at_a_bound_is_no_fault():
    plan = Plan("mine", rounds_up_to(1), np.ones(1), Stored(np.array([[-1e-17, 1.0]]), np.zeros(1, dtype=int)), 2)
    assert check_plan(plan, two_friends(), Horizon(rounds_up_to(1))) is plan


def test_a_plan_on_a_line_is_looked_at_in_its_two_ends():
    # 2,000 rounds of 200 clients: a table of them would take 3 MB.
    game = paper_scale_game(3, num_clients=200, preset="benign", externality_strength=0.01)
    rates, horizon = np.linspace(3.0, 4.0, 2000), Horizon(rounds_up_to(2000))
    plan = Plan("line", horizon.rounds, rates, budgets_along(game, rates), 200)
    assert isinstance(plan.budgets, AlongLine)
    tracemalloc.start()
    try:
        check_plan(plan, game, horizon)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    falling = Plan("line", horizon.rounds, rates, AlongLine(-np.ones(200), np.full(200, -3.9)), 200)
    with pytest.raises(mppfl.BadInput, match=r"budgets hold -0\.1; each must be at least 0"):
        check_plan(falling, game, horizon)


def test_rates_may_be_a_list():
    by_list = mppfl.solve(GAME, num_rounds=2, reward_rates=[2.0, 3])
    by_array = mppfl.solve(GAME, num_rounds=2, reward_rates=np.array([2.0, 3.0]))
    assert (by_list.plan.to_matrix() == by_array.plan.to_matrix()).all()


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        (2.0, "reward_rates=2.0 must be a vector with one rate per round. Give 2 of them"),
        ([2.0], "reward_rates=[2.0] must be a vector with one rate per round. Give 2 of them"),
        ([2.0, np.nan], "reward_rates=nan at position 1 must be a finite number from 0 to 1e+100"),
        ([2.0, -1.0], "reward_rates=-1 at position 1"),
        (["two", 2.0], "reward_rates must be real numbers"),
        ([2.0, 1e160], "reward_rates=1e+160 at position 1 must be a finite number from 0 to 1e+100"),
    ],
)
def test_rates_that_cannot_be_are_refused(rates, told):
    with pytest.raises(mppfl.BadInput) as refused:
        mppfl.solve(GAME, num_rounds=2, reward_rates=rates)
    assert told in str(refused.value)


def test_terms_are_asked_for_by_the_number_of_the_round_and_found_by_position_too():
    found = mppfl.solve(paper_scale_game(1, num_clients=6), num_rounds=3)
    assert [found.plan.terms(t).round_index for t in (1, 2, 3)] == [1, 2, 3]
    assert found.plan[0].reward_rate == found.plan.terms(1).reward_rate == found.terms(1).reward_rate
    late = MECHANISMS["mppfl"](found.game, Horizon(np.array([4, 9])))
    assert late.terms(9).round_index == late[1].round_index == 9
    for missing in (0, 1, 10):
        with pytest.raises(mppfl.BadInput, match=f"round {missing} is not in this plan of 2 rounds"):
            late.terms(missing)


# ---- kept in a file, and shown ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mppfl", "pigouvian", "random", "personalised", "noiseless", "mppfl_noise_aware"])
def test_a_saved_plan_is_read_back_number_for_number(tmp_path, name):
    plan = mppfl.solve(GAME, name, num_rounds=4, seed=3).plan
    plan.save(tmp_path / "plan.npz")
    again = load_plan(tmp_path / "plan.npz")
    assert (again.mechanism, again.notes, again.participation) == (plan.mechanism, plan.notes, plan.participation)
    assert type(again.budgets) is type(plan.budgets)
    for mine, other in zip(again, plan, strict=True):
        assert (mine.round_index, mine.reward_rate) == (other.round_index, other.reward_rate)
        assert (mine.budgets == other.budgets).all()
        assert np.all(mine.prices == other.prices)


def test_a_file_that_holds_no_plan_is_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "other.npz", head=np.array("{}"))
    (tmp_path / "text.npz").write_text("hello")
    for name, reason in (("other.npz", "is no plan"), ("text.npz", "is no plan"), ("nowhere.npz", "cannot be read")):
        with pytest.raises(BadFile, match=reason):
            load_plan(tmp_path / name)


def test_values_are_shown_in_a_few_lines():
    found = mppfl.solve(GAME, "pigouvian", num_rounds=60)
    compared = mppfl.compare(GAME, ["mppfl", "dp_fedavg"], num_rounds=2)
    for value in (GAME, GAME.clients, found, found.plan, found.outcome, found.verification, compared):
        assert 1 < len(repr(value).splitlines()) <= 12
    assert found._repr_html_().count("<tr>") == 22  # the head, ten first, ten last, and one for what is between
    assert compared._repr_html_().count("<tr>") == 5
    assert list(compared) == [compared[k] for k in range(4)]
    assert isinstance(compared[:2], Comparison)


def test_solutions_and_comparisons_are_tables_where_pandas_is(monkeypatch):
    found, compared = mppfl.solve(GAME, num_rounds=3), mppfl.compare(GAME, ["mppfl"], num_rounds=2)
    pytest.importorskip("pandas")
    table = found.to_pandas()
    assert table["round_index"].tolist() == [1, 2, 3]
    assert table["server_cost"].tolist() == found.outcome.server_costs.tolist()
    assert compared.to_pandas()["welfare"].tolist() == [row.welfare for row in compared]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mppfl.MppflError, match="pip install pandas"):
        found.to_pandas()
