"""mppfl solve: the JSON contract, the numbers by hand, and what every option does."""

from __future__ import annotations

import gzip
import shlex
import subprocess

import numpy as np
import pytest

from mppfl.experiment import read_experiment, solve_all
from mppfl.explorer import World, commands, to_toml
from mppfl.game import MECHANISMS
from tests.cli.by_hand import seven_clients, star
from tests.explorer.chosen import choose

approx = pytest.approx
HEADER = "name,quadratic_cost,linear_cost,noise_harm"
AT_RATE_2 = ("--reward-rate", 2, "--rounds", 1, "--json")

CONTRACT = {  # DESIGN.md, "Public contract"
    "num_clients": int,
    "num_edges": int,
    "mechanism": str,
    "rounds": list,
    "residual": float,
    "client_regret": float,
    "leader_regret": float,
    "seconds": float,
}
OF_A_ROUND = {
    "round_index": int,
    "reward_rate": float,
    "server_cost": float,
    "welfare": float,
    "budgets": dict,
    "not_participating": list,
    "num_negative_utility": int,
}
FURTHER = {
    "contraction": float,
    "is_unique": bool,
    "exact_hops": int,
    "diagonal_error": float,
    "notes": list,
}


def budgets_of(found, names, position=0):
    return np.array([found["rounds"][position]["budgets"][name] for name in names])


# ---- the contract -----------------------------------------------------------------------------------------------


def test_json_has_the_keys_and_types_of_the_contract(mppfl, friends):
    found = mppfl("solve", *friends, "--rounds", 3, "--mechanism", "mppfl", "--json").json
    assert {key: type(value) for key, value in found.items()} == CONTRACT | FURTHER
    for this in found["rounds"]:
        assert {key: type(value) for key, value in this.items()} == OF_A_ROUND
        assert {name: type(budget) for name, budget in this["budgets"].items()} == {"ann": float, "bob": float}
    assert (found["num_clients"], found["num_edges"], found["mechanism"]) == (2, 2, "mppfl")
    assert 0 < found["seconds"] < 60


def test_sixty_rounds_are_played_unless_told_otherwise(mppfl, friends):
    assert len(mppfl("solve", *friends, "--json", "--no-budgets").json["rounds"]) == 60


def test_no_budgets_leaves_the_map_out_and_nothing_else(mppfl, friends):
    rounds = mppfl("solve", *friends, "--rounds", 2, "--json", "--no-budgets").json["rounds"]
    assert all(set(this) == set(OF_A_ROUND) - {"budgets"} for this in rounds)


def test_prices_adds_what_each_client_is_paid_per_unit_of_budget(mppfl, friends):
    for this in mppfl("solve", *friends, "--rounds", 2, "--json", "--prices").json["rounds"]:
        assert set(this) == {*OF_A_ROUND, "prices"}
        assert this["prices"] == {"ann": this["reward_rate"], "bob": this["reward_rate"]}


def test_a_process_prints_one_json_object_on_stdout_and_nothing_on_stderr(mppfl_process, friends):
    answer = mppfl_process("solve", *friends, "--rounds", 1, "--json")
    assert answer.json["rounds"][0]["budgets"] == approx({"ann": 0.2 ** (1 / 3), "bob": 0.2 ** (1 / 3)})
    assert answer.stderr == ""


def test_notes_stand_in_the_json_and_on_stderr_but_not_beside_the_json(mppfl, write):
    graph = write("edges.csv", "ann,bob", "bob,ann", "cat,ann")
    answer = mppfl("solve", "--graph", graph, "--rounds", 1, "--isolated", "keep", "--json")
    (note,) = answer.json["notes"]
    assert answer.stderr == f"note: {note}\n"
    assert note.startswith("1 of 3 clients are isolated")


def test_names_of_any_alphabet_survive_a_terminal_that_knows_no_letters_but_ascii(mppfl_process, write):
    graph = write("edges.csv", "Zoë,Ωmega", "Ωmega,李", "李,Zoë")
    answer = mppfl_process("solve", "--graph", graph, "--rounds", 1, "--json", PYTHONIOENCODING="ascii")
    assert list(answer.json["rounds"][0]["budgets"]) == ["Zoë", "Ωmega", "李"]
    assert mppfl_process("solve", "--graph", graph, PYTHONIOENCODING="ascii").code == 0


