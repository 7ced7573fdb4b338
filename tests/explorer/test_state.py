"""Choices: a link holds all of them, an experiment file plays their game, and what cannot be is refused in one line."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.experiment import game_without_data, read_experiment, solve_all
from mppfl.explorer import (
    CLIENTS_ARE,
    KEYS,
    LEADERS,
    MECHANISM_OF_LEADER,
    ONE_OF,
    Choices,
    World,
    commands,
    experiment_of,
    from_query,
    to_query,
    to_toml,
    with_preset,
)
from mppfl.game import MECHANISMS, PRESETS

POSITIVE = st.floats(1e-6, 1e6)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def any_choices(draw) -> Choices:
    """Choices of every kind, all fields drawn."""
    low = draw(st.just(0.0) | POSITIVE)
    return Choices(
        **{name: draw(st.sampled_from(listed)) for name, listed in ONE_OF.items()},
        num_clients=draw(st.integers(2, 3000)),
        seed=draw(st.integers(0, 2**53)),
        undirected=draw(st.booleans()),
        max_hops=draw(st.integers(1, 50)),
        hop_decay=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        externality_strength=draw(st.floats(0, 1e6)),
        accuracy_weight=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        num_rounds=draw(st.integers(1, 1000)),
        payment_limit=draw(POSITIVE),
        fixed_budget=draw(st.sampled_from(["min", "mean"]) | POSITIVE.map(repr)),
        budget_min=low,
        budget_max=draw(st.none() | POSITIVE.map(lambda width: low + width)),
        round_shown=draw(st.integers(1, 1000)),
        client=draw(WORDS),
        other=draw(WORDS),
        opened=tuple(draw(st.lists(st.integers(0, 10**6), max_size=3))),
        runs=tuple(draw(st.lists(WORDS.filter(bool), max_size=3, unique=True))),
    )


# ---- as a link ----------------------------------------------------------------------------------------------------


@given(any_choices())
def test_a_link_holds_every_choice(choices):
    assert from_query(to_query(choices)) == choices


def test_a_link_says_only_what_differs_from_the_defaults_and_unknown_keys_are_ignored():
    assert to_query(Choices()) == ""
    assert from_query("?utm_source=mail&alpha=0.2&theme=dark") == Choices(externality_strength=0.2)
    assert from_query("") == from_query("?") == Choices()
    assert set(KEYS) == {each.name for each in fields(Choices)}
    assert len(set(KEYS.values())) == len(KEYS)
    chosen = Choices(externality_strength=0.1, max_hops=3, client="ann b", opened=(4, 0), runs=("a", "b/c"))
    assert to_query(chosen) == "?hops=3&alpha=0.1&client=ann+b&opened=4.0&run=a&run=b%2Fc"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?alpha=high", "alpha='high' in the link must be a number. Correct it, or leave it out."),
        ("?alpha=nan", "externality_strength=nan must lie in"),
        ("?hops=0", "max_hops=0 must be a whole number of at least 1."),
        ("?hops=1_0", "hops='1_0' in the link must be a whole number."),
        ("?hops=51", "max_hops=51 is too many for this page. Ask for at most 50."),
        ("?undirected=1", "undirected='1' in the link must be yes or no."),
        ("?who=nobody", "clients_are='nobody' must be one of mppfl, social_agnostic"),
        ("?network=/etc/passwd", "network='/etc/passwd' must be one of random, file, run."),
        ("?fixed=little", "fixed_budget='little' must be min, mean or a number above 0."),
        ("?least=2&most=1", "budget_max=1 is below budget_min=2. Raise it."),
        ("?clients=20000", "num_clients=20,000 is too many for a random erdos_renyi on this page."),
        ("?run=a&run=a", "must be names of runs, each once."),
        ("?opened=1.x", "opened='1.x' in the link must be whole numbers with points between them."),
        (f"?client={'x' * 30_000}", "the link has 30,008 characters; at most 20,000 can be read."),
    ],
)
def test_a_value_that_cannot_be_is_told_in_one_line(query, message):
    with pytest.raises(BadInput) as refused:
        from_query(query)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


# ---- as a mechanism -----------------------------------------------------------------------------------------------


def test_every_leader_and_every_kind_of_client_is_a_mechanism():
    assert {Choices(leader=leader).mechanism for leader in LEADERS} == set(MECHANISM_OF_LEADER.values())
    kinds = CLIENTS_ARE[1:]
    assert tuple(Choices(clients_are=kind, leader="pigouvian").mechanism for kind in kinds) == kinds
    everything = {Choices(clients_are=kind, leader=leader).mechanism for kind in CLIENTS_ARE for leader in LEADERS}
    assert everything == set(MECHANISMS) - {"noiseless"}  # without noise there is no budget to show


def test_a_preset_brings_its_constants():
    choices = with_preset(Choices(max_hops=2), "benign")
    benign = PRESETS["benign"]
    assert (choices.preset, choices.max_hops, choices.hop_decay) == ("benign", benign.max_hops, benign.hop_decay)
    assert with_preset(choices, "paper-like") == Choices()


# ---- as an experiment file ----------------------------------------------------------------------------------------


def read_back(folder, choices, source=None):
    path = folder / "explorer.toml"
    path.write_text(to_toml(choices, source), encoding="utf-8")
    return read_experiment(path)


@settings(max_examples=40, deadline=None)
@given(any_choices())
def test_the_experiment_file_says_what_the_choices_mean(tmp_path_factory, choices):
    source = Path("/somewhere/edges.csv")
    assert read_back(tmp_path_factory.mktemp("toml"), choices, source) == experiment_of(choices, source)


@pytest.mark.parametrize(
    "choices",
    [
        Choices(),
        Choices(num_clients=9, seed=5, budget_min=0.05, budget_max=0.6, num_rounds=3),
        Choices(family="watts_strogatz", preset="benign", clients_are="random", seed=3, num_rounds=4),
        Choices(clients_are="dp_fedavg", fixed_budget="0.125", num_rounds=3),
        Choices(leader="budget_limited", payment_limit=2.5, num_rounds=3, num_clients=6),
        Choices(participation="if_non_negative", num_rounds=3, max_hops=2, hop_decay=0.3, externality_strength=0.2),
        Choices(leader="personalised", accuracy_weight=0.7, num_rounds=2),
    ],
)
def test_the_experiment_file_makes_the_same_game_to_the_last_bit(world, choices, tmp_path):
    experiment = read_back(tmp_path, choices)
    solution = solve_all(experiment, game_without_data(experiment, choices.seed), choices.seed)[choices.mechanism]
    shown = world.scene(choices).solution
    assert np.array_equal(solution.plan.to_matrix(), shown.plan.to_matrix())
    assert np.array_equal(solution.plan.reward_rates, shown.plan.reward_rates)
    assert np.array_equal(solution.game.clients.budget_max, shown.game.clients.budget_max)


def test_a_network_from_a_file_is_read_as_on_the_page_and_without_one_there_is_no_experiment(tmp_path):
    links = tmp_path / "edges.csv"
    links.write_text("ann,bob\nbob,cat\ncat,ann\ncat,cat\ndan,ann\n", encoding="utf-8")  # nobody exposes dan
    world = World(source=links)
    for changed in ({}, {"undirected": True}, {"seed": 1}):
        choices = Choices(network="file", **changed)
        again = game_without_data(read_back(tmp_path, choices, world.source(choices)), choices.seed)
        assert again.graph.names == ("ann", "bob", "cat", "dan")
        assert np.array_equal(again.clients.quadratic_cost, world.game(choices).clients.quadratic_cost)
        assert (again.graph.influence != world.graph(choices).influence).nnz == 0
    with pytest.raises(BadInput, match="network='file' has no file of edges here"):
        to_toml(Choices(network="file"))


def test_commands_name_the_file_and_begin_with_what_is_shown():
    assert commands(Choices())[0] == "mppfl solve --experiment mppfl-experiment.toml"
    assert commands(Choices(tab="comparison"), "my file.toml")[0] == (
        "mppfl compare --experiment 'my file.toml' --mechanisms all"
    )
    hidden = Choices(tab="comparison", fixed_budget="mean")  # of a mechanism that is compared, and not the one shown
    assert commands(hidden)[0].endswith("--mechanisms all --fixed-budget mean")
    assert set(commands(Choices())) == set(commands(replace(Choices(), tab="comparison")))


def test_an_empty_network_is_told_and_not_taken_for_the_usual_one():
    pytest.importorskip("dash")
    from mppfl.explorer import choices_of

    with pytest.raises(BadInput, match="no network is chosen"):
        choices_of({"network": None}, Choices())
    assert choices_of({"network": "random", "num_clients": None}, Choices()) == Choices()
