"""The server's reward rate: one rule for every leader, bound and participation rule, held to brute force."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from pytest import approx

import mppfl
from mppfl.game import (
    MECHANISMS,
    Answers,
    Followers,
    Horizon,
    choose_rates,
    cost_of,
    cost_without_absent,
    noise_aware_cost,
    pigouvian_weights,
    response_path,
)
from tests.game.force import answers_by_force, costs_by_force
from tests.game.games import bounded_game, paper_scale_game, star, two_friends, wide_game
from tests.homes import home

LEADERS = ("anticipating", "noise_aware", "secure_sum", "budget_limited", "pigouvian")  # those that minimise their cost
RULES = (
    ("everyone", "staying_out"),
    ("voluntary", "staying_out"),
    ("rational", "staying_out"),
    ("rational", "nothing"),
)


def prices_of(game, leader):
    """Name of the rate's leader, and personal prices per unit of rate."""
    if leader == "pigouvian":
        return "anticipating", np.maximum(pigouvian_weights(game), 0.0)
    return leader, np.ones(game.num_clients)


def chosen_by(game, leader, rule, round_index, limit=None):
    """Rate, budgets and cost of a leader; None where the rule allows no rate."""
    name, weights = prices_of(game, leader)
    options = {"participation": rule[0], "against": rule[1], "weights": weights, "payment_limit": limit}
    try:
        chosen = choose_rates(game, name, np.array([round_index]), **options)
    except mppfl.NoEquilibrium:
        return None
    rate = float(chosen.reward_rates[0])
    budgets = chosen.budgets.at(0, rate)
    return rate, budgets, cost_of(game, name, round_index, rate * weights, budgets)


def beaten_by_force(game, seed, num_rates, leaders=LEADERS):
    """Choices that some rate of many beats by more than 1e-6 of their cost, or whose regret is not 0."""
    rng = np.random.default_rng(seed)
    round_index, limit = int(rng.integers(1, 40)), float(np.exp(rng.uniform(-2, 3)))
    beaten = []
    for leader in leaders:
        name, weights = prices_of(game, leader)
        most = limit if leader == "budget_limited" else np.inf
        ends = response_path(Followers(game, weights)).ends
        top = 4 * max(ends[np.isfinite(ends)].max(), 1e-9)
        for rule in RULES:
            choice = chosen_by(game, leader, rule, round_index, limit)
            about = top / 4 if choice is None else max(choice[0], 1e-6 * top)
            third = num_rates // 3
            rates = np.concatenate([np.linspace(0, top, third), np.geomspace(1e-4 * top, 10 * top, third)])
            rates = np.concatenate([rates, np.geomspace(about / 2, 2 * about, third)])
            if rule[0] == "rational":
                path = response_path(Followers(game, weights), rule[1])
                k = np.clip(np.searchsorted(path.ends[:, 1], rates), 0, len(path) - 1)
                budgets = np.maximum(rates[:, None] * path.slope[k] - path.offset[k], 0.0)
            else:
                budgets = answers_by_force(game, weights, rates)
            costs = costs_by_force(game, name, round_index, weights, rates, budgets)
            answers = Answers(Followers(game, weights), *rule)
            kept = (budgets[:, answers.able] > 1e-12 * game.clients.budget_min.max()).all(axis=1)
            allowed = (rates * (budgets @ weights) <= most) & (kept | (rule[0] != "everyone"))
            least = np.where(allowed, costs, np.inf).min()
            if choice is None:
                beaten += [(leader, rule, least)] if np.isfinite(least) else []
                continue
            rate, mine, cost = choice
            assert rate * (mine @ weights) <= most * (1 + 1e-9)
            regret = cost - answers.least(name, np.array([round_index]), most)[0]
            if least < cost * (1 - 1e-6) or abs(regret) > 1e-8 * cost:
                beaten.append((leader, rule, cost, least, regret))
    return beaten


@pytest.mark.parametrize("make", [bounded_game, wide_game])
@pytest.mark.parametrize("seed", range(12))
def test_no_rate_is_cheaper_than_the_leaders(make, seed):
    assert beaten_by_force(make(seed), seed, 1500) == []