def test_a_reader_who_leaves_early_is_not_shouted_at(command):
    pipe = f"'{command}' solve --num-clients 300 --json --seed 1 | head -c 10"
    done = subprocess.run(pipe, shell=True, capture_output=True, timeout=300, check=True, text=True)
    assert (done.stdout, done.stderr) == ('{"num_clie', "")


def test_without_json_a_reader_gets_labelled_lines(mppfl, friends):
    lines = mppfl("solve", *friends, "--rounds", 8).stdout.splitlines()
    assert lines[0] == "network           2 clients, 2 edges, up to 1 hops, decay 0.5, αS = 0.5"
    assert lines[1] == "mechanism         mppfl, 8 rounds"
    assert lines[2].split() == ["round", "1", "round", "8"]
    (rates,) = (line.split() for line in lines if line.startswith("reward rate"))
    assert [float(rates[2]), float(rates[7])] == approx([3 * 0.2 ** (1 / 3), 3 * 0.025 ** (1 / 3)], rel=1e-3)
    assert "equilibrium proved unique; solved in" in lines[-1]
    one = mppfl("solve", *friends, "--rounds", 1).stdout.splitlines()
    assert (one[1], one[2].split()) == ("mechanism         mppfl, 1 round", ["round", "1"])


# ---- numbers by hand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "divisor"),
    [
        # With s = 1.5 ρ and p = 3ρ, ρ = (1/(divisor · t))^(1/3) from each server's first-order condition:
        ("mppfl", 5),  # 1/(2tρ²) = ρ + r/2 = 2.5 ρ
        ("mppfl_exact", 6),  # the minimum of 1/(tρ) + 3ρ²
        ("mppfl_noise_aware", 6),  # τ N²/(t·2ρ) + (1 − τ) 2pρ = 1/(tρ) + 3ρ², the same
        ("pigouvian", 6),
        ("personalised", 6),
        ("sarda_r", 9),  # the optimum at p has s = p/3, so p = 4.5 ρ: the minimum of 1/(tρ) + 4.5 ρ²
        ("social_agnostic", 4),  # expects s = ρ, so p = 2ρ: the minimum of 1/(tρ) + 2ρ²
        ("sarda_like", 4.5),  # 1/(tρ²) = 1.5 · 3ρ: the harm to both friends
    ],
)
def test_two_friends_share_what_each_mechanism_asks_by_hand(mppfl, friends, mechanism, divisor):
    rounds = mppfl("solve", *friends, "--rounds", 3, "--mechanism", mechanism, "--json").json["rounds"]
    for this in rounds:
        expected = (1 / (divisor * this["round_index"])) ** (1 / 3)
        assert this["budgets"] == approx({"ann": expected, "bob": expected}, rel=1e-6)


def test_a_payment_limit_is_spent_to_the_last_penny_while_it_binds(mppfl, friends):
    limited = (*friends, "--mechanism", "budget_limited", "--payment-limit", 0.6, "--json")
    for this in mppfl("solve", *limited, "--rounds", 30).json["rounds"]:
        unlimited = (1 / (6 * this["round_index"])) ** (1 / 3)
        expected = min(unlimited, np.sqrt(0.6 / 6))  # payments are 2 · 3ρ · ρ
        assert this["budgets"]["ann"] == approx(expected, rel=1e-9)
        assert this["reward_rate"] * sum(this["budgets"].values()) <= 0.6 * (1 + 1e-9)


@pytest.mark.parametrize(("rule", "factor"), [("min", 1.0), ("mean", 1.5)])
def test_a_fixed_budget_follows_round_one_by_its_rule(mppfl, friends, rule, factor):
    # min: MPPFL's ρ(1); mean: what social-agnostic clients would give at MPPFL's rate, r/2 = 1.5 ρ(1).
    fixed = mppfl("solve", *friends, "--mechanism", "dp_fedavg", "--fixed-budget", rule, "--rounds", 3, "--json").json
    expected = factor * 0.2 ** (1 / 3)
    assert all(this["budgets"] == approx({"ann": expected, "bob": expected}) for this in fixed["rounds"])
    assert f"fixed budget {expected:.6g} ({rule})" in fixed["notes"]


def test_noiseless_has_neither_limit_nor_price(mppfl, friends):
    (only,) = mppfl("solve", *friends, "--mechanism", "noiseless", "--rounds", 1, "--json").json["rounds"]
    assert only["budgets"] == {"ann": None, "bob": None}
    assert (only["reward_rate"], only["server_cost"], only["welfare"]) == (0.0, 0.0, None)


