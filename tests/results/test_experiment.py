"""The experiment file: same names and defaults as the dataclasses; every mistake told in one line, with its place."""

from __future__ import annotations

import math
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadFile, BadInput
from mppfl.learning.config import TrainingConfig
from mppfl.network import generate
from mppfl.results import experiment as module
from mppfl.results.experiment import (
    FAMILY_OPTIONS,
    OF_CONFIG,
    OF_MODEL,
    PURPOSES,
    TABLES,
    Experiment,
    Output,
    differences,
    experiment_from,
    flat_values,
    read_experiment,
    write_toml,
)

KEYS = {
    **{name: tuple(f.name for f in fields(table)) for name, table in TABLES.items()},
    "training": (*OF_MODEL, *OF_CONFIG),
}


@pytest.fixture
def file(tmp_path):
    """Writes an experiment file and tells its path."""

    def written(text: str = "", name: str = "trial.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def complaint(path, *overrides) -> str:
    """The one line with which a file is refused, without the file's own path."""
    with pytest.raises(BadFile) as told:
        read_experiment(path, overrides)
    text = str(told.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


# ---- what a file says -------------------------------------------------------------------------------------------


def test_an_empty_file_is_the_default_experiment_under_the_files_name(file):
    assert read_experiment(file()) == Experiment(name="trial")


def test_a_table_has_the_names_and_defaults_of_its_dataclass(file):
    found = read_experiment(file("[training]\nclip_norm = 1\n[game]\nnum_rounds = 7\n"))
    assert found.training.config == TrainingConfig(clip_norm=1.0)
    assert found.game.num_rounds == 7
    assert (set(OF_CONFIG) | {"seed"}) == {f.name for f in fields(TrainingConfig)}


def test_models_and_families_are_those_there_are():
    from typing import get_args

    from mppfl.learning.models import MODEL_NAMES, NORMS

    assert get_args(module.ModelName) == MODEL_NAMES
    assert get_args(module.Norm) == NORMS
    assert tuple(FAMILY_OPTIONS) == tuple(generate._FAMILIES)


def test_every_option_of_a_random_family_can_be_written_down(file):
    import inspect

    for name, family in generate._FAMILIES.items():
        ours = {*FAMILY_OPTIONS[name], *module.WEIGHT_OPTIONS}
        theirs = set(inspect.signature(family).parameters) - {"num_clients", "rng", "normalisation"}
        assert ours == theirs


def test_one_seed_and_one_mechanism_stand_for_lists_of_one(file):
    assert read_experiment(file('seed = 4\nmechanism = "fixed"\n')).seeds == (4,)
    assert read_experiment(file('seed = 4\nmechanism = "fixed"\n')).mechanisms == ("fixed",)
    assert complaint(file("seed = 4\nseeds = [4]\n")) == "seed and seeds are both given. Keep one of them."


def test_relative_paths_are_relative_to_the_file(file, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    text = (
        '[network]\nsource = "a.csv"\n[game]\nclients = "sub/c.csv"\n[data]\nname = "d.npz"\n[output]\nfolder = "o"\n'
    )
    found = read_experiment(file(text))
    assert found.network.source == str(tmp_path / "a.csv")
    assert found.game.clients == str(tmp_path / "sub/c.csv")
    assert (found.data.name, found.output.folder) == (str(tmp_path / "d.npz"), str(tmp_path / "o"))


def test_overrides_are_toml_values_and_bare_words_are_text(file):
    path = file('mechanism = "mppfl"\n[training]\nclip_norm = 2.0\n')
    changes = ["training.clip_norm=0.5", "data.split=dirichlet", 'mechanisms=["fixed", "random"]', "seed=9"]
    found = read_experiment(path, [*changes, "ledger.caps.ann=2", 'game.preset="benign"', "ledger.keep=false"])
    assert found.training.config.clip_norm == 0.5
    assert (found.data.split, found.game.preset) == ("dirichlet", "benign")
    assert (found.mechanisms, found.seeds) == (("fixed", "random"), (9,))
    assert (found.ledger.caps, found.ledger.keep) == ({"ann": 2.0}, False)


def test_seeds_of_different_purposes_come_from_separate_streams():
    chosen = experiment_from({"seed": 3, "data": {"seed": 11}})
    seeds = {purpose: chosen.seed_of(purpose, 3) for purpose in PURPOSES}
    assert seeds["split"] == 11  # the table's own
    assert len(set(seeds.values())) == len(PURPOSES)
    assert seeds["graph"] != experiment_from({"seed": 4}).seed_of("graph", 4)
    assert chosen.stream("graph", 3).random() == chosen.stream("graph", 3).random()


# ---- round trip -------------------------------------------------------------------------------------------------

SOME = [
    {},
    {"seeds": [1, 2], "mechanisms": ["mppfl", "noiseless"], "aggregations": ["size", "uniform"]},
    {"name": "with blanks", "network": {"generate": "stochastic_block", "sizes": [3, 4], "within": 0.5}},
    {"network": {"source": '/a "quoted"\\ name\t\u00e4.csv', "undirected": True}},
    {"training": {"clip_norm": 1e-7, "dp_delta": 1e-12, "clients_at_once": 3, "hidden": [], "seed": 5}},
    {"ledger": {"cap": 0.1, "caps": {"ann": 1.5, "bob smith": 2, "": 1, "a.b": 3}}, "output": {"folder": "/x"}},
    {"game": {"convention": "own", "payment_limit": 3.5, "fixed_budget": 0.25}, "mechanism": "budget_limited"},
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


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), PLAIN | st.lists(PLAIN, max_size=3)))
def test_the_writer_writes_what_toml_reads(values):
    assert tomllib.loads(write_toml(values)) == values
    assert tomllib.loads(write_toml({"table": values})) == {"table": values}


def test_where_two_experiments_differ_is_told_by_place():
    one = experiment_from({"training": {"clip_norm": 1.0}, "output": {"folder": "/a"}})
    other = experiment_from({"training": {"clip_norm": 2.0}, "output": {"checkpoint_every": 9}})
    assert differences(one, other) == ["training.clip_norm: 1.0, was 2.0"]
    assert differences(one, one) == []
    capped = experiment_from({"training": {"clip_norm": 1.0}, "ledger": {"cap": 3}})
    assert differences(capped, one) == ['ledger.cap: 3.0, was "not given"']


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.clip_nrom=1", "'training.clip_nrom' is not known. Did you mean 'clip_norm'?"),
        ("sed=1", "'sed' is not known. Did you mean 'seed'?"),
        ("trainig.clip_norm=1", "'trainig' is not known. Did you mean 'training'?"),
        ("game.clip_norm=3", "'game.clip_norm' is not known. It belongs to [training]."),
        ("training.clip_norm=big", 'training.clip_norm="big" must be a finite number or "first_round_median".'),
        ("training.clip_norm=nan", 'training.clip_norm=nan must be a finite number or "first_round_median".'),
        ("training.learning_rate=inf", "training.learning_rate=inf must be a finite number."),
        ("training.learning_rate=-1", "training.learning_rate=-1 must lie in (0, inf)."),
        ("training.batch_size=0", "training.batch_size=0 must be a whole number of at least 1."),
        ("training.batch_size=8.0", "training.batch_size=8.0 must be a whole number."),
        ("training.batch_size=true", "training.batch_size=true must be a whole number."),
        ("training.device=3", "training.device=3 must be text."),
        ("network.undirected=1", "network.undirected=1 must be true or false."),
        ("network.weight_range=[1]", "network.weight_range=[1] must be a list of 2 entries, each a finite number."),
        ("network.max_hops=0", "network.max_hops=0 must be a whole number of at least 1."),
        ("network.hop_decay=1.5", "network.hop_decay=1.5 must lie in (0, 1)."),
        ("network.rewire=0.3", "network.rewire=0.3 means nothing to erdos_renyi, whose options are "),
        ("network.isolated=keep", "network.isolated='keep' is for a network from a file. Give source, too."),
        ("game.accuracy_weight=1", "game.accuracy_weight=1 must lie in (0, 1)."),
        ("game.participation=never", 'game.participation="never" must be one of "always", '),
        ("game.payment_limit=1", "game.payment_limit means nothing without the mechanism budget_limited."),
        ("data.name=digit", "[data] data set 'digit' is not known. Did you mean 'digits'?"),
        (
            "data.split=dirichle",
            'must be one of "iid", "dirichlet", "community", "natural". Did you mean \'dirichlet\'?',
        ),
        ("data.uneven=-1", "data.uneven=-1 must lie in [0, 10]."),
        ("ledger.cap=0", "ledger.cap=0 must lie in (0, inf)."),
        ("ledger.caps.ann=-1", "ledger.caps.ann=-1 must lie in (0, inf)."),
        ("output.checkpoint_every=0", "output.checkpoint_every=0 must be a whole number of at least 1."),
        ("network=3", "network=3 must be a table. Write [network] and its values below it."),
        ("seed=-1", "seed=-1 must be a whole number of at least 0."),
        ("seed=1.5", "seed=1.5 must be a whole number. For several, use seeds."),
        ("seeds=[1, 1]", "seeds=[1, 1] names one twice. Keep it once."),
        ("mechanisms=[]", "seeds and mechanisms must each name at least one."),
        ("mechanism=mpfl", "mechanism='mpfl' is not known. Did you mean 'mppfl'?"),
        ("mechanism=mppfl_exact", "mechanism='mppfl_exact' differs from mppfl in the reward rate alone"),
        ("name=a/b", "name='a/b' must be fit for a folder"),
        ("training", "--set 'training' must look like training.clip_norm=0.5."),
        ("training.clip_norm=[", "--set 'training.clip_norm=[': '[' is no TOML value."),
        ("seed.a=1", "seed={'a': 1} must be a whole number."),
    ],
)
def test_a_mistake_is_told_with_its_place_its_value_and_the_remedy(file, override, told):
    assert told in complaint(file(), override)


