"""Choices: a link holds all of them, an experiment file plays their game, and what cannot be is refused in one line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.experiment import read_experiment, under
from mppfl.explorer import COLOURS, SHOWN, Choices, commands, from_link, to_link, to_toml
from mppfl.game import MECHANISMS
from mppfl.spec import GameSpec
from tests.explorer.chosen import altered, choose

POSITIVE, SHARES = st.floats(1e-6, 1e6), st.floats(0, 1, exclude_min=True, exclude_max=True)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


ANY = {  # of each field some values, or all
    "mechanism": st.sampled_from(SHOWN),
    "preset": st.sampled_from(["paper-like", "benign"]),
    "colour": st.sampled_from(list(COLOURS)),
    "event": st.sampled_from(["leaves", "doubles"]),
    "tab": st.sampled_from(["network", "rounds", "comparison", "run"]),
    "num_clients": st.integers(2, 3000),
    "seed": st.integers(0, 2**53),
    "max_hops": st.none() | st.integers(1, 50),
    "hop_decay": st.none() | SHARES,
    "externality_strength": st.none() | st.floats(0, 1e6),
    "accuracy_weight": st.none() | SHARES,
    "num_rounds": st.integers(1, 1000),
    "payment_limit": POSITIVE,
    "fixed_budget": st.sampled_from(["min", "mean"]) | POSITIVE,
    "reward_rate": st.sampled_from(["own", "common"]) | POSITIVE,
    "budget_min": st.just(0.0) | POSITIVE,
    "round_shown": st.integers(1, 1000),
    "client": WORDS,
    "other": WORDS,
    "opened": st.lists(st.integers(0, 10**6), max_size=3).map(tuple),
    "runs": st.lists(WORDS.filter(bool), max_size=3, unique=True).map(tuple),
}
NETWORKS = ({"graph": "/a b/é.csv", "isolated": "keep", "undirected": True}, {"family": "skewed"})
RULES = ("everyone", "voluntary", "rational")


@st.composite
def any_choices(draw) -> Choices:
    """Choices of every kind."""
    values = draw(st.fixed_dictionaries(ANY)) | draw(st.sampled_from(NETWORKS))
    values["budget_max"] = draw(st.none() | POSITIVE.map(lambda width: values["budget_min"] + width))
    values["participation"] = draw(st.sampled_from(RULES))
    if values["participation"] == "rational":
        values["against"] = draw(st.sampled_from(["staying_out", "nothing"]))
    return choose(**values)


@given(any_choices())
def test_a_link_holds_every_choice(choices):
    assert from_link(to_link(choices)) == choices


def test_a_link_says_only_what_differs_from_the_defaults():
    assert to_link(Choices()) == ""
    assert from_link("") == from_link("?") == Choices()
    chosen = choose(externality_strength=0.1, max_hops=3, client="ann b", opened=(4, 0), runs=("a", "b/c"))
    assert to_link(chosen) == "?max_hops=3&externality_strength=0.1&client=ann+b&opened=4%2C0&runs=a&runs=b%2Fc"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("?utm_source=mail", "'utm_source' is not known."),
        ("?alpha=0.2", "'alpha' is not known. Did you mean 'externality_strength'?"),
        ("?max_hops=1_0", 'max_hops="1_0" must be a whole number.'),
        ("?max_hops=51", "max_hops=51 is too many for this page. Ask for at most 50."),
        ("?graph=a&undirected=1", 'undirected="1" must be true or false.'),
        ("?mechanism=noiseless", "mechanism='noiseless' has no budgets to show."),
        ("?num_clients=20000", "num_clients=20,000 is too many for a random erdos_renyi on this page."),
        ("?runs=a&runs=a", "must be names of runs, each once."),
        ("?opened=1,x", 'opened=[1, "x"] must be a list whose entries are each a whole number.'),
        (f"?client={'x' * 30_000}", "the link has 30,008 characters; at most 20,000 can be read."),
    ],
)
def test_a_value_that_cannot_be_is_told_in_one_line(query, told):
    with pytest.raises(BadInput) as refused:
        from_link(query)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@settings(max_examples=40, deadline=None)
@given(any_choices())
def test_the_experiment_file_says_what_the_choices_mean(tmp_path_factory, choices):
    mechanism = choices.view.mechanism
    if MECHANISMS[mechanism].only_rate_differs:
        choices = altered(choices, reward_rate="own")  # at other rates nothing is left of it
    path = tmp_path_factory.mktemp("toml") / "explorer.toml"
    path.write_text(to_toml(choices), encoding="utf-8")
    experiment = read_experiment(path)
    assert (experiment.game, experiment.mechanisms) == (under(choices.game, [mechanism]), (mechanism,))


def test_commands_name_the_file_and_begin_with_what_is_shown():
    assert commands(Choices())[0] == "mppfl solve --experiment mppfl-experiment.toml"
    assert commands(choose(tab="comparison"), "my file.toml")[0] == (
        "mppfl compare --experiment 'my file.toml' --mechanisms all"
    )
    hidden = choose(tab="comparison", fixed_budget="mean")  # of a mechanism that is compared, and not the one shown
    assert commands(hidden)[0].endswith("--mechanisms all --fixed-budget mean")
    assert set(commands(Choices())) == set(commands(choose(tab="comparison")))


@pytest.mark.parametrize(
    "choices",
    [
        choose(num_clients=9, seed=5, budget_min=0.05, budget_max=0.6, num_rounds=3),
        choose(family="watts_strogatz", preset="benign", mechanism="dp_fedavg", fixed_budget=0.125),
        choose(participation="rational", against="nothing", max_hops=2, hop_decay=0.3, accuracy_weight=0.7),
        choose(mechanism="budget_limited", payment_limit=1.0),
        choose(probability_range=(0.4, 0.5), clients_seed=3, normalisation="symmetric"),
        choose(graph="/a.csv", isolated="keep", undirected=True, reward_rate="common"),
    ],
)
def test_levers_hold_every_choice(choices):
    pytest.importorskip("dash")
    from mppfl.explorer import as_levers, choices_of

    assert choices_of(as_levers(choices), Choices()) == choices


def test_an_empty_network_is_told_and_not_taken_for_the_usual_one():
    pytest.importorskip("dash")
    from mppfl.explorer import choices_of

    with pytest.raises(BadInput, match="no network is chosen"):
        choices_of({"graph": None}, Choices())
    assert choices_of({"graph": "random", "num_clients": None}, Choices()) == Choices()
    assert choices_of({"graph": "random", "preset": "benign"}, Choices()).game.preset == "benign"
    assert choices_of({"graph": "x.csv"}, Choices()).game == GameSpec(graph="x.csv", isolated="keep", self_loops="drop")
