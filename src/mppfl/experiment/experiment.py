"""Experiment: everything a training needs, as a frozen value; read from TOML, written as TOML.

Its tables are dataclasses with the file's names and defaults. Whatever is wrong is said in one line: where, which
value, and what would be right.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mppfl.arrays import require_count, require_number
from mppfl.data import How, Source, known_set
from mppfl.errors import BadFile, BadInput
from mppfl.files import toml_text, toml_value
from mppfl.game import Convention, Participation, PresetName, as_mechanism
from mppfl.network import Diagonal, Isolated, Normalisation, SelfLoops
from mppfl.text import nearest
from mppfl.training import CHOICES, LEAST_EPSILON, MOST_EPSILON, Aggregation, TrainingConfig

Family = Literal["erdos_renyi", "barabasi_albert", "watts_strogatz", "stochastic_block", "skewed"]
ModelName = Literal["linear", "softmax", "mlp", "cnn_fmnist", "cnn_cifar", "vgg11", "vgg16"]
Norm = Literal["group", "batch", "none"]
Range = tuple[float, float]
Features = Literal["none", "oriented_gradients"]

FAMILY_OPTIONS = {
    "erdos_renyi": ("probability_range",),
    "barabasi_albert": ("edges_each",),
    "watts_strogatz": ("neighbours", "rewire"),
    "stochastic_block": ("sizes", "within", "between"),
    "skewed": ("num_edges", "popularity", "length_spread"),
}
WEIGHT_OPTIONS = ("weights", "weight_range")


def _require_seed(seed: int | None) -> None:
    if seed is not None:
        require_count(seed, "seed", 0)


def _require_if_given(value: float | None, name: str, low: float, high: float, *, open_ends: bool = True) -> None:
    if value is not None:
        require_number(value, name, low, high, open_ends=open_ends)


@dataclass(frozen=True, slots=True)
class Network:
    """[network]: a file of edges, or a random network of the family `generate` (default: the paper's).

    max_hops and hop_decay are the preset's unless given; what follows `seed` are options of the random families.
    """

    source: str | None = None
    undirected: bool = False
    isolated: Isolated = "error"
    self_loops: SelfLoops = "error"
    generate: Family | None = None
    num_clients: int | None = None
    normalisation: Normalisation = "row"
    diagonal: Diagonal = "auto"
    max_hops: int | None = None
    hop_decay: float | None = None
    seed: int | None = None
    probability_range: Range | None = None
    edges_each: int | None = None
    neighbours: int | None = None
    rewire: float | None = None
    sizes: tuple[int, ...] | None = None
    within: float | None = None
    between: float | None = None
    num_edges: int | None = None
    popularity: float | None = None
    length_spread: float | None = None
    weights: Literal["uniform", "ones"] | None = None
    weight_range: Range | None = None

    def __post_init__(self) -> None:
        _require_seed(self.seed)
        if self.num_clients is not None:
            require_count(self.num_clients, "num_clients", 2)
        if self.max_hops is not None:
            require_count(self.max_hops, "max_hops")
        _require_if_given(self.hop_decay, "hop_decay", 0.0, 1.0)
        if self.source is None:
            for name, default in (("undirected", False), ("isolated", "error"), ("self_loops", "error")):
                if (value := getattr(self, name)) != default:
                    raise BadInput(f"{name}={value!r} is for a network from a file. Give source, too.")
        elif self.generate is not None:
            raise BadInput(f"source={self.source!r} and generate={self.generate!r} are two networks. Keep one of them.")
        self._require_no_option_of_another_family()

    def _require_no_option_of_another_family(self) -> None:
        allowed = () if self.source is not None else (*FAMILY_OPTIONS[self.family], *WEIGHT_OPTIONS)
        for option in (*WEIGHT_OPTIONS, *chain.from_iterable(FAMILY_OPTIONS.values())):
            if getattr(self, option) is not None and option not in allowed:
                network = "a network from a file" if self.source is not None else f"{self.family}, whose options are "
                raise BadInput(
                    f"{option}={getattr(self, option)!r} means nothing to {network}{', '.join(allowed)}. Remove it."
                )

    @property
    def family(self) -> Family:
        return self.generate or "erdos_renyi"

    @property
    def options(self) -> dict[str, Any]:
        """What was given of the family's own parameters."""
        names = (*FAMILY_OPTIONS[self.family], *WEIGHT_OPTIONS)
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True)
class GameTerms:
    """[game]: what privacy is worth to the clients, and how the server plays.

    clients        CSV of clients; without it they are drawn from `preset`, which also gives the constants left out
    fixed_budget   ρ_0 of the mechanism `fixed`: "min", "mean" or a number
    convention     "common": every mechanism faces MPPFL's reward rates; "own": each server sets its own
    payment_limit  money per round of the mechanism `budget_limited`
    budget_min     ρ of a round that everybody gives at least, and
    budget_max     at most; the clients file may hold narrower bounds for some
    """

    preset: PresetName = "paper-like"
    clients: str | None = None
    externality_strength: float | None = None
    accuracy_weight: float | None = None
    num_rounds: int = 60
    participation: Participation = "always"
    fixed_budget: float | Literal["min", "mean"] = "min"
    convention: Convention = "common"
    payment_limit: float | None = None
    budget_min: float = 0.0
    budget_max: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _require_seed(self.seed)
        require_count(self.num_rounds, "num_rounds")
        require_number(self.budget_min, "budget_min", 0.0, 1e300, open_ends=False)
        _require_if_given(self.budget_max, "budget_max", 0.0, math.inf)
        if self.budget_max is not None and self.budget_max < self.budget_min:
            raise BadInput(f"budget_max={self.budget_max:g} is below budget_min={self.budget_min:g}. Raise it.")
        _require_if_given(self.externality_strength, "externality_strength", 0.0, 1e300, open_ends=False)
        _require_if_given(self.accuracy_weight, "accuracy_weight", 0.0, 1.0)
        if not isinstance(self.fixed_budget, str):
            require_number(self.fixed_budget, "fixed_budget", 0.0, math.inf)
        _require_if_given(self.payment_limit, "payment_limit", 0.0, math.inf)