@pytest.mark.slow
@pytest.mark.parametrize(("make", "num_games"), [(bounded_game, 500), (wide_game, 200)])
def test_no_rate_of_ten_thousand_is_cheaper_than_the_leaders(make, num_games):
    assert [seed for seed in range(num_games) if beaten_by_force(make(seed), seed, 10_000)] == []


SPANS = {
    "budget_max": (0.02, 2.0),
    "budget_min": (1e-3, 0.5),  # at 0 a client may be out, above it never is
    "quadratic_cost": (0.1, 2.0),
    "linear_cost": (0.0, 2.5),
    "noise_harm": (0.01, 1.0),
    "compute_cost": (1e-3, 0.3),
}


def largest_jump(seed, field, leader, rule, num_steps):
    """The largest relative jump of cost as a client's number sweeps its span: steps that stand out are halved until
    they are 2⁻⁴⁰ wide, where only a jump is left.
    """
    game, rng = bounded_game(seed), np.random.default_rng(seed)
    clients = game.clients
    movable = np.flatnonzero(clients.budget_max > clients.budget_min)
    client = int(rng.choice(movable if len(movable) else np.arange(game.num_clients)))
    round_index, limit = int(rng.integers(1, 20)), float(np.exp(rng.uniform(0, 3)))
    low, high = SPANS[field]
    low = max(low, clients.budget_min[client]) if field == "budget_max" else low
    high = min(high, clients.budget_max[client]) if field == "budget_min" else high

    def cost(value):
        values = getattr(clients, field).copy()
        values[client] = value
        changed = replace(game, clients=replace(clients, **{field: values}))
        choice = chosen_by(changed, leader, rule, round_index, limit)
        return np.inf if choice is None else choice[2]

    values = np.linspace(low, high, num_steps + 1)
    costs = np.array([cost(value) for value in values])
    finite = np.isfinite(costs)
    steps = np.where(finite[1:] & finite[:-1], np.abs(np.diff(np.where(finite, costs, 0.0))), 0.0)
    neighbours = np.maximum(np.append(0.0, steps[:-1]), np.append(steps[1:], 0.0))
    stands_out = steps / (neighbours + 1e-9 * np.where(finite[1:], costs[1:], 1.0))
    largest = 0.0
    for k in {*np.argsort(-stands_out)[:3].tolist(), int(np.argmax(steps))} if steps.any() else ():
        ends, heights = list(values[k : k + 2]), list(costs[k : k + 2])
        for _ in range(40):
            middle = sum(ends) / 2
            height = cost(middle)
            right = int(abs(heights[1] - height) < abs(height - heights[0]))  # the end that moves to the middle
            ends[right], heights[right] = middle, height
        largest = max(largest, abs(heights[1] - heights[0]) / max(heights))
    return largest


@pytest.mark.parametrize("rule", RULES[:2])
@pytest.mark.parametrize("field", SPANS)
def test_cost_has_no_jump_in_any_number_of_a_client(field, rule):
    seed = list(SPANS).index(field)
    for leader in LEADERS:
        assert largest_jump(seed, field, leader, rule, 25) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES[:2])
@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("seed", range(12))
def test_cost_has_no_jump_in_sweeps_of_a_thousand_steps(seed, leader, rule):
    assert largest_jump(seed, list(SPANS)[seed % 6], leader, rule, 1000) <= 1e-6


# All but those whose budgets nobody chooses, and the limit, which is a sum of money.
IN_ANY_UNIT = MECHANISMS.keys() - {"random", "dp_fedavg", "budget_limited", "noiseless"}


def differs_by_units(seed):
    """Mechanisms whose answers are others in another unit of money and of budget."""
    game, rng = bounded_game(seed), np.random.default_rng(seed)
    money, budget = 10.0 ** rng.integers(-9, 10, 2)
    units = {"quadratic_cost": money / budget**2, "linear_cost": money / budget, "noise_harm": money * budget}
    units |= {"compute_cost": money, "budget_min": budget, "budget_max": budget}
    scaled = {name: unit * getattr(game.clients, name) for name, unit in units.items()}
    games = game, replace(game, clients=replace(game.clients, **scaled))
    different = []
    for name in sorted(IN_ANY_UNIT):
        for participation, against in RULES:
            plans = []
            for one in games:
                try:
                    plans.append(MECHANISMS[name](one, Horizon(np.array([1, 9]), None, 0, participation, against)))
                except mppfl.NoEquilibrium:
                    plans.append(None)
            if plans[0] is None or plans[1] is None:
                same = plans[0] is plans[1]
            else:
                mine, other = plans[0].to_matrix(), plans[1].to_matrix() / budget
                rates = plans[1].reward_rates * budget / money
                same = np.allclose(other, mine, rtol=1e-7, atol=1e-7 * mine.max())
                same &= np.allclose(rates, plans[0].reward_rates, rtol=1e-7)
            different += [] if same else [(name, participation, against, money, budget)]
    return different


