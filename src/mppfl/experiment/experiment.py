"""Experiment: everything one training needs, as a frozen value; experiment_file.py reads it from TOML.

Its tables are the dataclasses of experiment_tables.py. Seeds of the network, the clients, the split and the training
are drawn from `seed`, each from a stream of its own, unless a table gives its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from mppfl.errors import BadInput
from mppfl.experiment.experiment_tables import (
    TABLES,
    DataChoice,
    GameTerms,
    LedgerChoice,
    Network,
    Output,
    Training,
    plain_table,
    require_seed,
)
from mppfl.experiment.toml_text import toml_value, write_toml
from mppfl.game import SAME_AT_COMMON_REWARD, as_mechanism
from mppfl.training import Aggregation

Purpose = Literal["graph", "clients", "split", "training"]
PURPOSES: tuple[Purpose, ...] = ("graph", "clients", "split", "training")
ONE_OR_MANY = {"seed": "seeds", "mechanism": "mechanisms"}
OPTION_OF = {"payment_limit": "budget_limited", "fixed_budget": "fixed"}  # of [game], each for one mechanism alone
FOLDER_NAME = re.compile(r"[\w][\w .+-]{0,99}")


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
            require_seed(seed)
        for mechanism in self.mechanisms:
            self._check_mechanism(mechanism)
        self._check_caps()
        for option, owner in OPTION_OF.items():
            value = getattr(self.game, option)
            if value != getattr(GameTerms(), option) and owner not in self.mechanisms:
                raise BadInput(
                    f"game.{option}={shown(value)} means nothing without the mechanism {owner}. Remove it, or name "
                    f"{owner} among the mechanisms."
                )

    def _check_caps(self) -> None:
        privacy = self.training.config.mechanism
        if not privacy.is_zcdp and (self.ledger.cap is not None or self.ledger.caps):
            option = "cap" if self.ledger.cap is not None else "caps"
            raise BadInput(
                f"ledger.{option} is ρ that adds up over rounds, and privacy={privacy.name!r} has none: whoever is "
                "capped would never take part. Remove it, or use another privacy."
            )

    def _check_mechanism(self, mechanism: str) -> None:
        as_mechanism(mechanism)
        if mechanism == "budget_limited" and self.game.payment_limit is None:
            raise BadInput("the mechanism budget_limited needs game.payment_limit, the money it may spend in a round.")
        if self.game.convention == "common" and mechanism in SAME_AT_COMMON_REWARD:
            raise BadInput(
                f"mechanism={mechanism!r} differs from mppfl in the reward rate alone, and convention='common' gives "
                "every mechanism mppfl's. Use game.convention='own', or leave it out."
            )

    def under(self, mechanism: str) -> Experiment:
        """The same experiment under one of its mechanisms alone, without options that are another's."""
        others = {name: getattr(GameTerms(), name) for name, owner in OPTION_OF.items() if owner != mechanism}
        return replace(self, mechanisms=(mechanism,), game=replace(self.game, **others))

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
        return found | {name: plain_table(getattr(self, name)) for name in TABLES}

    def to_toml(self) -> str:
        """The file that `read_experiment` reads back as this experiment."""
        return write_toml(self.as_dict())


def differences(one: Experiment, other: Experiment) -> list[str]:
    """Where two experiments differ, as "training.clip_norm: 1.0, was 0.5"; where results go does not count."""
    now, before = (flat_values(replace(each, output=Output()).as_dict()) for each in (one, other))
    return [
        f"{key}: {shown(now.get(key, 'not given'))}, was {shown(before.get(key, 'not given'))}"
        for key in dict.fromkeys([*now, *before])
        if now.get(key) != before.get(key)
    ]


def flat_values(values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Nested values by their places: {"training.clip_norm": 1.0, ...}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat_values(value, f"{place}{key}.") if isinstance(value, Mapping) else {f"{place}{key}": value}
    return found


def shown(value: Any) -> str:
    """A value as the file would say it, cut where it is long."""
    text = toml_value(value)
    return text if len(text) <= 60 else text[:57] + "..."
