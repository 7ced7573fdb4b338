"""Specs: a game said through options, a file, a link or Python is one game to the last bit; what cannot be is told."""

from __future__ import annotations

import pickle
import re
import tomllib
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mppfl
from mppfl.data import FEATURES
from mppfl.errors import BadInput
from mppfl.experiment import CONSTANTS, read_experiment
from mppfl.fields import about, choices, from_query, hints, to_text
from mppfl.game import MECHANISMS, PRESETS
from mppfl.network import Diagonal, Isolated, Normalisation, SelfLoops
from mppfl.privacy import NOISE_KINDS, Adjacency, Protection, Unit
from mppfl.spec import TABLES, DataSpec, Experiment, GameSpec, LedgerSpec, OutputSpec, TrainingConfig, keys_of
from mppfl.training import MODEL_NAMES, NORMS
from tests.cli.conftest import calling  # noqa: F401  (fixtures)


@pytest.fixture
def command_line(calling):  # noqa: F811
    """Runs `mppfl ...` in this process."""
    from mppfl.cli import main

    return calling(main)


# ---- random specs ------------------------------------------------------------------------------------------------

SHARES, SOME = st.floats(0.01, 0.99), st.floats(1e-3, 5.0)
FAMILIES = st.sampled_from(
    [
        st.just({}),
        st.fixed_dictionaries({"probability_range": st.tuples(st.floats(0.3, 0.5), st.floats(0.5, 0.9))}),
        st.fixed_dictionaries({"family": st.just("barabasi_albert"), "edges_each": st.integers(1, 3)}),
        st.fixed_dictionaries({"family": st.just("watts_strogatz"), "neighbours": st.just(4), "rewire": SHARES}),
        st.fixed_dictionaries(
            {"family": st.just("stochastic_block"), "sizes": st.just((5, 4)), "within": SHARES, "between": SHARES}
        ),
        st.fixed_dictionaries({"family": st.just("skewed"), "num_edges": st.integers(30, 40), "popularity": SHARES}),
    ]
).flatmap(lambda values: values)
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**31),
        "graph_seed": st.integers(0, 2**31),
        "clients_seed": st.integers(0, 2**31),
        "normalisation": st.sampled_from(["row", "none", "symmetric"]),
        "diagonal": st.sampled_from(["auto", "exact"]),
        "preset": st.sampled_from(["paper-like", "benign"]),
        "max_hops": st.integers(1, 6),
        "hop_decay": SHARES,
        "externality_strength": st.floats(0.0, 0.2),
        "accuracy_weight": SHARES,
        "trust": st.sampled_from(["local", "secure_sum", "server"]),
        "budget_min": st.just(0.0) | st.floats(1e-6, 0.1),
        "budget_max": st.floats(0.2, 9.0),
        "num_rounds": st.integers(1, 4),
        "participation": st.sampled_from(["everyone", "voluntary", "rational"]),
        "reward_rate": st.sampled_from(["own", "common"]) | SOME,
        "payment_limit": SOME,
        "fixed_budget": st.sampled_from(["min", "mean"]) | SOME,
        "weights": st.just("uniform"),
        "weight_range": st.tuples(st.floats(0.1, 0.5), st.floats(0.5, 2.0)),
    },
)


@st.composite
def some_values(draw) -> dict:
    """Values of a random network of nine clients, by the names of GameSpec."""
    values = {"num_clients": 9, **draw(FAMILIES), **draw(OTHERS)}
    if values.get("participation") == "rational":
        values["against"] = draw(st.sampled_from(["staying_out", "nothing"]))
    return values


def as_options(values) -> list[str]:
    """The options that say these values."""
    line = []
    for name, value in values.items():
        named = "" if name == "mechanism" else about(GameSpec, name).option
        option = named or f"--{name.replace('_', '-')}"
        line += [option] if value is True else [option, to_text(value)]
    return line