@pytest.mark.parametrize("seed", range(8))
def test_answers_do_not_depend_on_units(seed):
    assert differs_by_units(seed) == []


@pytest.mark.slow
def test_answers_of_200_games_do_not_depend_on_units():
    assert [seed for seed in range(200) if differs_by_units(seed)] == []


def sampled_and_exact(monkeypatch, size, seed, participation):
    """Costs of five rounds by sampled wishes over those on the path, and least costs likewise, for each leader."""
    rng, rounds = np.random.default_rng(seed), np.array([1, 2, 5, 20, 60])
    preset = ("paper-like", "benign")[seed % 2]
    targets, sources = np.repeat(np.arange(size), 10), rng.integers(0, size, 10 * size)
    graph = mppfl.graph_from_edges(sources[sources != targets], targets[sources != targets])
    game = mppfl.make_game(
        graph, mppfl.draw_clients(preset, size, rng), externality_strength=(0.05, 0.1, 0.2)[seed % 3]
    )
    high = np.where(rng.random(size) < 0.7, rng.uniform(0.05, 1.5, size), np.inf)
    low = np.minimum(np.where(rng.random(size) < 0.2, rng.uniform(0, 0.1, size), 0.0), high)
    followers = Followers(game.with_bounds(low, high), np.ones(size))
    results = {}
    for below in (10**6, 2):
        monkeypatch.setattr(home(Answers), "PATH_BELOW", below)
        answers = Answers(followers, participation)
        for leader in ("anticipating", "noise_aware", "secure_sum", "mean_field"):
            chosen = answers.choose(leader, rounds, np.inf)
            terms = [
                (t, r, chosen.budgets.at(k, r))
                for k, (t, r) in enumerate(zip(rounds, chosen.reward_rates, strict=True))
            ]
            costs = np.array([cost_of(followers.game, leader, *term) for term in terms])
            results[leader, below] = chosen.reward_rates, costs, answers.least(leader, rounds)
    for leader in ("anticipating", "noise_aware", "secure_sum"):
        (_, exact, least), (_, sampled, bound) = results[leader, 10**6], results[leader, 2]
        assert (sampled <= 1.003 * exact).all()
        assert (bound <= least * (1 + 1e-12)).all()  # regret is never below the true saving
        assert (bound >= 0.9 * least).all()
    gap = np.abs(results["mean_field", 10**6][0] / results["anticipating", 10**6][0] - 1)
    assert np.abs(results["mean_field", 2][0] / results["anticipating", 2][0] - 1)[gap > 0.02].min(initial=1) > 0.005


@pytest.mark.parametrize("participation", ["everyone", "voluntary"])
@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_wishes_cost_hardly_more_than_the_exact_path(monkeypatch, seed, participation):
    sampled_and_exact(monkeypatch, 150, seed, participation)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "seed"), [*((300, seed) for seed in range(6)), (1000, 0), (1000, 1), (3000, 0)])
@pytest.mark.parametrize("participation", ["everyone", "voluntary"])
def test_sampled_wishes_of_up_to_3000_clients_cost_hardly_more(monkeypatch, size, seed, participation):
    sampled_and_exact(monkeypatch, size, seed, participation)


# ---- worked by hand, and what is said -------------------------------------------------------------------------------


def test_two_friends_are_paid_what_calculus_says():
    # ρ = r/3 each, so cost is τ·.6/(t r) + (1 − τ)·2r²/3, least at r³ = τ·.9/(2(1 − τ) t).
    rates = choose_rates(two_friends(), "anticipating", np.array([1, 4])).reward_rates
    assert rates == approx(np.cbrt(0.45 / np.array([1, 4])))
    # (16): Σ τε/(2tρ²) = (1 − τ)Σ(ρ + r/2), so .9/(t r²) = (5/3) r.
    rates = choose_rates(two_friends(), "mean_field", np.array([1, 4])).reward_rates
    assert rates == approx(np.cbrt(0.54 / np.array([1, 4])))


