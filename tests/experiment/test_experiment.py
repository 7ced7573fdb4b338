"""Experiment: its file, its tables, and every mistake told in one line with its place."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadFile, BadInput
from mppfl.experiment import experiment_from, read_experiment
from mppfl.spec import TABLES, Experiment, keys_of
from mppfl.training import TrainingConfig

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def file(tmp_path):
    """Writes an experiment file and tells its path."""

    def written(text: str = "", name: str = "trial.toml") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return written


def complaint(path, *overrides) -> str:
    """The one line with which a file is refused, without the file's own path."""
    with pytest.raises(BadFile) as told:
        read_experiment(path, overrides)
    text = str(told.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def test_a_file_changes_the_defaults_of_its_tables_and_one_seed_or_mechanism_stands_for_a_list_of_one(file):
    assert read_experiment(file()) == Experiment(name="trial")
    text = 'seed = 4\nmechanism = "dp_fedavg"\n[training]\nbatch_size = 8\n[game]\nnum_rounds = 7\n'
    chosen = read_experiment(file(text))
    assert (chosen.seeds, chosen.mechanisms, chosen.game.num_rounds) == ((4,), ("dp_fedavg",), 7)
    assert chosen.training == TrainingConfig(batch_size=8)
    assert {f.name for f in fields(TrainingConfig)} - {"protection"} == set(keys_of("training"))
    assert complaint(file("seed = 4\nseeds = [4]\n")) == "seed and seeds are both given. Keep one of them."


def test_relative_paths_are_relative_to_the_file(file, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    text = '[game]\ngraph = "a.csv"\nclients = "sub/c.csv"\n[data]\nname = "d.npz"\n[output]\nfolder = "o"\n'
    chosen = read_experiment(file(text))
    assert (chosen.game.graph, chosen.game.clients) == (str(tmp_path / "a.csv"), str(tmp_path / "sub/c.csv"))
    assert (chosen.data.name, chosen.output.folder) == (str(tmp_path / "d.npz"), str(tmp_path / "o"))


def test_overrides_are_toml_values_and_bare_words_are_text(file):
    path = file('mechanism = "mppfl"\n[protection]\nclip_norm = 2.0\n')
    changes = ["protection.clip_norm=0.5", "data.split=dirichlet", 'mechanisms=["dp_fedavg", "random"]', "seed=9"]
    chosen = read_experiment(path, [*changes, "ledger.caps.ann=2", 'game.preset="benign"', "ledger.keep=false"])
    assert chosen.protection.clip_norm == chosen.training.protection.clip_norm == 0.5
    assert (chosen.data.split, chosen.game.preset) == ("dirichlet", "benign")
    assert (chosen.mechanisms, chosen.seeds) == (("dp_fedavg", "random"), (9,))
    assert (chosen.ledger.caps, chosen.ledger.keep) == ({"ann": 2.0}, False)


# ---- tables ------------------------------------------------------------------------------------------------------


def test_tables_may_be_dictionaries_checked_as_the_file_is():
    raw = {"game": {"num_clients": 5}, "protection": {"clip_norm": 0.5}, "training": {"hidden": [8, 8]}}
    assert Experiment(seeds=[1], **raw) == experiment_from({"seed": 1, **raw})
    for values, message in (
        ({"training": 3}, "training=3 must be a table."),
        ({"seeds": [1.5]}, "seeds=[1.5] must be a list whose entries are each a whole number."),
        ({"mechanisms": ["mppfl_exact"], "game": {"reward_rate": "common"}}, "mppfl_exact differs from mppfl in"),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            Experiment(**values)


def test_an_experiment_is_shown_by_what_it_changes():
    assert repr(Experiment()) == "Experiment 'experiment': mppfl, seed 0"
    shown = repr(read_experiment(EXAMPLES / "demo.toml")).splitlines()
    assert shown[0].startswith("Experiment 'demo': personalised_secure_sum, mppfl, social_agnostic")
    assert len(shown) <= 7
    assert max(map(len, shown)) <= 120


def test_seeds_of_different_purposes_come_from_separate_streams():
    chosen, purposes = experiment_from({"seed": 3, "data": {"seed": 11}}), ("graph", "clients", "split", "training")
    seeds = {purpose: chosen.seed_of(purpose, 3) for purpose in purposes}
    assert seeds["split"] == 11  # the table's own
    assert len(set(seeds.values())) == 4
    assert chosen.seed_of("graph", 4) != seeds["graph"] == chosen.game.seed_of("graph")


@pytest.mark.parametrize(("ledger", "option"), [({"cap": 1.0}, "cap"), ({"caps": {"4": 1.0}}, "caps")])
def test_a_cap_that_samples_cannot_keep_is_refused(ledger, option):
    for sampled in ({"release": "steps", "batches": "poisson"}, {"trust": "server", "client_rate": 0.5}):
        with pytest.raises(BadInput, match=f"ledger.{option} is ρ that adds up .* samples have none.*Remove it"):
            Experiment(protection=sampled, ledger=ledger)
        assert Experiment(protection=sampled).ledger.cap is None


SOME = [
    {"seeds": [1, 2], "mechanisms": ["mppfl", "noiseless"], "aggregations": ["num_examples", "uniform"]},
    {"name": "with blanks", "game": {"graph": '/a "quoted"\\ name\t\u00e4.csv', "undirected": True}},
    {"protection": {"clip_norm": 1e-7, "dp_delta": 1e-12}, "training": {"hidden": [], "seed": 5}},
    {"ledger": {"cap": 0.1, "caps": {"ann": 1.5, "bob smith": 2, "": 1, "a.b": 3}}, "output": {"folder": "/x"}},
    {"game": {"payment_limit": 3.5}, "mechanism": "budget_limited"},
    {"training": {"model": "vgg11", "norm": "batch"}, "protection": {"unit": "client", "trust": "secure_sum"}},
]


@pytest.mark.parametrize("raw", SOME)
def test_an_experiment_written_down_is_read_back_as_the_same(raw, file):
    chosen = experiment_from(raw)
    again = read_experiment(file(chosen.to_toml()))
    assert again == chosen
    assert again.to_toml() == chosen.to_toml()


PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("protection.clip_nrom=1", "'protection.clip_nrom' is not known. Did you mean 'clip_norm'?"),
        ("trainig.seed=1", "'trainig' is not known. Did you mean 'training'?"),
        ("game.clip_norm=3", "'game.clip_norm' is not known. It belongs to [protection]."),
        ("protection.clip_norm=big", 'protection.clip_norm="big" must be a finite number.'),
        ("training.learning_rate=-1", "training.learning_rate=-1 must lie in (0, inf)."),
        ("protection.total_epsilon=0", "protection.total_epsilon=0 must lie in [1e-06, 1000]."),
        ("data.features=gradients", 'data.features="gradients" must be one of "none", "oriented_gradients".'),
        ("game.weight_range=[1]", "game.weight_range=[1] must be a list of 2 entries, each a finite number."),
        ("game.payment_limit=1", "game.payment_limit=1.0 means nothing to mppfl. Choose the mechanism budget_limited"),
        ("data.name=digit", "[data] data set 'digit' is not known. Did you mean 'digits'?"),
        ("ledger.caps.ann=-1", "ledger.caps.ann=-1 must lie in (0, inf)."),
        ("game=3", "game=3 must be a table. Write [game] and its values below it."),
        ("seed=-1", "seed=-1 must be a whole number of at least 0."),
        ("seed=1.5", "seed=1.5 must be a whole number. For several, use seeds."),
        ("seeds=[1, 1]", "seeds=[1, 1] names one twice. Keep it once."),
        ("mechanisms=[]", "mechanisms must name at least one."),
        ("game.seed=1", "game.seed stands at the top, as seed."),
        ("mechanism=budget_limited", "budget_limited needs payment_limit, payments per round."),
        ("name=a/b", "name='a/b' must be fit for a folder"),
        ("training", "--set 'training' must look like protection.clip_norm=0.5."),
        ("training.clip_norm=[", "--set 'training.clip_norm=[': '[' is no TOML value."),
        ('training={model="vgg11",norm="batch"}', "training.norm='batch' breaks the protection of records"),
        ("protection.release=update", "protection.release='update' does not hide a record"),
        ("training.protection=1", "'training.protection' is not known. Write a table of its own, [protection]."),
        ("training.privacy=paper", "'training.privacy' is not known. Write unit, release and batches in [protection]."),
        ("training.dp_epsilon=3", "'training.dp_epsilon' is not known. Write total_epsilon in [protection]."),
        *(
            (f"training.{name}=1", f"'training.{name}' is not known. Write {name} in [protection].")
            for name in keys_of("protection")
        ),
        ('game={family="skewed",num_links=4}', "Did you mean 'num_edges'"),  # names of an earlier version
        ("training.aggregation=size", "Did you mean 'num_examples'"),
        ("network={max_hops=3,seed=1}", "network.max_hops is game.max_hops, network.seed is game.graph_seed."),
    ],
)
def test_a_mistake_is_told_with_its_place_its_value_and_the_remedy(file, override, message):
    assert message in complaint(file(), override)


def test_epsilon_or_a_unit_of_budgets_and_the_command_line_replaces_either(file):
    both = file("[protection]\ntotal_epsilon = 3\nbudget_unit = 1.0\n")
    assert complaint(both) == "protection.total_epsilon and protection.budget_unit are both given. Keep one of them."
    chosen = read_experiment(file("[protection]\nbudget_unit = 0.1\n"), ["protection.total_epsilon=2"])
    assert (chosen.protection.total_epsilon, chosen.protection.budget_unit) == (2.0, 1.0)
    chosen = read_experiment(file("[protection]\ntotal_epsilon = 3\n"), ["protection.budget_unit=0.1"])
    assert (chosen.protection.total_epsilon, chosen.protection.budget_unit) == (None, 0.1)


def test_files_that_are_none_are_refused_in_one_line(tmp_path, file):
    assert "cannot be read" in complaint(tmp_path / "nowhere.toml")
    assert "cannot be read" in complaint(tmp_path)
    assert "not TOML" in complaint(file("a = = 1"))
    assert "not TOML" in complaint(file("a = 1\na = 2"))
    (path := file()).write_bytes(b"name = '\xff'")
    assert "not UTF-8" in complaint(path)


ANY = st.recursive(
    st.one_of(
        PLAIN, st.floats(), st.just(math.nan), st.dates(), st.sampled_from(["mppfl", "min", "auto", "cpu", "row"])
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
PLACES = st.sampled_from([(table, key) for table in TABLES for key in (*keys_of(table), "nonsense")])
TOP = st.sampled_from(["name", "seed", "seeds", "mechanism", "mechanisms", "aggregations", *TABLES, "nonsense"])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(PLACES, ANY, max_size=3), st.dictionaries(TOP, ANY, max_size=2))
def test_whatever_a_file_says_it_is_an_experiment_or_one_line(inner, top):
    raw: dict[str, object] = dict(top)
    for (table, key), value in inner.items():
        if isinstance(raw.setdefault(table, {}), dict):
            raw[table][key] = value  # type: ignore[index]
    try:
        chosen, told = experiment_from(raw), ""
    except BadInput as refused:
        chosen, told = Experiment(), str(refused)
    assert "\n" not in told
    assert len(told) < 600
    assert experiment_from(tomllib.loads(chosen.to_toml())) == chosen
    assert "nan" not in [str(value) for table in TABLES for value in chosen.as_dict()[table].values()]


def test_a_mechanism_that_is_typed_leaves_the_options_of_the_others_in_the_file_behind(file):
    path = file(
        'mechanisms = ["mppfl", "dp_fedavg", "budget_limited"]\n[game]\nfixed_budget = "mean"\npayment_limit = 2.0'
    )

    def options(*overrides):
        game = read_experiment(path, overrides).game
        return game.fixed_budget, game.payment_limit

    assert options() == ("mean", 2.0)
    assert options("mechanism=mppfl") == ("min", None)
    assert options("mechanism=dp_fedavg") == ("mean", None)
    assert options('mechanisms=["mppfl", "budget_limited"]') == ("min", 2.0)
    assert options("mechanism=dp_fedavg", "game.fixed_budget=0.5") == (0.5, None)
    for both in (("mechanism=mppfl", "game.fixed_budget=0.5"), ("game.fixed_budget=0.5", "mechanism=mppfl")):
        assert complaint(path, *both).startswith("game.fixed_budget=0.5 means nothing to mppfl.")


def test_noise_that_protects_trains_one_at_a_time_as_each_training_releases_the_same_data_anew():
    several_seeds, several_rules = {"seeds": [1, 2]}, {"aggregations": ["uniform", "num_examples"]}
    for several in ({"mechanisms": ["mppfl", "random"]}, several_seeds, several_rules):
        with pytest.raises(BadInput, match=r"noise='gaussian' releases the same data in each of 2 trainings"):
            Experiment(**several, protection={"noise": "gaussian"})
        Experiment(**several)