def typed(command: str, line: list[str]) -> mppfl.GameSpec:
    """The game that a command is asked for, caught before it is played."""
    import typer.main

    from mppfl.cli import app

    caught: list[GameSpec] = []

    class Caught(Exception):
        pass

    def catch(spec: GameSpec, *_: object, **__: object) -> None:
        caught.append(spec)
        raise Caught

    with pytest.MonkeyPatch.context() as patch, suppress(Caught):
        patch.setattr("mppfl.experiment.require_playable", catch)
        patch.setattr("mppfl.cli.explore.open_site", catch)
        typer.main.get_command(app)([command, *line], standalone_mode=False)
    return caught[0]


def require_equal_games(one, other):
    """Bit for bit: edges, clients, constants."""
    edges = (f"graph.influence.{array}" for array in ("data", "indices", "indptr"))
    costs = ("quadratic_cost", "linear_cost", "noise_harm", "compute_cost", "budget_min", "budget_max")
    constants = ("externality_strength", "accuracy_weight", "propagation.max_hops", "propagation.hop_decay", "trust")
    for part in (*edges, *(f"clients.{cost}" for cost in costs), *constants):
        assert np.array_equal(attrgetter(part)(one), attrgetter(part)(other)), part


def require_one_game(values, folder) -> None:
    """The same in Python, by options, in a file and in a link."""
    spec, path = GameSpec(**values), folder / "game.toml"
    path.write_text(spec.to_toml(), encoding="utf-8")
    (linked,) = from_query(spec.link(), GameSpec)
    for other in (typed("solve", as_options(values)), read_experiment_game(path, spec), GameSpec(**linked)):
        assert other == spec
        require_equal_games(spec.build(), other.build())


def read_experiment_game(path, spec) -> GameSpec:
    """The game of the file, for mechanisms that take its options."""
    limited = [] if spec.payment_limit is None or spec.reward_rate != "own" else ["budget_limited"]
    names = ["mppfl", "dp_fedavg", *limited]
    text = path.read_text(encoding="utf-8")
    if spec.payment_limit is not None and not limited:  # means nothing to those who can play at these rates
        text = "\n".join(line for line in text.splitlines() if not line.startswith("payment_limit"))
    path.write_text(f"mechanisms = {names}\n{text}".replace("'", '"'), encoding="utf-8")
    game = read_experiment(path).game
    return game if limited or spec.payment_limit is None else replace(game, payment_limit=spec.payment_limit)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some_values())
def test_the_same_game_through_every_door_is_equal_to_the_last_bit(tmp_path, values):
    require_one_game(values, tmp_path)


@pytest.mark.parametrize("more", [{}, {"undirected": True}, {"isolated": "drop", "self_loops": "drop"}])
def test_a_network_and_clients_of_files_are_the_same_through_every_door(tmp_path, more):
    edges, clients = tmp_path / "edges.csv", tmp_path / "clients.csv"
    loop = "bob,bob\n" if "self_loops" in more else ""
    edges.write_text(f"ann,bob\nbob,cat\ncat,ann\n{loop}", encoding="utf-8")
    header = "name,quadratic_cost,linear_cost,noise_harm\n"
    clients.write_text(f"{header}ann,1,0.1,1\nbob,2,0.2,1\ncat,3,0.3,1\n", encoding="utf-8")
    require_one_game({"graph": str(edges), "clients": str(clients), "num_clients": 3, **more}, tmp_path)


HANDFUL = [
    {},
    {"num_clients": 12, "seed": 3, "preset": "benign", "num_rounds": 2},
    {"num_clients": 7, "seed": 1, "num_rounds": 3, "mechanism": "social_agnostic", "reward_rate": "common"},
    {"num_clients": 8, "num_rounds": 2, "mechanism": "dp_fedavg", "fixed_budget": 0.25, "reward_rate": 1.5},
    {"num_clients": 8, "num_rounds": 2, "budget_max": 0.5, "participation": "rational", "against": "nothing"},
    {"num_clients": 8, "num_rounds": 2, "trust": "secure_sum"},
]


