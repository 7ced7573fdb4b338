"""The cells of the paper's tables: which trainings there are, in which order, and what each is made of.

A cell is one data set, partition, number of clients and seed; its arms are mechanisms under an aggregation, all facing
the reward rates of mppfl on one network, one draw of clients, one split and one initial model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from mppfl.arrays import IntArray, require_count
from mppfl.data import ClientData, Dataset, split_dataset
from mppfl.errors import BadInput
from mppfl.game import (
    MECHANISMS,
    Game,
    Horizon,
    Mechanism,
    Plan,
    dp_fedavg,
    draw_clients,
    make_game,
    preset,
    rounds_up_to,
)
from mppfl.network import SocialGraph, random_graph
from mppfl.training import Aggregation, TrainingConfig
from reproduction.settings import EXTERNALITY_STRENGTH, MAX_HOPS, PARTITIONS, PRESET, SETTINGS, Setting

if TYPE_CHECKING:  # torch is loaded where something is trained, not where results are counted
    from torch import nn

    from mppfl.training import Norm

Purpose = Literal["graph", "clients", "split", "training"]
PURPOSES: tuple[Purpose, ...] = ("graph", "clients", "split", "training")
NETWORK = "erdos_renyi"  # the paper's
CONCENTRATION = {"iid": None, "dir0.3": 0.3, "dir0.6": 0.6}
COMPARED = ("social_agnostic", "mppfl", "fixed-min", "fixed-mean", "sarda_like")
BOTH = ("noise_aware", "size")
# How files of results name weights, and what the training calls them.
AGGREGATIONS: dict[str, Aggregation] = {"noise_aware": "noise_aware", "size": "num_examples", "uniform": "uniform"}
# PaperNoise, as files of results have named it from the first.
PAPER_NOISE = {"privacy": "paper", "clip_norm": "first_round_median", "noise": "seeded"}
ALWAYS_GIVEN = ("learning_rate", "batch_size", "local_epochs")  # by the paper, for every data set


@dataclass(frozen=True, slots=True, order=True)
class ArmName:
    """One training of a cell: "mppfl/noise_aware"."""

    mechanism: str
    aggregation: str

    def __str__(self) -> str:
        return f"{self.mechanism}/{self.aggregation}"


def arm_name(text: str) -> ArmName:
    """The name that str() wrote."""
    mechanism, _, aggregation = text.partition("/")
    return ArmName(mechanism, aggregation)


NOISELESS = ArmName("noiseless", "size")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One cell of a table under one seed."""

    dataset: str
    partition: str
    num_clients: int
    seed: int

    def __post_init__(self) -> None:
        if self.dataset not in SETTINGS:
            raise BadInput(f"data set {self.dataset!r} is none of the paper's: {', '.join(SETTINGS)}.")
        if self.partition not in PARTITIONS:
            raise BadInput(f"partition {self.partition!r} is none of the paper's: {', '.join(PARTITIONS)}.")
        require_count(self.num_clients, "num_clients")
        if self.seed < 0:
            raise BadInput(f"seed={self.seed} must be a whole number from 0.")

    @property
    def name(self) -> str:
        """Also the name of its file."""
        return f"{self.dataset}-{self.partition}-n{self.num_clients}-seed{self.seed}"

    @property
    def path(self) -> str:
        """As --only takes it: "cifar-10/dir0.3/n20/seed0"."""
        return f"{self.dataset}/{self.partition}/n{self.num_clients}/seed{self.seed}"

    def seed_of(self, purpose: Purpose) -> int:
        """The seed of one purpose, from a stream of its own: one more draw for the network leaves the split alone."""
        return int(np.random.SeedSequence([self.seed, PURPOSES.index(purpose)]).generate_state(1)[0])

    def stream(self, purpose: Purpose) -> np.random.Generator:
        return np.random.default_rng(self.seed_of(purpose))