@pytest.mark.parametrize("mechanism", sorted(set(MECHANISMS) - {"noiseless"}))
def test_cost_and_welfare_follow_from_budgets_prices_and_the_edge_list(mppfl, write, mechanism):
    game = seven_clients()
    limit = ("--payment-limit", 5) if mechanism == "budget_limited" else ()
    options = (*game.options(write), "--mechanism", mechanism, *limit, "--rounds", 4, "--json", "--prices")
    found = mppfl("solve", *options).json
    assert (found["num_clients"], found["num_edges"], found["mechanism"]) == (7, 14, mechanism)
    for position, this in enumerate(found["rounds"]):
        budgets = budgets_of(found, game.names, position)
        prices = np.array([this["prices"][name] for name in game.names])
        gains = prices * budgets - game.quadratic_cost * game.losses(budgets) ** 2
        gains -= game.linear_cost * game.losses(budgets)
        assert this["server_cost"] == approx(game.server_cost(this["round_index"], prices, budgets), rel=1e-9)
        assert this["welfare"] == approx(game.welfare(prices, budgets), rel=1e-9, abs=1e-9)
        assert this["num_negative_utility"] == (gains < -1e-9).sum()
        assert this["not_participating"] == [name for name in game.names if this["budgets"][name] == 0]


# ---- who exposes whom -------------------------------------------------------------------------------------------


def test_a_directed_edge_exposes_its_target_only(mppfl, friends, write):
    one_way = write("one_way.csv", "ann,bob")
    (only,) = mppfl("solve", *friends, "--graph", one_way, "--isolated", "keep", *AT_RATE_2).json["rounds"]
    # ann: 2ρ = 2. bob: 2(ρ + ½·1) = 2.
    assert only["budgets"] == approx({"ann": 1.0, "bob": 0.5})


def test_exposure_reaches_over_hops_and_fades_with_each(mppfl, write):
    # ann exposes bob, bob exposes cat, everybody's wanted loss is 1; α = ½, λ = ½.
    graph = write("chain.csv", "ann,bob", "bob,cat")
    clients = write("c.csv", HEADER, "ann,1,0,1", "bob,1,0,1", "cat,1,0,1")
    options = ("--graph", graph, "--clients", clients, "--isolated", "keep", *AT_RATE_2)
    constants = ("--externality-strength", 0.5, "--hop-decay", 0.5)
    (near,) = mppfl("solve", *options, *constants, "--max-hops", 1).json["rounds"]
    (far,) = mppfl("solve", *options, *constants, "--max-hops", 2).json["rounds"]
    assert near["budgets"] == approx({"ann": 1.0, "bob": 0.5, "cat": 0.75})
    assert far["budgets"] == approx({"ann": 1.0, "bob": 0.5, "cat": 1 - 0.5 * (0.5 + 0.5 * 1.0)})


def test_undirected_means_a_edge_each_way(mppfl, friends, write):
    one_way = write("one_way.csv", "ann,bob")
    both = mppfl("solve", *friends, "--rounds", 2, "--json").json
    made = mppfl("solve", *friends, "--graph", one_way, "--undirected", "--rounds", 2, "--json").json
    assert {**both, "seconds": 0} == {**made, "seconds": 0}


def test_isolated_clients_are_kept_or_dropped_on_request(mppfl, write):
    graph = write("edges.csv", "ann,bob", "bob,ann", "cat,ann")
    kept = mppfl("solve", "--graph", graph, "--isolated", "keep", "--rounds", 1, "--json").json
    gone = mppfl("solve", "--graph", graph, "--isolated", "drop", "--rounds", 1, "--json").json
    assert list(kept["rounds"][0]["budgets"]) == ["ann", "bob", "cat"]
    assert list(gone["rounds"][0]["budgets"]) == ["ann", "bob"]
    assert (kept["num_clients"], kept["num_edges"]) == (3, 3)
    assert (gone["num_clients"], gone["num_edges"]) == (2, 2)