def test_star_keeps_all_eleven_clients_at_rates_between_its_two_limits():
    for mechanism in ("mppfl", "mppfl_exact"):
        solution = mppfl.solve(star(), mechanism, num_rounds=3)
        assert (solution.outcome.participating == 11).all()
        assert ((solution.outcome.reward_rates > 1.0101) & (solution.outcome.reward_rates < 4 / 3)).all()
        assert solution.verification.client_regret <= 1e-12
    assert solution.verification.leader_regret == approx(0.0, abs=1e-12)
    assert solution.saving_if_clients_may_leave > 0.1


def test_who_cannot_be_kept_is_named_with_the_rate_at_which_it_leaves():
    # The hub gives 10(r − 1), so leaves are gone at 4/3; one with a = .05, b = 1.5 comes where 10(r − 1.5) = 2(r − 1).
    costs = np.r_[0.05, 0.05, np.ones(9)], np.r_[1.0, 1.5, np.zeros(9)]
    clients = replace(star().clients, quadratic_cost=costs[0], linear_cost=costs[1])
    with pytest.raises(
        mppfl.NoEquilibrium, match=r"all 11 clients: '2' leaves at rate 1\.3.*'1' comes only at rate 1\.625"
    ):
        mppfl.solve(replace(star(), clients=clients))
    equal = mppfl.solve(two_friends(1.0))  # any division is an equilibrium of α = 1: one that keeps both is taken
    assert equal.terms(1).budgets == approx([equal.terms(1).reward_rate / 4] * 2)
    some = mppfl.solve(two_friends(1.0), participation="voluntary")
    assert some.terms(1).budgets.sum() == approx(some.terms(1).reward_rate / 2)
    assert max(equal.verification.residual, some.verification.residual) <= 1e-12
    assert not equal.is_unique
    nobody = two_friends().with_bounds(np.zeros(2), np.zeros(2))
    with pytest.raises(mppfl.NoEquilibrium, match="nobody can participate"):
        mppfl.solve(nobody)


@pytest.mark.parametrize("seed", range(6))
def test_a_rate_at_a_bend_is_the_same_to_solve_to_given_rates_and_to_compare(seed):
    game = paper_scale_game(seed, num_clients=12, preset="paper-like").with_bounds(np.zeros(12), np.full(12, 0.5))
    for name in ("mppfl", "mppfl_exact"):
        solution = mppfl.solve(game, name, num_rounds=8, participation="voluntary")
        again = mppfl.solve(game, num_rounds=8, reward_rates=solution.plan.reward_rates, participation="voluntary")
        assert again.outcome.server_costs == approx(solution.outcome.server_costs)
        assert (again.outcome.participating == solution.outcome.participating).all()
        assert solution.outcome.server_costs.max() < 1e4
        budgets = solution.plan.to_matrix()
        assert ((budgets == 0) | (budgets > 1e-9)).all()
        assert ((budgets == 0.5) | (budgets < 0.5 - 1e-12)).all()
    rows = mppfl.compare(game, ["mppfl"], num_rounds=8)
    assert rows[0].server_cost == approx(rows[1].server_cost)


def test_the_papers_leader_follows_its_condition_at_a_ceiling():
    clients = mppfl.Clients(
        [0.697, 1.8, 1.6], [0.806, 0.332, 1.06], [0.0165, 5.07, 0.0106], budget_max=[1.27, 0.746, 1.64]
    )
    graph = mppfl.graph_from_matrix([[0, 0.66, 0.69], [0.88, 0, 0.79], [0.72, 0.8, 0]])
    game = mppfl.make_game(graph, clients, max_hops=3, hop_decay=0.49, externality_strength=0.4, accuracy_weight=0.21)
    chosen = choose_rates(game, "mean_field", np.array([1, 2, 3]))
    rate, budgets = chosen.reward_rates[0], chosen.budgets.at(0, chosen.reward_rates[0])
    free = budgets < clients.budget_max
    assert free.sum() == 2  # eq. 16 over those who can still move
    alone = 1 / (2 * clients.quadratic_cost[free])
    pulled = 0.21 * (clients.noise_harm[free] * alone / budgets[free] ** 2).sum()
    assert pulled == approx(0.79 * (budgets.sum() + rate * alone.sum()), rel=1e-9)
    assert (np.diff(chosen.reward_rates) < 0).all()