@pytest.mark.parametrize("values", HANDFUL)
def test_every_door_solves_to_the_same_numbers(command_line, tmp_path, values):
    from mppfl.explorer import World, from_link, to_toml

    mechanism = values.get("mechanism", "mppfl")
    game = {name: value for name, value in values.items() if name != "mechanism"}
    by_options = command_line("solve", *as_options(values), "--json").json
    choices_of_link = from_link(f"{GameSpec(**game).link() or '?'}&mechanism={mechanism}")
    path = tmp_path / "game.toml"
    path.write_text(to_toml(choices_of_link), encoding="utf-8")
    by_file = command_line("solve", "--experiment", path, "--json").json
    assert by_file["rounds"] == by_options["rounds"]
    shown = World().solution(choices_of_link)
    assert [terms.reward_rate for terms in shown.plan] == [each["reward_rate"] for each in by_options["rounds"]]
    assert shown.plan[0].budgets.tolist() == list(by_options["rounds"][0]["budgets"].values())
    if "reward_rate" not in values and "participation" not in values and "fixed_budget" not in values:
        spec = GameSpec(**game)
        solution = mppfl.solve(spec.build(), mechanism, num_rounds=spec.num_rounds)
        assert solution.plan[0].budgets.tolist() == shown.plan[0].budgets.tolist()


def test_the_game_of_a_file_has_the_trust_of_its_protection_unless_it_has_its_own(command_line, tmp_path):
    path, sums = tmp_path / "sums.toml", '[protection]\ntrust = "secure_sum"\n'
    path.write_text(f"[game]\nnum_clients = 8\nnum_rounds = 2\n{sums}", encoding="utf-8")
    game = ("solve", "--num-clients", 8, "--rounds", 2, "--json")
    by_file = [command_line("solve", "--experiment", path, *more, "--json") for more in ((), ("--trust", "local"))]
    by_options = [command_line(*game, "--trust", trust) for trust in ("server", "local")]
    assert [answer.json["rounds"] for answer in by_file] == [answer.json["rounds"] for answer in by_options]


# ---- presets, numbers, names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_whole(name):
    game = GameSpec(preset=name).build()
    spread = game.propagation
    constants = (spread.max_hops, spread.hop_decay, game.externality_strength, game.accuracy_weight)
    assert constants == tuple(getattr(PRESETS[name], constant) for constant in CONSTANTS)


def test_numbers_of_numpy_are_kept_and_written_as_numbers():
    of_numpy = {"num_clients": np.int64(9), "hop_decay": np.float64(0.1), "sizes": np.array([4, 5])}
    spec = GameSpec(**of_numpy, family="stochastic_block", within=np.float32(0.5))
    assert spec == GameSpec(num_clients=9, hop_decay=0.1, family="stochastic_block", sizes=(4, 5), within=0.5)
    assert {type(value) for value in spec.changed().values()} <= {int, float, tuple, str}
    assert "hop_decay = 0.1\n" in spec.to_toml()
    assert LedgerSpec(caps={"ann": np.float64(2)}).caps == {"ann": 2.0}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: GameSpec(num_client=10), "'num_client' is not known. Did you mean 'num_clients'?"),
        (lambda: Experiment(game={"num_client": 10}), "'game.num_client' is not known. Did you mean 'num_clients'?"),
        (lambda: Experiment(ledger={"cups": {}}), "'ledger.cups' is not known. Did you mean 'cap"),
        (lambda: OutputSpec(dir="x"), "'dir' is not known. Known: folder, checkpoint_every."),
        (lambda: from_query("?num_client=3", GameSpec), "'num_client' is not known. Did you mean 'num_clients'?"),
        (lambda: from_query("?seed=1&seed=2", GameSpec), 'seed="2" stands twice in the link.'),
        (lambda: GameSpec(participation="if_non_negative"), "Did you mean 'rational'?"),
        (lambda: GameSpec(generate="skewed"), "Did you mean 'family'?"),
        (lambda: GameSpec(graph="x", family="skewed"), 'graph="x" and family="skewed" are two networks. Keep one.'),
        (lambda: GameSpec(against="nothing"), 'against="nothing" is for participation="rational" only.'),
        (lambda: GameSpec(undirected=True), "undirected=true is for a network from a file. Give graph=FILE, too."),
        (lambda: GameSpec(rewire=0.1), "rewire=0.1 means nothing to erdos_renyi, whose options are probability_range"),
        (lambda: GameSpec(budget_min=2, budget_max=1), "budget_max=1 is below budget_min=2. Raise it."),
        (lambda: GameSpec(num_clients=True), "num_clients=true must be a whole number."),
    ],
)
def test_what_cannot_be_is_told_in_one_line_with_the_nearest_name(make, told):
    with pytest.raises(BadInput) as refused:
        make()
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_choices_are_those_of_the_folders():
    of_network = {"isolated": Isolated, "self_loops": SelfLoops, "normalisation": Normalisation, "diagonal": Diagonal}
    for spec, known in (
        (GameSpec, {"preset": PRESETS, **{name: get_args(kind) for name, kind in of_network.items()}}),
        (TrainingConfig, {"model": MODEL_NAMES, "norm": NORMS}),
        (Protection, {"noise": NOISE_KINDS}),
        (DataSpec, {"features": FEATURES}),
    ):
        for name, names in known.items():
            assert sorted(choices(hints(spec)[name])) == sorted(names), name