def test_batch_norm_is_refused_where_single_records_are_protected(file):
    text = '[training]\nmodel = "vgg11"\nnorm = "batch"\nprivacy = "full_batch"\nclip_norm = 1\n'
    assert complaint(file(text)).startswith("training.norm='batch' breaks privacy='full_batch'")
    assert read_experiment(file(text), ["training.privacy=client"]).training.norm == "batch"


def test_a_mechanism_with_rates_of_its_own_needs_the_own_convention(file):
    found = read_experiment(file('mechanism = "mppfl_exact"\n[game]\nconvention = "own"\n'))
    assert found.mechanisms == ("mppfl_exact",)


def test_files_that_are_none_are_refused_in_one_line(tmp_path, file):
    assert "cannot be read" in complaint(tmp_path / "nowhere.toml")
    assert "cannot be read" in complaint(tmp_path)
    assert "not TOML" in complaint(file("a = = 1"))
    assert "not TOML" in complaint(file("a = 1\na = 2"))
    path = file()
    path.write_bytes(b"name = '\xff'")
    assert "not UTF-8" in complaint(path)


ANY = st.recursive(
    st.one_of(
        PLAIN, st.floats(), st.just(math.nan), st.dates(), st.sampled_from(["mppfl", "min", "auto", "cpu", "row"])
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
PLACES = st.sampled_from([(table, key) for table, keys in KEYS.items() for key in (*keys, "nonsense")])
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
    assert not any(isinstance(v, float) and math.isnan(v) for v in flat_values(chosen.as_dict()).values())


def test_the_demo_is_valid_and_needs_no_download():
    demo = Path(__file__).parents[2] / "examples" / "demo.toml"
    found = read_experiment(demo)
    assert found.data.name == "digits"
    assert found.mechanisms == ("mppfl", "social_agnostic", "random", "fixed", "sarda_like")
    assert found.output == Output()
