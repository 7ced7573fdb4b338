"""Experiment: everything one training needs, as a frozen value and as a TOML file that says the same.

    experiment = read_experiment("demo.toml", ["training.clip_norm=0.5"])

Every table of the file is a dataclass below, with the same names and defaults; [training] is TrainingConfig with
`model` and `norm` beside it. Seeds of the network, the clients, the split and the training are drawn from `seed`, each
from a stream of its own, unless a table gives its own.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mppfl.arrays import require_count, require_number
from mppfl.data.sources import Source, known_set
from mppfl.data.split import How
from mppfl.errors import BadFile, BadInput
from mppfl.game.compare import SAME_AT_COMMON_REWARD, Convention
from mppfl.game.mechanisms import find_mechanism
from mppfl.game.plan import Participation
from mppfl.game.presets import PresetName
from mppfl.learning.config import CHOICES, Aggregation, TrainingConfig
from mppfl.network.graph import Isolated, Normalisation, SelfLoops
from mppfl.network.walks import Diagonal

Purpose = Literal["graph", "clients", "split", "training"]
PURPOSES: tuple[Purpose, ...] = ("graph", "clients", "split", "training")
Family = Literal["erdos_renyi", "barabasi_albert", "watts_strogatz", "stochastic_block", "skewed"]
ModelName = Literal["linear", "softmax", "mlp", "cnn_fmnist", "cnn_cifar", "vgg11", "vgg16"]
Norm = Literal["group", "batch", "none"]
Range = tuple[float, float]
Value = TypeVar("Value")

FAMILY_OPTIONS = {
    "erdos_renyi": ("probability_range",),
    "barabasi_albert": ("links_each",),
    "watts_strogatz": ("neighbours", "rewire"),
    "stochastic_block": ("sizes", "within", "between"),
    "skewed": ("num_links", "popularity", "length_spread"),
}
WEIGHT_OPTIONS = ("weights", "weight_range")
FOLDER_NAME = re.compile(r"[\w][\w .+-]{0,99}")


@dataclass(frozen=True, slots=True)
class Network:
    """[network]: a file of links, or a random network of the family `generate` (default: the paper's).

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
    links_each: int | None = None
    neighbours: int | None = None
    rewire: float | None = None
    sizes: tuple[int, ...] | None = None
    within: float | None = None
    between: float | None = None
    num_links: int | None = None
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
        if self.hop_decay is not None:
            require_number(self.hop_decay, "hop_decay", 0.0, 1.0)
        if self.source is None:
            self._require_no_file_options()
        elif self.generate is not None:
            raise BadInput(f"source={self.source!r} and generate={self.generate!r} are two networks. Keep one of them.")
        allowed = () if self.source is not None else (*FAMILY_OPTIONS[self.family], *WEIGHT_OPTIONS)
        for option in (*WEIGHT_OPTIONS, *(each for listed in FAMILY_OPTIONS.values() for each in listed)):
            if getattr(self, option) is not None and option not in allowed:
                of_what = "a network from a file" if self.source is not None else f"{self.family}, whose options are "
                raise BadInput(
                    f"{option}={getattr(self, option)!r} means nothing to {of_what}{', '.join(allowed)}. Remove it."
                )

    def _require_no_file_options(self) -> None:
        given = [name for name, usual in (("undirected", False), ("isolated", "error"), ("self_loops", "error"))
                 if getattr(self, name) != usual]  # fmt: skip
        if given:
            raise BadInput(f"{given[0]}={getattr(self, given[0])!r} is for a network from a file. Give source, too.")

    @property
    def family(self) -> Family:
        return self.generate or "erdos_renyi"

    @property
    def options(self) -> dict[str, Any]:
        """What was given of the family's own parameters."""
        known = (*FAMILY_OPTIONS[self.family], *WEIGHT_OPTIONS)
        return {name: getattr(self, name) for name in known if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True)
class GameTerms:
    """[game]: what privacy is worth to the clients, and how the server plays.

    clients        CSV of clients; without it they are drawn from `preset`, which also gives the constants left out
    fixed_budget   ρ_0 of the mechanism `fixed`: "min", "mean" or a number
    convention     "common": every mechanism faces MPPFL's reward rates; "own": each server sets its own
    payment_limit  money per round of the mechanism `budget_limited`
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
    seed: int | None = None

    def __post_init__(self) -> None:
        _require_seed(self.seed)
        require_count(self.num_rounds, "num_rounds")
        if self.externality_strength is not None:
            require_number(self.externality_strength, "externality_strength", 0.0, 1e300, open_ends=False)
        if self.accuracy_weight is not None:
            require_number(self.accuracy_weight, "accuracy_weight", 0.0, 1.0)
        if not isinstance(self.fixed_budget, str):
            require_number(self.fixed_budget, "fixed_budget", 0.0, math.inf)
        if self.payment_limit is not None:
            require_number(self.payment_limit, "payment_limit", 0.0, math.inf)


@dataclass(frozen=True, slots=True)
class DataChoice:
    """[data]: which data set (a name, or the path of an .npz file), and how clients share it."""

    name: str = "digits"
    folder: str | None = None
    source: Source = "auto"
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

    norm    of the VGGs
    hidden  widths of the MLP's hidden layers
    """

    model: ModelName = "mlp"
    norm: Norm = "group"
    seed: int | None = None
    hidden: tuple[int, ...] = (64,)
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


@dataclass(frozen=True, slots=True)
class LedgerChoice:
    """[ledger]: ρ that a client may spend in all (`cap` for everybody, `caps` by name), and whether a file is kept."""

    cap: float | None = None
    caps: dict[str, float] = field(default_factory=dict)
    keep: bool = True

    def __post_init__(self) -> None:
        if self.cap is not None:
            require_number(self.cap, "cap", 0.0, math.inf)
        for client, cap in self.caps.items():
            require_number(cap, f"caps.{client}", 0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Output:
    """[output]: where results go, and after how many rounds a training can be taken up again."""

    folder: str | None = None
    checkpoint_every: int = 5

    def __post_init__(self) -> None:
        require_count(self.checkpoint_every, "checkpoint_every")


@dataclass(frozen=True, slots=True)
class Experiment:
    """One or several mechanisms on one network and one data set, each trained once for every seed and aggregation.

    In the file `seed = 1` stands for `seeds = [1]`, and `mechanism = "mppfl"` for `mechanisms = ["mppfl"]`. Without
    `aggregations` there is the one of [training].
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
        if not FOLDER_NAME.fullmatch(self.name):
            raise BadInput(f"name={self.name!r} must be fit for a folder: letters, digits, blanks and . + - _ only.")
        for name in ("seeds", "mechanisms", "aggregations"):
            listed = getattr(self, name)
            if len(set(listed)) < len(listed):
                raise BadInput(f"{name}={list(listed)} names one twice. Keep it once.")
        if not self.seeds or not self.mechanisms:
            raise BadInput("seeds and mechanisms must each name at least one.")
        for seed in self.seeds:
            _require_seed(seed)
        for mechanism in self.mechanisms:
            self._check_mechanism(mechanism)
        if self.game.payment_limit is not None and "budget_limited" not in self.mechanisms:
            raise BadInput("game.payment_limit means nothing without the mechanism budget_limited. Remove it.")

    def _check_mechanism(self, mechanism: str) -> None:
        find_mechanism(mechanism)
        if mechanism == "budget_limited" and self.game.payment_limit is None:
            raise BadInput("the mechanism budget_limited needs game.payment_limit, the money it may spend in a round.")
        if self.game.convention == "common" and mechanism in (*SAME_AT_COMMON_REWARD, "budget_limited"):
            raise BadInput(
                f"mechanism={mechanism!r} differs from mppfl in the reward rate alone, and convention='common' gives "
                "every mechanism mppfl's. Use game.convention='own', or leave it out."
            )

    def seed_of(self, purpose: Purpose, seed: int) -> int:
        """The seed of one purpose under one of the experiment's seeds: its table's own, or drawn from `seed`."""
        tables: dict[Purpose, Any] = {
            "graph": self.network,
            "clients": self.game,
            "split": self.data,
            "training": self.training,
        }
        own: int | None = tables[purpose].seed
        if own is not None:
            return own
        return int(np.random.SeedSequence([seed, PURPOSES.index(purpose)]).generate_state(1)[0])

    def stream(self, purpose: Purpose, seed: int) -> np.random.Generator:
        """A generator for one purpose, so that one more draw for the network does not change the split."""
        return np.random.default_rng(self.seed_of(purpose, seed))

    def as_dict(self) -> dict[str, Any]:
        """Every value by the names of the file, defaults included; those left to others (None) are left out."""
        found: dict[str, Any] = {"name": self.name}
        for one, many in ONE_OR_MANY.items():
            listed = getattr(self, many)
            found |= {one: listed[0]} if len(listed) == 1 else {many: list(listed)}
        if self.aggregations:
            found["aggregations"] = list(self.aggregations)
        return found | {name: _plain_table(getattr(self, name)) for name in TABLES}

    def to_toml(self) -> str:
        """The file that `read_experiment` reads back as this experiment."""
        return write_toml(self.as_dict())


TABLES: dict[str, type] = {
    "network": Network,
    "game": GameTerms,
    "data": DataChoice,
    "training": Training,
    "ledger": LedgerChoice,
    "output": Output,
}
ONE_OR_MANY = {"seed": "seeds", "mechanism": "mechanisms"}
OF_MODEL = ("model", "norm", "hidden", "seed")
OF_CONFIG = tuple(f.name for f in fields(TrainingConfig) if f.name != "seed")
PATHS = (("network", "source"), ("game", "clients"), ("data", "folder"), ("output", "folder"))


def _require_seed(seed: int | None) -> None:
    if seed is not None:
        require_count(seed, "seed", 0)


# ---- reading ----------------------------------------------------------------------------------------------------


def read_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file. `overrides` are single values such as "training.clip_norm=0.5".

    Relative paths in the file are relative to it. An unknown name raises with the nearest known one, a wrong value
    with its place and what would be right; all in one line.
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
        with_paths = _absolute_paths(raw, path.absolute().parent)
        for override in overrides:
            _set(with_paths, override)
        return experiment_from(with_paths)
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
            wanted: type = int if one == "seed" else str
            if type(given[one]) is not wanted:
                raise BadInput(f"{one}={_shown(given[one])} must be {_in_words(wanted)}. For several, use {many}.")
            given[many] = [given.pop(one)]
    for name in given.keys() & TABLES.keys():
        if not isinstance(given[name], dict):
            raise BadInput(f"{name}={_shown(given[name])} must be a table. Write [{name}] and its values below it.")
    tables = {name: _table(name, given.pop(name, {})) for name in TABLES}
    own = tuple(f.name for f in fields(Experiment) if f.name not in TABLES)
    _require_known(given, own, "", (*own, *ONE_OR_MANY, *TABLES))
    return Experiment(**_checked(Experiment, own, given, ""), **tables)


def _table(name: str, raw: dict[str, Any]) -> Any:
    if name != "training":
        known = tuple(f.name for f in fields(TABLES[name]))
        _require_known(raw, known, name)
        return _made(TABLES[name], known, raw, name)
    own = OF_MODEL
    _require_known(raw, (*own, *OF_CONFIG), name)
    config = _made(TrainingConfig, OF_CONFIG, {key: raw[key] for key in raw if key in OF_CONFIG}, name)
    mine = {key: raw[key] for key in raw if key in own}
    return _made(Training, own, mine, name, config=config)


def _made(cls: type[Value], known: tuple[str, ...], raw: dict[str, Any], table: str, **more: Any) -> Value:
    """The dataclass with these values; what it refuses is told with the place in the file."""
    values = _checked(cls, known, raw, table)
    try:
        return cls(**values, **more)
    except BadInput as cause:
        text = str(cause)
        names_its_key = re.split(r"\W", text, maxsplit=1)[0] in known
        raise BadInput(f"{table}.{text}" if names_its_key else f"[{table}] {text}") from cause


def _checked(cls: type, known: tuple[str, ...], raw: dict[str, Any], table: str) -> dict[str, Any]:
    """The values, each of the type that the dataclass declares: nothing is converted but lists and whole numbers."""
    try:
        found = _border(cls, known).model_validate({key: _frozen(value) for key, value in raw.items()})
    except ValidationError as cause:
        key = str(cause.errors()[0]["loc"][0])
        place = f"{table}.{key}" if table else key
        wanted, value = _hints(cls)[key], raw[key]
        near = _nearest(value, _choices(wanted)) if isinstance(value, str) else ""
        raise BadInput(f"{place}={_shown(value)} must be {_in_words(wanted)}.{near}") from cause
    return {key: getattr(found, key) for key in raw}


@cache
def _border(cls: type, known: tuple[str, ...]) -> type[BaseModel]:
    """What pydantic checks: the dataclass's names and types, without its logic."""
    hints: dict[str, Any] = {name: (hint, None) for name, hint in _hints(cls).items() if name in known}
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    return create_model(cls.__name__, __config__=strict, **hints)


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return hints | {name: Literal[known] for name, known in CHOICES.items() if hints.get(name) is str}


def _require_known(raw: Mapping[str, Any], known: Sequence[str], table: str, near: Sequence[str] = ()) -> None:
    for key in raw:
        if key not in known:
            place = f"{table}.{key}" if table else key
            homes = [home for home in TABLES if key in _keys_of(home)]
            hint = _nearest(key, near or known)
            if not hint and homes:
                hint = f" It belongs to [{homes[0]}]."
            raise BadInput(f"{place[:80]!r} is not known.{hint or ' Known: ' + ', '.join(near or known) + '.'}")


def _keys_of(table: str) -> tuple[str, ...]:
    own = tuple(f.name for f in fields(TABLES[table]))
    return (*OF_MODEL, *OF_CONFIG) if table == "training" else own


def _nearest(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _shown(value: Any) -> str:
    text = _toml(value)
    return text if len(text) <= 60 else text[:57] + "..."


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
    found = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    data = found.get("data")
    names_a_file = isinstance(data, dict) and str(data.get("name", "")).endswith(".npz")
    for table, key in (*PATHS, *([("data", "name")] if names_a_file else [])):
        values = found.get(table)
        if isinstance(values, dict) and isinstance(values.get(key), str):
            values[key] = str(base / Path(values[key]).expanduser())
    return found


def _set(raw: dict[str, Any], override: str) -> None:
    """Puts a value such as "training.clip_norm=0.5" in its place; a bare word is text."""
    place, sign, text = override.partition("=")
    steps = [step.strip() for step in place.split(".")]
    if not sign or not all(steps):
        raise BadInput(f"--set {override!r} must look like training.clip_norm=0.5.")
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if set(parsed) == {"value"} else text.strip()
    except (tomllib.TOMLDecodeError, RecursionError):
        if re.search(r"[\[\]{}\"'\n]", text) or not text.strip():
            raise BadInput(f"--set {override!r}: {text!r} is no TOML value. Quote text, and close brackets.") from None
        value = text.strip()
    within = raw
    for step in steps[:-1]:
        within = within.setdefault(step, {})
        if not isinstance(within, dict):
            raise BadInput(f"--set {override!r}: {step!r} is a value, not a table.")
    for one, many in ONE_OR_MANY.items():  # a value on the command line replaces either form in the file
        if len(steps) == 1 and steps[0] in (one, many):
            raw.pop(one, None)
            raw.pop(many, None)
    within[steps[-1]] = value


# ---- writing ----------------------------------------------------------------------------------------------------


def _plain_table(table: Any) -> dict[str, Any]:
    values = {f.name: getattr(table, f.name) for f in fields(table) if f.name != "config"}
    if isinstance(table, Training):
        values |= {name: getattr(table.config, name) for name in OF_CONFIG}
    return {
        key: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None and value != {}
    }


def write_toml(values: Mapping[str, Any], table: str = "") -> str:
    """A mapping of texts, numbers, lists and tables of these as TOML."""
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    text = "".join(f"{line}\n" for line in lines)
    for key, inner in values.items():
        if isinstance(inner, Mapping):
            place = f"{table}.{_key(key)}" if table else _key(key)
            text += f"\n[{place}]\n" + write_toml(inner, place)
    return text


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def differences(one: Experiment, other: Experiment) -> list[str]:
    """Where two experiments differ, as "training.clip_norm: 1.0, was 0.5"; where results go does not count."""
    now, before = (flat_values(replace(each, output=Output()).as_dict()) for each in (one, other))
    return [
        f"{key}: {_shown(now.get(key, 'not given'))}, was {_shown(before.get(key, 'not given'))}"
        for key in dict.fromkeys([*now, *before])
        if now.get(key) != before.get(key)
    ]


def flat_values(values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Nested values by their places: {"training.clip_norm": 1.0, ...}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat_values(value, f"{place}{key}.") if isinstance(value, Mapping) else {f"{place}{key}": value}
    return found