def test_every_field_is_explained_and_every_option_of_a_mechanism_is_a_field():
    for table, cls in TABLES.items():
        assert all(about(cls, name).help.endswith((".", "...")) for name in keys_of(table))
        assert all(f"        {name}: " in cls.__doc__ for name in hints(cls))
    assert {record.option for record in MECHANISMS.values()} - {None} <= set(hints(GameSpec))


def test_specs_are_values():
    spec = GameSpec(num_clients=9, sizes=None)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(GameSpec(num_clients=9))
    assert repr(spec) == "GameSpec(num_clients=9)"
    assert Experiment(game=GameSpec(seed=4)).seeds == (4,)
    assert Experiment(seeds=[2, 3]).game_of(3).seed == 3


# ---- protections ---------------------------------------------------------------------------------------------------


@st.composite
def protections(draw) -> Protection:
    """Any protection that can be."""
    unit = draw(st.sampled_from(get_args(Unit)))
    release = draw(st.sampled_from(["update"] if unit == "client" else ["gradient", "steps"]))
    trust = "local" if release == "steps" else draw(st.sampled_from(get_args(hints(Protection)["trust"])))
    batches = draw(st.sampled_from(get_args(hints(Protection)["batches"]))) if release == "steps" else "whole"
    values = {"unit": unit, "release": release, "trust": trust, "batches": batches}
    values["client_rate"] = 1.0 if trust == "local" else draw(st.sampled_from([1.0, 0.25]))
    sampled = batches == "poisson" or values["client_rate"] < 1
    values["cohorts"] = 1 if sampled or trust == "local" else draw(st.integers(1, 9))
    values["adjacency"] = "zero_out" if sampled else draw(st.sampled_from(get_args(Adjacency)))
    kinds = [kind for kind in NOISE_KINDS if (trust, kind) != ("secure_sum", "gaussian")]
    values |= {"noise": draw(st.sampled_from(kinds)), "clip_norm": draw(SOME), "dp_delta": draw(SHARES)}
    if trust == "secure_sum":
        values |= {"dropouts": draw(st.integers(0, 3)), "colluding": draw(st.integers(0, 3))}
    return Protection(**values, **draw(st.sampled_from([{}, {"total_epsilon": 2.0}, {"budget_unit": 0.3}])))


@settings(max_examples=100, deadline=None)
@given(protections())
def test_a_protection_is_the_same_in_a_file_in_python_and_where_it_is_printed(protection):
    from mppfl.experiment import experiment_from

    chosen = Experiment(protection=protection)
    assert chosen == Experiment(training=TrainingConfig(protection=protection))
    assert chosen.protection == chosen.training.protection == protection
    assert experiment_from(tomllib.loads(chosen.to_toml())) == chosen
    assert eval(repr(protection), {"Protection": Protection}) == protection
    assert Protection(**protection.changed()) == protection
    assert pickle.loads(pickle.dumps(protection)) == protection


def test_a_protection_is_shown_without_what_follows_from_the_rest():
    assert repr(Protection()) == "Protection()"
    assert repr(Protection(unit="client", adjacency="zero_out")) == "Protection(unit='client', adjacency='zero_out')"
    assert repr(Experiment(protection={"clip_norm": 0.5})).splitlines()[1:] == ["  protection clip_norm = 0.5"]


