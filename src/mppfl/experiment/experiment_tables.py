"""The tables of an experiment file, each a frozen value with the file's names and defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mppfl.arrays import require_count, require_number
from mppfl.data import How, Source, known_set
from mppfl.errors import BadInput
from mppfl.game import Convention, Participation, PresetName
from mppfl.network import Diagonal, Isolated, Normalisation, SelfLoops
from mppfl.training import LEAST_EPSILON, MOST_EPSILON, TrainingConfig

Family = Literal["erdos_renyi", "barabasi_albert", "watts_strogatz", "stochastic_block", "skewed"]
ModelName = Literal["linear", "softmax", "mlp", "cnn_fmnist", "cnn_cifar", "vgg11", "vgg16"]
Norm = Literal["group", "batch", "none"]
Range = tuple[float, float]
Features = Literal["none", "oriented_gradients"]

FAMILY_OPTIONS = {
    "erdos_renyi": ("probability_range",),
    "barabasi_albert": ("links_each",),
    "watts_strogatz": ("neighbours", "rewire"),
    "stochastic_block": ("sizes", "within", "between"),
    "skewed": ("num_links", "popularity", "length_spread"),
}
WEIGHT_OPTIONS = ("weights", "weight_range")


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
        require_seed(self.seed)
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
        require_seed(self.seed)
        require_count(self.num_rounds, "num_rounds")
        require_number(self.budget_min, "budget_min", 0.0, 1e300, open_ends=False)
        if self.budget_max is not None:
            require_number(self.budget_max, "budget_max", 0.0, math.inf)
            if self.budget_max < self.budget_min:
                raise BadInput(f"budget_max={self.budget_max:g} is below budget_min={self.budget_min:g}. Raise it.")
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
        require_seed(self.seed)
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
        require_seed(self.seed)
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


def require_seed(seed: int | None) -> None:
    """Raises where a seed is given that is none."""
    if seed is not None:
        require_count(seed, "seed", 0)