@dataclass(frozen=True, slots=True)
class DataChoice:
    """[data]: which data set (a name, or the path of an .npz file), and how clients share it.

    features  what a model sees of a picture: "none" for its pixels, or numbers by rules fixed in advance, which
              mppfl.data.features describes
    """

    name: str = "digits"
    folder: str | None = None
    source: Source = "auto"
    features: Features = "none"
    split: How = "iid"
    concentration: float = 0.3
    min_examples: int = 10
    uneven: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require_seed(self.seed)
        if not self.name.endswith(".npz"):
            known_set(self.name)
        require_number(self.concentration, "concentration", 0.0, 1e6)
        require_count(self.min_examples, "min_examples")
        require_number(self.uneven, "uneven", 0.0, 10.0, open_ends=False)
        if self.uneven and self.split != "iid":
            raise BadInput(
                f"uneven={self.uneven:g} is for split='iid' only; others have sizes of their own. Remove it."
            )


@dataclass(frozen=True, slots=True)
class Training:
    """[training]: the model, and TrainingConfig, whose fields stand in the same table.

    norm        of the VGGs
    hidden      widths of the MLP's hidden layers
    dp_epsilon  ε at dp_delta with which the client who gives most shall end, instead of budget_unit: each training's
                unit is then the largest that keeps it. Nominal, as budgets are. Rounds that are repeated after an
                interruption with noise that protects are paid for twice, and come on top; ledger.cap forbids that.
    """

    model: ModelName = "mlp"
    norm: Norm = "group"
    seed: int | None = None
    hidden: tuple[int, ...] = (64,)
    dp_epsilon: float | None = None
    config: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        _require_seed(self.seed)
        for width in self.hidden:
            require_count(width, "hidden")
        if self.norm == "batch" and self.config.mechanism.noise_on != "update":
            raise BadInput(
                f"norm='batch' breaks privacy={self.config.privacy!r}: BatchNorm lets one record move every other "
                "record's gradient. Use norm='group'."
            )
        if self.dp_epsilon is not None:
            self._require_unit_to_choose(self.dp_epsilon)

    def _require_unit_to_choose(self, dp_epsilon: float) -> None:
        require_number(dp_epsilon, "dp_epsilon", LEAST_EPSILON, MOST_EPSILON, open_ends=False)
        if self.config.budget_unit != 1.0:
            raise BadInput(
                f"dp_epsilon={dp_epsilon:g} chooses the unit of budgets, and budget_unit={self.config.budget_unit:g} "
                "gives it. Keep one of them."
            )
        if not self.config.mechanism.is_zcdp:
            raise BadInput(
                f"dp_epsilon={dp_epsilon:g} is kept by adding up zCDP budgets, and privacy={self.config.privacy!r} has "
                "none. Give budget_unit instead."
            )


