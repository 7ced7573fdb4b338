"""The game's commands: solve, compare, risk, graph and calibrate, on networks of 4 to 700 clients."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.cases import (
    BEST,
    COMPARED,
    EXPOSED,
    ROUNDING,
    SETTLED,
    contract_files,
    with_its_digits,
    write_clients,
    write_lines,
    write_network,
    write_sample,
)
from tests.contract.doors import command, json_of

MECHANISMS = {
    "mppfl": ((), SETTLED),
    "mppfl_exact": ((), BEST),
    "mppfl_noise_aware": ((), BEST),
    "budget_limited": (("--payment-limit", 5, "--participation", "voluntary"), SETTLED),
    "pigouvian": ((), BEST),
    "personalised": ((), SETTLED),
    "social_agnostic": ((), {"leader_regret": ROUNDING}),
    "random": ((), {}),
    "dp_fedavg": (("--fixed-budget", "mean"), {}),
    "sarda_like": ((), {}),
    "sarda_r": ((), {}),
    "noiseless": ((), {}),
}
FAMILIES = {
    "erdos_renyi": ("probability_range=0.2,0.6",),
    "barabasi_albert": ("edges_each=3",),
    "watts_strogatz": ("neighbours=4", "rewire=0.2"),
    "stochastic_block": ("sizes=20,15,25", "within=0.4", "between=0.05"),
    "skewed": ("num_edges=300", "weights=ones"),
}
DRAWN = ("--num-clients", 10, "--seed", 4, "--rounds", 4)

EXPERIMENT = """
name = "contract"
seed = 2
mechanism = "mppfl_exact"