def test_an_experiment_and_its_training_have_one_protection():
    client = Protection(unit="client")
    chosen = Experiment(training={"norm": "batch"}, protection={"unit": "client"})  # which fits no other unit
    assert chosen.training == TrainingConfig(norm="batch", protection=client)
    assert replace(Experiment(), protection=client).training.protection == client
    with pytest.raises(BadInput, match=r"two\. Keep one, or give the same twice"):
        replace(Experiment(), training=TrainingConfig(protection=client))
    with pytest.raises(BadInput, match=r"two\. Keep one, or give the same twice"):
        replace(chosen, protection=Protection())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"unit": "client", "release": "gradient"}, "release='gradient' does not hide a client"),
        ({"batches": "poisson"}, "batches='poisson' is for release='steps'."),
        ({"release": "steps", "trust": "server"}, "trust='server' opens one sum a round"),
        ({"release": "steps", "batches": "poisson", "adjacency": "replace_one"}, "under adjacency='zero_out'"),
        ({"client_rate": 0.5}, "must be above 0, and 1 under trust='local'"),
        ({"cohorts": 2}, "cohorts=2 join sums in public turns. Use trust='secure_sum' or 'server'"),
        ({"cohorts": 2, "trust": "server", "client_rate": 0.5}, "with client_rate=1, or cohorts=1."),
        ({"cohorts": 0, "trust": "server"}, "must be"),
        ({"dropouts": 1}, "dropouts and colluding are for trust='secure_sum'."),
        ({"trust": "secure_sum", "noise": "gaussian"}, "Use noise='discrete'."),
        ({"total_epsilon": 2, "budget_unit": 0.5}, "Keep one of them."),
        ({"privacy": "paper"}, "'privacy' is not known."),
        ({"clip_norm": "first_round_median"}, 'clip_norm="first_round_median" must be a finite number.'),
    ],
)
def test_a_protection_that_cannot_be_is_told(values, told):
    with pytest.raises(BadInput, match=re.escape(told)):
        Protection(**values)
    with pytest.raises(BadInput) as refused:
        Experiment(protection=values)
    assert told in str(refused.value).replace("'protection.", "'")


FILE = ('mechanism = "mppfl_exact"', "seed = 2", "[game]", "num_clients = 8", "num_rounds = 2", "max_hops = 2")


@pytest.mark.parametrize("command", ["solve", "compare", "risk", "explore"])
def test_values_of_a_file_are_replaced_by_set_and_by_options(tmp_path, command):
    path = tmp_path / "trial.toml"
    path.write_text("\n".join(FILE), encoding="utf-8")
    of_file = GameSpec(num_clients=8, num_rounds=2, max_hops=2, seed=2)
    line = ["--experiment", str(path)]
    assert typed(command, line) == of_file
    assert typed(command, [*line, "--set", "game.max_hops=3"]) == replace(of_file, max_hops=3)
    both = [*line, "--set", "game.hop_decay=0.3", "--max-hops", "4", "--seed", "5", "--preset", "benign"]
    assert typed(command, both) == replace(of_file, hop_decay=0.3, max_hops=4, seed=5, preset="benign")
    with pytest.raises(BadInput, match=r"trial.toml: 'game.max_hop' is not known. Did you mean 'max_hops'\?"):
        typed(command, [*line, "--set", "game.max_hop=3"])
    with pytest.raises(BadInput, match=r"--set game\.max_hops=3 replaces a value of an experiment file"):
        typed(command, ["--set", "game.max_hops=3"])


def test_the_network_of_a_file_is_described_and_drawn(command_line, tmp_path):
    path, edges = tmp_path / "trial.toml", tmp_path / "edges.csv"
    path.write_text("\n".join(FILE), encoding="utf-8")
    line = ("graph", "describe", "--experiment", path, "--set", "game.num_clients=9", "--json")
    assert command_line(*line).json["num_clients"] == 9
    assert command_line("graph", "generate", "erdos_renyi", edges, "--num-clients", 8, "--seed", 2).code == 0
    drawn = command_line("graph", "describe", edges, "--json").json
    assert drawn["num_edges"] == GameSpec(num_clients=8, seed=2).build().graph.num_edges