def test_a_gzipped_edge_list_is_read_like_a_plain_one(mppfl, write, tmp_path):
    game = seven_clients()
    options = game.options(write)
    zipped = tmp_path / "edges.csv.gz"
    zipped.write_bytes(gzip.compress(options[1].read_bytes()))
    plain = mppfl("solve", *options, "--rounds", 2, "--json").json
    assert plain["rounds"] == mppfl("solve", *options, "--graph", zipped, "--rounds", 2, "--json").json["rounds"]


def test_the_order_of_lines_in_the_clients_file_does_not_matter(mppfl, friends, write):
    one = write("one.csv", HEADER, "ann,1,0.5,1", "bob,2,0.1,3")
    two = write("two.csv", "noise_harm, linear_cost, name, quadratic_cost", "3, 0.1, bob, 2", "1, 0.5, ann, 1")
    first, second = (mppfl("solve", *friends, "--clients", path, "--rounds", 2, "--json") for path in (one, two))
    assert first.json["rounds"] == second.json["rounds"]


# ---- rates, bounds and participation ----------------------------------------------------------------------------


def test_who_finds_the_rate_too_low_does_not_take_part(mppfl, friends, write):
    clients = write("c.csv", HEADER, "ann,1,0,1", "bob,1,5,1")
    options = ("--clients", clients, "--reward-rate", 3, "--rounds", 1, "--json")
    (only,) = mppfl("solve", *friends, *options).json["rounds"]
    assert only["budgets"] == approx({"ann": 1.5, "bob": 0.0})
    assert only["not_participating"] == ["bob"]
    assert only["server_cost"] == approx(0.5 / 1.5 + 0.5 * 4.5)  # bob is left out of both sums
    assert only["num_negative_utility"] == 1  # bob is exposed by ann all the same


LIMITS = ((0.0, 0.1), (0.0, 1.0), (0.1, 1.0))


@pytest.mark.parametrize(
    ("mechanism", "limits"),
    [(name, limits) for name in sorted(set(MECHANISMS) - {"noiseless", "budget_limited"}) for limits in LIMITS],
)
def test_bounds_hold_under_every_mechanism(mppfl, friends, write, mechanism, limits):
    clients = write("c.csv", f"{HEADER},budget_max", f"ann,1,0,1,{limits[0]}", f"bob,1,0,1,{limits[1]}")
    found = mppfl("solve", *friends, "--clients", clients, "--mechanism", mechanism, "--rounds", 2, "--json").json
    for this in found["rounds"]:
        assert this["budgets"]["ann"] <= limits[0] * (1 + 1e-12)
        assert 0 < this["budgets"]["bob"] <= limits[1] * (1 + 1e-12)
        assert this["not_participating"] == ([] if limits[0] else ["ann"])


@pytest.mark.parametrize(
    ("rule", "compute_cost", "expected"),
    [
        # At rate 3 both give 1; being in is worth aρ² − C = 1 − C to bob, and U = 3 − 1.5² − C = 0.75 − C.
        ((), 1.5, {"ann": 1.0, "bob": 1.0}),
        (("staying_out",), 0.8, {"ann": 1.0, "bob": 1.0}),
        (("staying_out",), 1.5, {"ann": 1.5, "bob": 0.0}),
        (("nothing",), 0.7, {"ann": 1.0, "bob": 1.0}),
        (("nothing",), 0.8, {"ann": 1.5, "bob": 0.0}),
    ],
)
def test_who_stays_out_follows_the_participation_rule(mppfl, friends, write, rule, compute_cost, expected):
    header = f"{HEADER},compute_cost"
    clients = write("c.csv", header, "ann,1,0,1,0", f"bob,1,0,1,{compute_cost}")
    participation = ("--participation", "rational", "--against", *rule) if rule else ()
    options = ("--clients", clients, "--reward-rate", 3, *participation, "--rounds", 1, "--json")
    found = mppfl("solve", *friends, *options).json
    assert found["rounds"][0]["budgets"] == approx(expected)
    assert found["rounds"][0]["not_participating"] == [name for name, budget in expected.items() if budget == 0]
    assert len(found["notes"]) == len(rule)


def test_a_given_reward_rate_at_which_nobody_takes_part_is_no_mistake(mppfl, friends, write):
    clients = write("c.csv", f"{HEADER},compute_cost", "ann,1,0,1,5", "bob,1,0,1,5")
    options = ("--clients", clients, "--reward-rate", 1, "--rounds", 2, "--json")
    options += ("--participation", "rational", "--against", "nothing")
    found = mppfl("solve", *friends, *options).json
    assert [this["not_participating"] for this in found["rounds"]] == [["ann", "bob"]] * 2
    assert "in 2 rounds nobody participates: no rate of this server suits anybody" in found["notes"]