def test_noise_aware_leader_costs_a_fraction_and_loses_clients_as_measured_before():
    # 20 draws of paper-like: 27.3 -> 7.0 at t=1 and 21.9 -> .68 at t=60; 55 % -> 25 % participate (docs/model.md, 4).
    costs, shares = [], []
    for seed in range(20):
        game = paper_scale_game(seed, num_clients=20, preset="paper-like", externality_strength=0.05)
        plain = mppfl.solve(game, "mppfl", num_rounds=60).outcome
        aware = mppfl.solve(game, "mppfl_noise_aware", num_rounds=60, participation="voluntary").outcome
        costs.append([*plain.server_costs[[0, -1]], *aware.server_costs[[0, -1]]])
        shares.append(aware.participating[[0, -1]] / 20)
    assert np.mean(costs, axis=0) == approx([27.3, 21.9, 7.0, 0.68], rel=0.25)
    assert np.mean(shares, axis=0) == approx([0.55, 0.25], abs=0.08)


@pytest.mark.parametrize("seed", range(4))
def test_a_limit_on_payments_is_kept_and_more_money_never_costs_more(seed):
    game = paper_scale_game(seed, num_clients=15)
    limited = partial(choose_rates, game, "budget_limited", np.array([1]), participation="voluntary")
    free = choose_rates(game, "anticipating", np.array([1]), participation="voluntary").reward_rates[0]
    costs = []
    for limit in np.geomspace(0.1, 1e4, 12):
        chosen = limited(payment_limit=float(limit))
        rate = chosen.reward_rates[0]
        budgets = chosen.budgets.at(0, rate)
        assert rate * budgets.sum() <= limit * (1 + 1e-9)
        costs.append(cost_without_absent(game, 1, rate, budgets))
    assert (np.diff(costs) <= 1e-9).all()
    assert rate == approx(free)


def test_floors_are_not_paid_for():
    # At rate 2.25 both are strictly inside and the cost is 5.3; at 0 both participate, and it is .5(.1/.3 + .05/.05)/t.
    clients = mppfl.Clients([0.2, 0.2], [0.5, 2.0], [0.1, 0.05], budget_min=[0.3, 0.05])
    game = mppfl.make_game(two_friends().graph, clients)
    for mechanism in ("mppfl_exact", "mppfl_noise_aware", "pigouvian", "social_agnostic"):
        solution = mppfl.solve(game, mechanism, num_rounds=3)
        assert solution.outcome.payments == approx(np.zeros(3))
        assert solution.verification.leader_regret == approx(0.0, abs=1e-9)
    paper = mppfl.solve(game, "mppfl")  # follows its condition, and is told what that costs
    assert paper.verification.leader_regret == approx(paper.outcome.server_costs[0] - 2 / 3)


def test_who_is_offered_nothing_is_not_asked_to_participate():
    solution = mppfl.solve(star(), "pigouvian")
    assert any("would be charged" in note for note in solution.warnings)
    assert (np.asarray(solution.terms(1).prices) >= 0).all()
    assert solution.terms(1).participating.tolist() == [False] + [True] * 10


def test_the_leaders_regret_is_what_another_rate_would_save():
    game = paper_scale_game(0, num_clients=20, preset="benign", externality_strength=0.1)
    aware = mppfl.solve(game, "mppfl_noise_aware")
    assert aware.outcome.server_costs[0] == approx(
        noise_aware_cost(game, 1, aware.terms(1).prices, aware.terms(1).budgets)
    )
    paper, exact = (mppfl.solve(game, name, num_rounds=5) for name in ("mppfl", "mppfl_exact"))
    dear = mppfl.solve(game, "mppfl_exact", num_rounds=5, reward_rates=2 * exact.plan.reward_rates)
    for found in (paper, dear):
        saved = (found.outcome.server_costs - exact.outcome.server_costs).max()
        assert saved > 0
        assert found.verification.leader_regret == approx(saved)
        assert found.verification.leader_rounds == (1, 2, 3, 4, 5)