# In order of priority: data set, numbers of clients, partitions, how many seeds.
_PLAN: tuple[tuple[str, int, tuple[str, ...], int], ...] = (
    ("fashion-mnist", 20, PARTITIONS, 2),
    ("cifar-10", 20, PARTITIONS, 1),
    ("cifar-10", 50, PARTITIONS, 1),
    ("cifar-10", 80, PARTITIONS, 1),
    ("cifar-100", 20, ("dir0.3", "iid", "dir0.6"), 1),
    ("svhn", 20, PARTITIONS, 1),
    ("cinic-10", 20, PARTITIONS, 1),
    ("cinic-10", 50, PARTITIONS, 1),
    ("cinic-10", 80, PARTITIONS, 1),
)


def all_cells(num_seeds: int | None = None) -> tuple[Cell, ...]:
    """Every cell in order of priority; `num_seeds` for each, or as many as are planned for its data set."""
    if num_seeds is not None:
        require_count(num_seeds, "seeds")
    return tuple(
        Cell(dataset, partition, size, seed)
        for dataset, size, partitions, planned in _PLAN
        for seed in range(num_seeds or planned)
        for partition in partitions
    )


CELLS = all_cells()


def chosen_cells(only: Sequence[str], cells: Sequence[Cell] = CELLS) -> list[Cell]:
    """The cells that begin with one of these, as "cifar-10", "cifar-10/dir0.3" or "cifar-10/iid/n50"; all for none."""
    if not only:
        return list(cells)
    for wanted in only:
        if not any(_begins(cell, wanted) for cell in cells):
            known = ", ".join(dict.fromkeys(cell.dataset for cell in cells))
            raise BadInput(f"only={wanted!r} names no cell. Use one of {known}, or longer: {cells[0].path}.")
    return [cell for cell in cells if any(_begins(cell, wanted) for wanted in only)]


def _begins(cell: Cell, wanted: str) -> bool:
    parts = wanted.strip("/").split("/")
    return cell.path.split("/")[: len(parts)] == parts


def aggregations_of(cell: Cell) -> tuple[str, ...]:
    """Both where the paper's Table 1 is decided by it and training is quick; else noise-aware alone."""
    return BOTH if cell.dataset in ("fashion-mnist", "cifar-10") and cell.num_clients == 20 else ("noise_aware",)


def arms_of(cell: Cell) -> tuple[ArmName, ...]:
    """The trainings of a cell, the four of the paper's tables first."""
    compared = [ArmName(mechanism, weights) for weights in aggregations_of(cell) for mechanism in COMPARED]
    return (*compared, ArmName("random", "noise_aware"), NOISELESS)


# ---- what a cell is made of ---------------------------------------------------------------------------------------


def configuration(cell: Cell, setting: Setting) -> dict[str, Any]:
    """All that decides the cell's trainings but the unit of budgets, the precision and the machine."""
    constants = asdict(preset(PRESET)) | {"externality_strength": EXTERNALITY_STRENGTH, "max_hops": MAX_HOPS}
    vgg = {"norm": setting.norm} if setting.model.startswith("vgg") else {}
    return {
        **asdict(cell),
        "seeds": {purpose: cell.seed_of(purpose) for purpose in PURPOSES},
        "num_train": setting.num_train,
        "num_test": setting.num_test,
        "min_examples": setting.batch_size,
        "network": NETWORK,
        "preset": PRESET,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in constants.items()},
        "reward": "common: every mechanism faces the rates of mppfl",
        "model": setting.model,
        **vgg,
        "num_rounds": setting.num_rounds,
        **training_choices(setting),
        **PAPER_NOISE,
    }


def training_choices(setting: Setting) -> dict[str, Any]:
    """What the setting says of local training, by the names of TrainingConfig; the default goes without saying.

    So a choice that a later version offers leaves the cells that do not make it as they were.
    """
    defaults = {each.name: each.default for each in fields(TrainingConfig)}
    said = {each.name: getattr(setting, each.name) for each in fields(setting) if each.name in defaults}
    return {name: value for name, value in said.items() if name in ALWAYS_GIVEN or value != defaults[name]}