@dataclass(frozen=True, slots=True)
class LedgerChoice:
    """[ledger]: ρ that a client may spend in all (`cap` for everybody, `caps` by name), and whether a file is kept."""

    cap: float | None = None
    caps: dict[str, float] = field(default_factory=dict)
    keep: bool = True

    def __post_init__(self) -> None:
        _require_if_given(self.cap, "cap", 0.0, math.inf)
        for client, cap in self.caps.items():
            require_number(cap, f"caps.{client}", 0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Output:
    """[output]: where results go, and after how many rounds a training can be taken up again."""

    folder: str | None = None
    checkpoint_every: int = 5

    def __post_init__(self) -> None:
        require_count(self.checkpoint_every, "checkpoint_every")


TABLES: dict[str, type] = {
    "network": Network,
    "game": GameTerms,
    "data": DataChoice,
    "training": Training,
    "ledger": LedgerChoice,
    "output": Output,
}
OF_TRAINING = tuple(f.name for f in fields(Training) if f.name != "config")
OF_CONFIG = tuple(f.name for f in fields(TrainingConfig) if f.name != "seed")


def keys_of(table: str) -> tuple[str, ...]:
    """The names that a table of the file may hold."""
    return (*OF_TRAINING, *OF_CONFIG) if table == "training" else tuple(f.name for f in fields(TABLES[table]))


def plain_table(table: Any) -> dict[str, Any]:
    """A table's values by the names of the file; those left to others (None) are left out."""
    values = {f.name: getattr(table, f.name) for f in fields(table) if f.name != "config"}
    if isinstance(table, Training):
        chosen = "budget_unit" if table.dp_epsilon is not None else None  # not given, but found for every training
        values |= {name: getattr(table.config, name) for name in OF_CONFIG if name != chosen}
    return {
        key: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None and value != {}
    }


Purpose = Literal["graph", "clients", "split", "training"]
PURPOSES: tuple[Purpose, ...] = ("graph", "clients", "split", "training")
TOP = ("name", "seeds", "mechanisms", "aggregations")  # what stands above all tables
ONE_OR_MANY = {"seed": "seeds", "mechanism": "mechanisms"}
OPTION_OF = {"payment_limit": "budget_limited", "fixed_budget": "dp_fedavg"}  # of [game], each for one mechanism alone
FOLDER_NAME = re.compile(r"[\w][\w .+-]{0,99}")


@dataclass(frozen=True, slots=True, repr=False)
class Experiment:
    """One or several mechanisms on one network and one data set, each trained once for every seed and aggregation.

    Args:
        name: Names the folder of the results.
        seeds: One training of each mechanism per seed. Seeds of the network, the clients, the split and the training
            are drawn from it, each from a stream of its own, unless a table has a seed of its own.
        mechanisms: Names of pricing mechanisms, as `mppfl compare` lists them.
        aggregations: Several to compare; without it there is the one of `training`.
        network, game, data, training, ledger, output: The tables of the experiment file (docs/reference.md), each as a
            dictionary with the file's names, or as the value that another experiment holds.

    Raises:
        BadInput: A name or a value that cannot be, with its table, and the nearest name that is known.

    Example:
        >>> from mppfl import Experiment
        >>> Experiment(seeds=[1], network={"num_clients": 5}, training={"model": "softmax", "clip_norm": 0.5})
        Experiment 'experiment': mppfl, seed 1
          network   num_clients = 5
          training  model = "softmax", clip_norm = 0.5
    """

    name: str = "experiment"
    seeds: tuple[int, ...] = (0,)
    mechanisms: tuple[str, ...] = ("mppfl",)
    aggregations: tuple[Aggregation, ...] = ()
    network: Network = field(default_factory=Network)
    game: GameTerms = field(default_factory=GameTerms)
    data: DataChoice = field(default_factory=DataChoice)
    training: Training = field(default_factory=Training)
    ledger: LedgerChoice = field(default_factory=LedgerChoice)
    output: Output = field(default_factory=Output)

    def __post_init__(self) -> None:
        values = _checked(Experiment, TOP, {name: getattr(self, name) for name in TOP}, "")
        values |= {name: _table(name, getattr(self, name)) for name in TABLES}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if not FOLDER_NAME.fullmatch(self.name):
            raise BadInput(f"name={self.name!r} must be fit for a folder: letters, digits, blanks and . + - _ only.")
        self._check_lists()
        self._check_mechanisms()
        privacy = self.training.config.mechanism
        if not privacy.is_zcdp and (self.ledger.cap is not None or self.ledger.caps):
            option = "cap" if self.ledger.cap is not None else "caps"
            raise BadInput(
                f"ledger.{option} is ρ that adds up over rounds, and privacy={privacy.name!r} has none: whoever is "
                "capped would never participate. Remove it, or use another privacy."
            )

    def _check_lists(self) -> None:
        for name in ("seeds", "mechanisms", "aggregations"):
            listed = getattr(self, name)
            if len(set(listed)) < len(listed):
                raise BadInput(f"{name}={list(listed)} names one twice. Keep it once.")
        if not self.seeds or not self.mechanisms:
            raise BadInput("seeds and mechanisms must each name at least one.")
        for seed in self.seeds:
            _require_seed(seed)

    def _check_mechanisms(self) -> None:
        for mechanism in self.mechanisms:
            as_mechanism(mechanism)
            if mechanism == "budget_limited" and self.game.payment_limit is None:
                raise BadInput(
                    "the mechanism budget_limited needs game.payment_limit, the money it may spend in a round."
                )
            if self.game.convention == "common" and as_mechanism(mechanism).only_rate_differs:
                raise BadInput(
                    f"mechanism={mechanism!r} differs from mppfl in the reward rate alone, and convention='common' "
                    "gives every mechanism mppfl's. Use game.convention='own', or leave it out."
                )
        for option, owner in OPTION_OF.items():
            value = getattr(self.game, option)
            if value != getattr(GameTerms(), option) and owner not in self.mechanisms:
                raise BadInput(
                    f"game.{option}={_shown(value)} means nothing without the mechanism {owner}. Remove it, or name "
                    f"{owner} among the mechanisms."
                )

    def __repr__(self) -> str:
        seeds = f"seed{'s' * (len(self.seeds) != 1)} {', '.join(map(str, self.seeds))}"
        lines = [f"Experiment {self.name!r}: {', '.join((*self.mechanisms, *self.aggregations))}, {seeds}"]
        for name, table in TABLES.items():
            default, values = plain_table(table()), plain_table(getattr(self, name))
            changed = [f"{key} = {_shown(value)}" for key, value in values.items() if default.get(key) != value]
            lines += [f"  {name:<9} {', '.join(changed)}"] if changed else []
        return "\n".join(line if len(line) <= 120 else line[:117] + "..." for line in lines)

    def under(self, mechanism: str) -> Experiment:
        """The same experiment under one of its mechanisms alone, without options that are another's."""
        others = {name: getattr(GameTerms(), name) for name, owner in OPTION_OF.items() if owner != mechanism}
        return replace(self, mechanisms=(mechanism,), game=replace(self.game, **others))

    def seed_of(self, purpose: Purpose, seed: int) -> int:
        """The seed of one purpose under one of the experiment's seeds: its table's own, or drawn from `seed`."""
        position = PURPOSES.index(purpose)
        table = (self.network, self.game, self.data, self.training)[position]
        return int(np.random.SeedSequence([seed, position]).generate_state(1)[0]) if table.seed is None else table.seed

    def stream(self, purpose: Purpose, seed: int) -> np.random.Generator:
        """A generator for one purpose, so that one more draw for the network does not change the split."""
        return np.random.default_rng(self.seed_of(purpose, seed))

    def as_dict(self) -> dict[str, Any]:
        """Every value by the names of the file, defaults included; those left to others (None) are left out."""
        values: dict[str, Any] = {"name": self.name}
        for one, many in ONE_OR_MANY.items():
            listed = getattr(self, many)
            values |= {one: listed[0]} if len(listed) == 1 else {many: list(listed)}
        if self.aggregations:
            values["aggregations"] = list(self.aggregations)
        return values | {name: plain_table(getattr(self, name)) for name in TABLES}

    def to_toml(self) -> str:
        """The file that `read_experiment` reads back as this experiment."""
        return toml_text(self.as_dict())


def differences(now: Experiment, before: Experiment) -> list[str]:
    """Where two experiments differ, as "training.clip_norm: 1.0, was 0.5"; where results go does not count."""
    new, old = (flat_values(replace(one, output=Output()).as_dict()) for one in (now, before))
    return [
        f"{key}: {_shown(new.get(key, 'not given'))}, was {_shown(old.get(key, 'not given'))}"
        for key in dict.fromkeys([*new, *old])
        if new.get(key) != old.get(key)
    ]


def flat_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names: {"training.clip_norm": 1.0, ...}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flat_values(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _shown(value: Any) -> str:
    """A value as the file would say it, cut where it is long."""
    text = toml_value(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---- the file ------------------------------------------------------------------------------------------------------

Value = TypeVar("Value")
EITHER_OR = (
    *(((one,), (many,)) for one, many in ONE_OR_MANY.items()),
    (("training", "budget_unit"), ("training", "dp_epsilon")),
)
PATHS = (("network", "source"), ("game", "clients"), ("data", "folder"), ("output", "folder"))


def read_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file.

    Args:
        path: The file. Relative paths in it are relative to it.
        overrides: Single values in place of the file's, as "training.clip_norm=0.5".

    Returns:
        The experiment, every value checked. Its name is the file's unless the file gives one.

    Raises:
        BadFile: The file cannot be read, or says what cannot be: one line with the place, the value and what would be
            right; for an unknown name the nearest known one.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from mppfl import read_experiment
        >>> file = Path(mkdtemp()) / "trial.toml"
        >>> _ = file.write_text("seed = 1\\n[training]\\nclip_norm = 2.0")
        >>> read_experiment(file, ["training.clip_norm=0.5"])
        Experiment 'trial': mppfl, seed 1
          training  clip_norm = 0.5
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as cause:
        raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check the path.") from cause
    except UnicodeDecodeError as cause:
        raise BadFile(f"{path}: not UTF-8 text (byte {cause.start}). Save the file as UTF-8.") from cause
    except (tomllib.TOMLDecodeError, RecursionError) as cause:
        raise BadFile(f"{path}: not TOML ({cause or 'nested too deeply'}). Correct that place.") from cause
    try:
        raw.setdefault("name", path.stem)
        values = _absolute_paths(raw, path.absolute().parent)
        # Mechanisms come first: they take options of the file away, and none that was typed beside them.
        for override in sorted(overrides, key=lambda text: not re.match(r"\s*mechanisms?\s*=", text)):
            _set(values, override)
        return experiment_from(values)
    except BadFile:
        raise
    except BadInput as cause:
        raise BadFile(f"{path}: {cause}") from cause


def experiment_from(raw: Mapping[str, Any]) -> Experiment:
    """The experiment that a mapping with the names of the file describes, checked as the file is."""
    given = dict(raw)
    for one, many in ONE_OR_MANY.items():
        if one in given and many in given:
            raise BadInput(f"{one} and {many} are both given. Keep one of them.")
        if one in given:
            kind: type = int if one == "seed" else str
            if type(given[one]) is not kind:
                raise BadInput(f"{one}={_shown(given[one])} must be {_in_words(kind)}. For several, use {many}.")
            given[many] = [given.pop(one)]
    _require_known(given, (*TOP, *TABLES), "", (*TOP, *ONE_OR_MANY, *TABLES))
    return Experiment(**given)


def _table(name: str, value: Any) -> Any:
    """A table given as the file's values, checked and made its dataclass."""
    if isinstance(value, TABLES[name]):
        return value
    if not isinstance(value, Mapping):
        raise BadInput(f"{name}={_shown(value)} must be a table. Write [{name}] and its values below it.")
    raw, keys = dict(value), keys_of(name)
    _require_known(raw, keys, name)
    if name != "training":
        return _made(TABLES[name], keys, raw, name)
    if "dp_epsilon" in raw and "budget_unit" in raw:
        raise BadInput("training.dp_epsilon and training.budget_unit are both given. Keep one of them.")
    config = _made(TrainingConfig, OF_CONFIG, {key: raw[key] for key in raw if key in OF_CONFIG}, name)
    rest = {key: raw[key] for key in raw if key in OF_TRAINING}
    return _made(Training, OF_TRAINING, rest, name, config=config)


def _made(cls: type[Value], keys: tuple[str, ...], raw: dict[str, Any], table: str, **more: Any) -> Value:
    """The dataclass with these values; what it refuses is told with the place in the file."""
    values = _checked(cls, keys, raw, table)
    try:
        return cls(**values, **more)
    except BadInput as cause:
        text = str(cause)
        names_its_key = re.split(r"\W", text, maxsplit=1)[0] in keys
        raise BadInput(f"{table}.{text}" if names_its_key else f"[{table}] {text}") from cause


def _checked(cls: type, keys: tuple[str, ...], raw: dict[str, Any], table: str) -> dict[str, Any]:
    """The values, each of the type that the dataclass declares: only lists and whole numbers are converted."""
    try:
        model = _border(cls, keys).model_validate({key: _frozen(value) for key, value in raw.items()})
    except ValidationError as cause:
        key = str(cause.errors()[0]["loc"][0])
        name = f"{table}.{key}" if table else key
        hint, value = _hints(cls)[key], raw[key]
        near = _did_you_mean(value, _choices(hint)) if isinstance(value, str) else ""
        raise BadInput(f"{name}={_shown(value)} must be {_in_words(hint)}.{near}") from cause
    return {key: getattr(model, key) for key in raw}


@cache
def _border(cls: type, keys: tuple[str, ...]) -> type[BaseModel]:
    """What pydantic checks: the dataclass's names and types, without its logic."""
    hints: dict[str, Any] = {name: (hint, None) for name, hint in _hints(cls).items() if name in keys}
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    return create_model(cls.__name__, __config__=strict, **hints)


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return hints | {name: Literal[choices] for name, choices in CHOICES.items() if hints.get(name) is str}


def _require_known(raw: Mapping[str, Any], keys: Sequence[str], table: str, near: Sequence[str] = ()) -> None:
    for key in raw:
        if key not in keys:
            name = f"{table}.{key}" if table else key
            hint = _did_you_mean(key, near or keys)
            homes = [home for home in TABLES if key in keys_of(home)]
            if not hint and homes:
                hint = f" It belongs to [{homes[0]}]."
            raise BadInput(f"{name[:80]!r} is not known.{hint or ' Known: ' + ', '.join(near or keys) + '.'}")


def _did_you_mean(word: str, names: Sequence[str]) -> str:
    near = nearest(word, names)
    return f" Did you mean {near!r}?" if near else ""


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return value.item() if isinstance(value, np.generic) else value


def _choices(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for part in get_args(hint) for choice in _choices(part))


def _in_words(hint: Any) -> str:
    """A type as a user would say it."""
    simple = {float: "a finite number", int: "a whole number", bool: "true or false", str: "text"}
    if hint in simple:
        return simple[hint]
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return ("" if len(parts) == 1 else "one of ") + ", ".join(json.dumps(part) for part in parts)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_in_words(part) for part in parts if part is not NoneType)
    if get_origin(hint) is dict:
        return f"a table whose values are each {_in_words(parts[1])}"
    if parts[-1] is Ellipsis:
        return f"a list whose entries are each {_in_words(parts[0])}"
    return f"a list of {len(parts)} entries, each {_in_words(parts[0])}"


def _absolute_paths(raw: dict[str, Any], base: Path) -> dict[str, Any]:
    """The same values with paths taken relative to the file."""
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    data = values.get("data")
    names_a_file = isinstance(data, dict) and str(data.get("name", "")).endswith(".npz")
    for name, key in (*PATHS, *([("data", "name")] if names_a_file else [])):
        table = values.get(name)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(base / Path(table[key]).expanduser())
    return values


def _set(raw: dict[str, Any], override: str) -> None:
    """Puts a value such as "training.clip_norm=0.5" in its place."""
    place, sign, text = override.partition("=")
    steps = [step.strip() for step in place.split(".")]
    if not sign or not all(steps):
        raise BadInput(f"--set {override!r} must look like training.clip_norm=0.5.")
    table, before = raw, _mechanisms(raw)
    for step in steps[:-1]:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise BadInput(f"--set {override!r}: {step!r} is a value, not a table.")
    for either in EITHER_OR:  # a value on the command line replaces either form in the file
        if tuple(steps) in either:
            for *_, key in either:
                table.pop(key, None)
    table[steps[-1]] = _value_of(override, text)
    for option, owner in OPTION_OF.items():  # what the file says of a mechanism goes with it
        if owner in before and owner not in _mechanisms(raw) and isinstance(raw.get("game"), dict):
            raw["game"].pop(option, None)


def _value_of(override: str, text: str) -> Any:
    """The TOML value that was typed; a bare word is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
        return parsed["value"] if set(parsed) == {"value"} else text.strip()
    except (tomllib.TOMLDecodeError, RecursionError):
        if re.search(r"[\[\]{}\"'\n]", text) or not text.strip():
            raise BadInput(f"--set {override!r}: {text!r} is no TOML value. Quote text, and close brackets.") from None
        return text.strip()


def _mechanisms(raw: Mapping[str, Any]) -> list[Any]:
    listed = raw.get("mechanisms", raw.get("mechanism", ()))
    return list(listed) if isinstance(listed, (list, tuple)) else [listed]