def test_a_game_that_may_have_several_equilibria_is_solved_and_said_to_be_so(mppfl, friends):
    answer = mppfl("solve", *friends, "--externality-strength", 1.25, "--rounds", 2, "--json")
    assert (answer.json["contraction"], answer.json["is_unique"]) == (1.25, False)
    assert "αS = 1.25 is not below 1" in answer.stderr
    assert answer.json["residual"] < 1e-9


def test_a_star_without_interior_equilibrium_is_solved_at_its_bounds(mppfl, write):
    game = star()
    answer = mppfl("solve", *game.options(write), "--reward-rate", 2, "--rounds", 1, "--json")
    (only,) = answer.json["rounds"]
    # The hub wants a loss of (2 − 1)/0.1 = 10 and gives it; each leaf wants 1, and the hub already causes 0.2 · 10.
    leaves = dict.fromkeys(game.names[1:], 0.0)
    assert only["budgets"] == approx({"hub": 10.0, **leaves})
    assert only["not_participating"] == game.names[1:]


@pytest.mark.parametrize("mechanism", ["mppfl", "dp_fedavg", "mppfl_noise_aware"])
def test_the_server_of_a_star_buys_no_budget_that_is_mere_rounding(mppfl, write, mechanism):
    options = (*star().options(write), "--mechanism", mechanism, "--rounds", 3, "--json")
    for this in mppfl("solve", *options).json["rounds"]:
        assert all(budget == 0 or budget > 1e-9 for budget in this["budgets"].values())
        assert this["server_cost"] < 1e6


def test_two_friends_whose_budgets_are_exchangeable_are_solved(mppfl, friends):
    # α = 1: B = [[1, 1], [1, 1]]. At every rate r > 0 any ρ₁ + ρ₂ = r/2 is an equilibrium.
    answer = mppfl("solve", *friends, "--externality-strength", 1, "--rounds", 1, "--json")
    assert sum(answer.json["rounds"][0]["budgets"].values()) == approx(answer.json["rounds"][0]["reward_rate"] / 2)


# ---- the same again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["mppfl", "random"])
def test_the_same_seed_gives_the_same_output(mppfl, mechanism):
    def solved(seed):
        found = mppfl("solve", "--seed", seed, "--rounds", 3, "--mechanism", mechanism, "--json").json
        return {**found, "seconds": 0}

    assert solved(7) == solved(7)
    assert solved(7) != solved(8)


def test_help_and_version_go_to_stdout(mppfl):
    for arguments, text in [(("--help",), "solve"), (("solve", "--help"), "--max-hops"), (("--version",), "mppfl 0.")]:
        answer = mppfl(*arguments)
        assert (answer.code, answer.stderr) == (0, "")
        assert text in answer.stdout


# ---- on another device ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["mppfl", "mppfl_exact"])
def test_a_device_gives_the_same_json(mppfl, mechanism):
    options = ("--num-clients", 30, "--seed", 3, "--preset", "benign", "--rounds", 5, "--mechanism", mechanism)
    plain = mppfl("solve", *options, "--json")
    found = mppfl("solve", *options, "--json", "--device", "cpu")
    assert list(found.json) == list(plain.json)
    for ours, theirs in zip(found.json["rounds"], plain.json["rounds"], strict=True):
        assert ours["budgets"] == approx(theirs["budgets"], rel=1e-10)
        assert ours["server_cost"] == approx(theirs["server_cost"], rel=1e-10)
        assert ours["welfare"] == approx(theirs["welfare"], rel=1e-9)
        assert ours["num_negative_utility"] == theirs["num_negative_utility"]
    assert found.json["residual"] < 1e-10
    assert (found.json["exact_hops"], found.json["diagonal_error"], found.stderr) == (5, 0.0, "")