def fingerprint(facts: Mapping[str, Any]) -> str:
    """12 hexadecimal digits over a configuration."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def network_of(cell: Cell) -> SocialGraph:
    return random_graph(NETWORK, cell.num_clients, rng=cell.stream("graph"))


def game_of(cell: Cell, num_examples: IntArray) -> Game:
    """The game between the server and the cell's clients, who hold so many examples each."""
    constants = preset(PRESET)
    clients = draw_clients(PRESET, cell.num_clients, cell.stream("clients"))
    return make_game(
        network_of(cell),
        replace(clients, data_size=np.asarray(num_examples, dtype=np.float64)),
        max_hops=MAX_HOPS,
        hop_decay=constants.hop_decay,
        externality_strength=EXTERNALITY_STRENGTH,
        accuracy_weight=constants.accuracy_weight,
    )


def plan_of(game: Game, mechanism: str, num_rounds: int, seed: int) -> Plan:
    """Budgets of every round where everybody faces mppfl's rates."""
    rounds = rounds_up_to(num_rounds)
    common = MECHANISMS["mppfl"](game, Horizon(rounds, seed=seed)).reward_rates
    return _mechanisms()[mechanism](game, Horizon(rounds, common, seed))


@cache
def _mechanisms() -> dict[str, Mechanism]:
    """By the names of arms: DP-FedAvg's one budget follows one of two rules."""
    return {
        **MECHANISMS,
        "fixed-min": dp_fedavg.with_options(fixed_budget="min"),
        "fixed-mean": dp_fedavg.with_options(fixed_budget="mean"),
    }


# ---- a cell, ready to train ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Case:
    """A cell with its clients' data; the game and the plans are solved when they are asked for."""

    cell: Cell
    setting: Setting
    data: ClientData
    plans: dict[str, Plan] = field(default_factory=dict)
    game: Game | None = None

    def plan(self, mechanism: str) -> Plan:
        if self.game is None:
            self.game = game_of(self.cell, self.data.num_examples)
        if mechanism not in self.plans:
            self.plans[mechanism] = plan_of(self.game, mechanism, self.setting.num_rounds, self.cell.seed)
        return self.plans[mechanism]

    def model(self) -> nn.Module:
        from mppfl.training import make_model

        norm = cast("Norm", self.setting.norm)
        return make_model(self.setting.model, self.data.input_shape, self.data.num_classes, norm=norm)


def clients_of(cell: Cell, setting: Setting, dataset: Dataset) -> ClientData:
    """The examples, shared out by the cell's partition; everyone can fill a batch."""
    concentration = CONCENTRATION[cell.partition]
    graph, rng = network_of(cell), cell.stream("split")
    if concentration is None:
        return split_dataset(dataset, "iid", rng=rng, graph=graph, min_examples=setting.batch_size)
    return split_dataset(
        dataset, "dirichlet", rng=rng, graph=graph, concentration=concentration, min_examples=setting.batch_size
    )


# Of the models of SETTINGS, so that `--status` loads no torch; a test counts them again.
GFLOP = {
    ("cnn_fmnist", 10): 0.073638912,
    ("cnn_cifar", 10): 0.196668672,
    ("vgg11", 10): 0.916617216,
    ("vgg16", 100): 1.879486464,
}


def gflop_per_example(setting: Setting) -> float:
    """Arithmetic of one example: products of convolutions and dense layers, forward once and backward twice."""
    if SETTINGS.get(setting.dataset, setting).input_shape == setting.input_shape:
        recorded = GFLOP.get((setting.model, setting.num_classes))
        if recorded is not None:
            return recorded
    return counted_gflop(setting)


@cache
def counted_gflop(setting: Setting) -> float:
    """The same, counted on the model itself."""
    from mppfl import training

    norm = cast("Norm", setting.norm)
    model = training.make_model(setting.model, setting.input_shape, setting.num_classes, norm=norm)
    return training.gflop_per_example(model, setting.input_shape)