[game]
family = "stochastic_block"
num_clients = 14
sizes = [6, 8]
within = 0.6
between = 0.2
max_hops = 3
hop_decay = 0.7
preset = "benign"
externality_strength = 0.04
num_rounds = 5
reward_rate = "own"
participation = "rational"
budget_min = 0.02
budget_max = 0.9
"""


def solved(*arguments: object) -> dict:
    """What `mppfl solve --json` answers."""
    return with_its_digits(json_of("solve", *arguments))


def in_short(found: dict, step: int) -> dict:
    """An answer for many clients: the sum of their budgets, one budget in `step`, and how many take no part."""
    for each in found["rounds"]:
        budgets = list(each.pop("budgets").values())
        each |= {"sum_of_budgets": sum(budgets), "some_budgets": budgets[::step]}
        each["not_participating"] = len(each["not_participating"])
    return found


# ---- solve --------------------------------------------------------------------------------------------------------


def test_solve_answers_the_public_contract(golden, tmp_path):
    golden.check(solved(*contract_files(tmp_path)), noise=SETTLED)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_solve_prices_by_every_mechanism(golden, mechanism):
    options, noise = MECHANISMS[mechanism]
    golden.check(solved(*DRAWN, "--mechanism", mechanism, *options, "--prices"), noise=noise)


@pytest.mark.parametrize("preset", ["paper-like", "benign"])
def test_solve_draws_clients_and_takes_constants_of_a_preset(golden, preset):
    golden.check(solved("--preset", preset, "--num-clients", 30, "--seed", 11, "--rounds", 3), noise=SETTLED)


@pytest.mark.parametrize("mechanism", ["mppfl", "mppfl_exact", "personalised", "sarda_r"])
def test_solve_keeps_floors_and_ceilings(golden, tmp_path, mechanism):
    edges = write_network(tmp_path / "edges.csv", 9)
    clients = write_clients(tmp_path / "clients.csv", 9, floors=True, ceilings=True)
    found = solved("--graph", edges, "--clients", clients, "--rounds", 3, "--mechanism", mechanism, "--prices")
    golden.check(found, noise=MECHANISMS[mechanism][1])
    for each in found["rounds"]:
        assert all(each["budgets"][f"c{i}"] >= 0.05 for i in (0, 3, 6))
        assert all(each["budgets"][f"c{i}"] <= 0.6 + 0.1 * i + ROUNDING for i in (1, 3, 5, 7))
        assert each["budgets"]["c4"] == 0


@pytest.mark.parametrize("against", ["staying_out", "nothing"])
def test_solve_lets_clients_stay_out(golden, tmp_path, against):
    edges = write_network(tmp_path / "edges.csv", 14)
    clients = write_clients(tmp_path / "clients.csv", 14, floors=True)
    given = ("--graph", edges, "--clients", clients, "--externality-strength", 0.2, "--rounds", 4)
    found = solved(*given, "--participation", "rational", "--against", against)
    golden.check(found, noise={} if against == "staying_out" else SETTLED)


@pytest.mark.parametrize("mechanism", ["mppfl", "social_agnostic"])
def test_solve_takes_a_reward_rate_as_given(golden, mechanism):
    found = solved(*DRAWN, "--mechanism", mechanism, "--reward-rate", 1.75, "--prices")
    golden.check(found, noise=SETTLED if mechanism == "mppfl" else {})
    assert {each["reward_rate"] for each in found["rounds"]} == {1.75}


def test_solve_leaves_budgets_out_where_nobody_asks_for_them(golden):
    golden.check(solved(*DRAWN, "--seed", 5, "--no-budgets"), noise=SETTLED)


def test_solve_plays_the_game_of_an_experiment_file(golden, tmp_path):
    file = write_lines(tmp_path / "experiment.toml", [EXPERIMENT])
    as_written = solved("--experiment", file)
    typed = solved("--experiment", file, "--rounds", 2, "--mechanism", "mppfl")
    golden.check({"as_written": as_written, "typed": typed}, noise=SETTLED)


@pytest.mark.parametrize(
    "reading",
    [
        ("--normalisation", "none", "--externality-strength", 0.01),
        ("--normalisation", "symmetric", "--undirected"),
        ("--max-hops", 1),
    ],
    ids=["not_normalised", "symmetric", "one_hop"],
)
def test_solve_reads_a_network_as_it_is_told(golden, tmp_path, reading):
    edges = write_network(tmp_path / "edges.csv", 10)
    golden.check(solved("--graph", edges, "--rounds", 3, *reading), noise=SETTLED)


def test_solve_drops_self_loops_and_clients_whom_nobody_exposes(golden, tmp_path):
    edges = write_lines(tmp_path / "edges.csv", ["a b", "b c", "c a", "c c", "d a", "b d", "e b", "# a comment"])
    given = ("solve", "--graph", edges, "--rounds", 3, "--no-budgets", "--self-loops", "drop", "--isolated")
    golden.check({rule: json_of(*given, rule) for rule in ("keep", "drop")}, noise=BEST | {"leader_regret": 1.0})


@pytest.mark.parametrize("diagonal", ["auto", "estimate"])
def test_solve_answers_for_700_clients(golden, tmp_path, diagonal):
    """Beyond 600 clients walks are walked by compiled code instead of being multiplied out."""
    edges = tmp_path / "edges.csv"
    command("graph", "generate", "watts_strogatz", edges, "--num-clients", 700, "--seed", 8)
    found = solved("--graph", edges, "--seed", 1, "--rounds", 3, "--diagonal", diagonal)
    golden.check(in_short(found, 35), noise=SETTLED)


def test_solve_answers_the_same_on_pytorch(golden, tmp_path):
    golden.check(solved(*contract_files(tmp_path), "--rounds", 3, "--device", "cpu"), relative=1e-9, noise=SETTLED)


def test_compare_answers_for_every_mechanism_and_two_games(golden):
    golden.check(json_of(*COMPARED))


def test_compare_plays_an_experiment_file(golden, tmp_path):
    file = write_lines(tmp_path / "experiment.toml", [EXPERIMENT.replace("seed = 2", "seeds = [2, 7]", 1)])
    chosen = ("--mechanisms", "mppfl,dp_fedavg,budget_limited,noiseless", "--fixed-budget", 0.3, "--rounds", 2)
    with_limit = write_lines(tmp_path / "limited.toml", [file.read_text() + "payment_limit = 2.0"])
    golden.check(json_of("compare", "--optimum", "--experiment", with_limit, *chosen))


def test_compare_totals_and_prices_what_leaks(golden, tmp_path):
    given = contract_files(tmp_path)[:4]
    sample = write_sample(tmp_path / "sample.csv", 12)
    priced = ("--attribute", sample, "--leak-price", 2.0, "--mechanisms", "mppfl,social_agnostic,leakage_priced")
    golden.check(json_of("compare", "--optimum", *given, *priced, "--undirected", "--rounds", 2), relative=1e-7)


# ---- risk ---------------------------------------------------------------------------------------------------------


def test_risk_names_the_most_exposed_and_the_key_players(golden):
    golden.check(json_of(*EXPOSED))


def test_risk_explains_one_client_by_source_and_hop(golden, tmp_path):
    given = contract_files(tmp_path)[:12]
    golden.check(json_of("risk", *given, "--mechanism", "sarda_like", "--round", 7, "--client", "c5", "--top", 4))


def test_risk_bounds_and_estimates_what_leaks(golden, tmp_path):
    edges, sample = write_network(tmp_path / "edges.csv", 20), write_sample(tmp_path / "sample.csv", 20)
    told = ("--attribute", sample, "--coupling", 0.1, "--client", "c3", "--protect-share", 0.4, "--top", 5)
    golden.check(json_of("risk", "--graph", edges, "--undirected", *told), relative=1e-9)


def test_risk_shows_budgets_that_are_priced_by_what_they_leak(golden, tmp_path):
    edges, sample = write_network(tmp_path / "edges.csv", 10), write_sample(tmp_path / "sample.csv", 10)
    priced = ("--mechanism", "leakage_priced", "--leak-price", 5.0, "--attribute", sample, "--top", 10)
    golden.check(json_of("risk", "--graph", edges, "--undirected", *priced), relative=1e-7)


# ---- networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_graph_draws_a_network_of_every_family(golden, tmp_path, family):
    edges = tmp_path / "edges.csv"
    settings = [part for option in FAMILIES[family] for part in ("--set", option)]
    command("graph", "generate", family, edges, "--num-clients", 60, "--seed", 9, *settings)
    drawn = edges.read_text(encoding="utf-8").splitlines()
    found = solved("--graph", edges, "--isolated", "keep", "--rounds", 3, "--no-budgets")
    golden.check({"edges": [len(drawn), drawn[:6], drawn[-3:]], "solve": found}, noise=SETTLED)


def test_graph_describes_isolated_clients_pairs_and_parts(golden, tmp_path):
    edges = write_lines(tmp_path / "edges.csv", ["a\tb\t2", "b\ta\t2", "c\td\t0.5", "d\te\t1.5", "e\tc\t1", "f\tc\t3"])
    ways = (("--undirected",), ("--normalisation", "none"), ("--isolated", "drop"))
    golden.check([json_of("graph", "describe", edges, *way) for way in ways])


def test_graph_keeps_every_weight_from_one_form_to_another(golden, tmp_path):
    edges, back = write_network(tmp_path / "edges.csv", 8), tmp_path / "back.csv"
    command("graph", "convert", edges, tmp_path / "edges.graphml")
    command("graph", "convert", tmp_path / "edges.graphml", back)
    golden.check(back.read_text(encoding="utf-8").splitlines())
    given = ("--rounds", 3, "--no-budgets")
    one, other = solved("--graph", edges, *given), solved("--graph", tmp_path / "edges.graphml", *given)
    assert one["rounds"] == other["rounds"]


def test_calibrate_fits_an_attribute_on_a_public_share(golden, tmp_path):
    edges, sample = write_network(tmp_path / "edges.csv", 60), write_sample(tmp_path / "sample.csv", 60)
    given = ("--graph", edges, "--attribute", sample, "--public-share", 0.6, "--budget", 0.4, "--seed", 2)
    golden.check(json_of("calibrate", *given), relative=1e-9)


def test_a_wrong_value_is_named_in_one_line_and_wrong_usage_ends_with_exit_code_2(tmp_path):
    right = write_clients(tmp_path / "clients.csv", 6).read_text(encoding="utf-8")
    wrong = write_lines(tmp_path / "wrong.csv", [right.replace("c2,0.8", "c2,minus three")])
    given = ("solve", "--graph", write_network(tmp_path / "edges.csv", 6), "--clients", wrong)
    for line, code, told in ((given, 1, "minus three"), (("solve", "--rounds", "three"), 2, "three")):
        done = command(*line, code=code)
        assert done.stdout == ""
        assert code == 2 or done.stderr.count("\n") == 1
        assert told in done.stderr


@pytest.fixture(scope="module")
def graphs():
    """The folder of real networks."""
    root = os.environ.get("MPPFL_DATA")
    if not root or not (Path(root) / "graphs").is_dir():
        pytest.skip("set MPPFL_DATA to the folder that holds graphs/ (docs/data-sets.md)")
    return Path(root) / "graphs"


def answers_on(edges: Path, *options: object) -> dict:
    """What three commands answer on a network that is too large for all of its budgets to be written down."""
    given = ("--graph", edges, *options)
    return {
        "describe": json_of("graph", "describe", edges, *[each for each in options if each == "--undirected"]),
        "solve": in_short(solved(*given, "--rounds", 5), 97),
        "risk": json_of("risk", *given, "--top", 5),
    }


@pytest.mark.data
def test_the_friends_of_lastfm_are_answered(golden, graphs, tmp_path):
    rows = (graphs / "hetrec2011-lastfm-2k" / "user_friends.dat").read_text(encoding="utf-8").splitlines()
    edges = write_lines(tmp_path / "friends.tsv", ["\t".join(row.split("\t")[:2]) for row in rows[1:]])
    golden.check(answers_on(edges), noise=SETTLED)


@pytest.mark.data
def test_the_ego_networks_of_facebook_are_answered(golden, graphs, tmp_path):
    files = sorted((graphs / "ego-facebook").glob("*.edges"))
    edges = sorted({line for file in files for line in file.read_text(encoding="utf-8").splitlines()})
    golden.check(answers_on(write_lines(tmp_path / "ego.txt", edges), "--undirected"), noise=SETTLED)