def test_a_gpu_that_is_not_there_is_one_line_before_anything_is_read(mppfl, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = mppfl("solve", "--graph", "nowhere.csv", "--device", "cuda").error
    assert error == "--device cuda, but PyTorch finds no GPU here. Use 'cpu', or leave it out."
    assert "is not known" in mppfl("solve", "--device", "tpu").error


def test_a_device_refuses_what_it_does_not_solve_in_one_line(mppfl, friends):
    assert "not pigouvian" in mppfl("solve", *friends, "--mechanism", "pigouvian", "--device", "cpu").error
    assert "not dp_fedavg" in mppfl("solve", *friends, "--mechanism", "dp_fedavg", "--device", "cpu").error


# ---- an experiment file instead of options ------------------------------------------------------------------------

EXPERIMENT = (
    'seed = 4\nmechanism = "social_agnostic"',
    "[game]\nnum_clients = 7\nmax_hops = 2\nnum_rounds = 3\nbudget_max = 0.6",
)


def test_an_experiment_file_says_network_game_mechanism_and_rounds(mppfl, write):
    path = write("trial.toml", *EXPERIMENT)
    found = mppfl("solve", "--experiment", path, "--json").json
    assert {key: type(value) for key, value in found.items()} == CONTRACT | FURTHER
    assert (found["num_clients"], found["mechanism"], len(found["rounds"])) == (7, "social_agnostic", 3)
    budgets = np.array([list(this["budgets"].values()) for this in found["rounds"]])
    assert budgets.max() <= 0.6 + 1e-12
    experiment = read_experiment(path)
    solved = solve_all(experiment.game, experiment.mechanisms, experiment.game.build())["social_agnostic"]
    assert np.array_equal(budgets, solved.plan.to_matrix())


def test_a_file_with_common_rates_plays_at_the_rates_of_mppfl(mppfl, write):
    path = write("trial.toml", 'mechanism = "dp_fedavg"', '[game]\nnum_rounds = 2\nreward_rate = "common"')
    rates = [
        [this["reward_rate"] for this in mppfl("solve", "--experiment", path, *more, "--json").json["rounds"]]
        for more in ((), ("--mechanism", "mppfl"))
    ]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        ("", ("--hop-decay", 3), "game.hop_decay=3 must lie in (0, 1)."),
        ("", ("--set", "game.hops=3"), "'game.hops' is not known."),
        ("", ("--mechanism", "mppfll"), "mechanism='mppfll' is not known. Did you mean 'mppfl'?"),
        (
            'mechanisms = ["mppfl", "dp_fedavg"]',
            (),
            "mechanisms are mppfl, dp_fedavg, and one is played. Choose it by --mechanism.",
        ),
        ("seeds = [1, 2]", (), "seeds are 1, 2, and one is played. Choose it by --seed."),
        ("[game]\nnum_rounds = 0", (), "game.num_rounds=0 must be a whole number of at least 1."),
        (
            "[game]\nnum_rounds = 10000001",
            (),
            "game.num_rounds=10000001 must be a whole number of at most 10,000,000.",
        ),
    ],
)
def test_what_a_file_and_options_cannot_say_together_is_refused_in_one_line(mppfl, write, text, more, told):
    assert told in mppfl("solve", "--experiment", write("trial.toml", text), *more).error


@pytest.mark.parametrize(
    "choices",
    [
        choose(num_rounds=4),
        choose(num_clients=9, mechanism="budget_limited", payment_limit=3.0, num_rounds=3, seed=7),
        choose(mechanism="random", family="barabasi_albert", budget_max=1.0, num_rounds=3, round_shown=2),
        choose(participation="rational", preset="benign", num_rounds=3),
    ],
)
def test_the_explorers_command_line_says_what_its_page_shows(mppfl, write, choices):
    path = write("explorer.toml", to_toml(choices))
    (line,) = [line for line in commands(choices, str(path)) if line.startswith("mppfl solve")]
    found = mppfl(*shlex.split(line)[1:], "--json").json
    scene = World().scene(choices)
    this = found["rounds"][scene.round_index - 1]
    assert this["server_cost"] == scene.solution.outcome.server_costs[scene.round_index - 1]
    assert list(this["budgets"].values()) == scene.budgets.tolist()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--mechanism", "dp_fedavg", "--fixed-budget", "1e160"), "--fixed-budget 1e+160 must lie in (0, 1e+100)"),
        (("--reward-rate", "1e160"), "--reward-rate 1e+160 must lie in (0, 1e+100)"),
    ],
)
def test_what_no_number_could_hold_the_cost_of_is_refused(mppfl, options, told):
    answer = mppfl("solve", "--num-clients", 3, "--rounds", 1, *options)
    assert told in answer.error
