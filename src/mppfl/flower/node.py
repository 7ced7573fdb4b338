"""Who a client is and what it allows: a small TOML file on the client's own machine, which the server never sees.

    client = "ann"                  # the name under which the server knows this client
    ledger = "ledger.sqlite"        # what it has spent, over all runs and servers
    cap = 2.5                       # ρ that may be spent in all; without it there is no limit
    cap_per_round = 0.5             # ρ that may be spent in one round
    experiment = "experiment.toml"  # for the app of deploy init; without it, the file that the app brings along
    accept = ["client"]             # mechanisms it releases under; those that promise too much must be named
    without_noise = false           # whether it may send an upload without noise
    quadratic_cost = 0.7            # a and b of its privacy cost, where it is asked for budgets (offers.py)
    linear_cost = 0.2
    budget_max = 3.0                # the most it ever answers with, in budgets of the game

Flower's node configuration names the file: --node-config 'mppfl-node="/home/ann/node.toml"'.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from difflib import get_close_matches
from os.path import relpath
from pathlib import Path
from typing import Any

from mppfl.arrays import require_number
from mppfl.errors import BadFile, BadInput
from mppfl.files import toml_text as write_toml
from mppfl.privacy import MECHANISMS
from mppfl.privacy.ledger import name_of

NODE_KEY = "mppfl-node"
PATHS = ("ledger", "experiment")
LIMITS = ("cap", "cap_per_round", "quadratic_cost", "linear_cost", "budget_max")
# Those whose budget holds whatever the data are; `paper` has to be accepted by name.
SOUND = tuple(name for name in MECHANISMS if name not in ("paper", "dpsgd_poisson"))


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One client's own settings; paths are absolute.

    quadratic_cost, linear_cost, budget_max
                from which it answers offers; without the first it answers none
    experiment  the experiment file on this machine, where the app is mppfl's own
    """

    client: str
    ledger: Path
    cap: float | None = None
    cap_per_round: float | None = None
    accept: tuple[str, ...] = SOUND
    without_noise: bool = False
    quadratic_cost: float | None = None
    linear_cost: float | None = None
    budget_max: float | None = None
    experiment: Path | None = None

    def __post_init__(self) -> None:
        name_of(self.client)
        for name in LIMITS:
            if getattr(self, name) is not None:
                require_number(getattr(self, name), name, 0.0, math.inf, open_ends=False)
        for each in self.accept:
            if each not in MECHANISMS:
                raise BadInput(f"accept={each!r} is not known. Known: {', '.join(MECHANISMS)}.")

    def to_toml(self, folder: Path | None = None) -> str:
        """The file that `read_node` reads back as these settings.

        With the folder that it will lie in, paths are written relative to it, so that they move with it.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if folder is not None:
            values |= {name: relpath(values[name], folder) for name in PATHS if values[name] is not None}
        return write_toml({name: _plain(value) for name, value in values.items() if value is not None})


def read_node(path: str | Path) -> NodeSettings:
    """The settings in a TOML file. Relative paths are relative to it; an unknown key raises with the nearest known."""
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as cause:
        raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check the path.") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise BadFile(f"{path}: not TOML ({cause}). Correct that place.") from cause
    known = [field.name for field in fields(NodeSettings)]
    for key in raw:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise BadFile(f"{path}: {key!r} is not known.{f' Did you mean {near[0]!r}?' if near else ''}")
    for key in ("client", "ledger"):
        if not isinstance(raw.get(key), str):
            raise BadFile(f"{path}: {key}={raw.get(key)!r} must be text. Give it.")
    wanted: dict[str, Any] = dict.fromkeys(LIMITS, (int, float))
    wanted |= {"without_noise": bool, "accept": list, "experiment": str}
    for key, kind in wanted.items():
        if key in raw and (not isinstance(raw[key], kind) or (isinstance(raw[key], bool) and kind is not bool)):
            raise BadFile(f"{path}: {key}={raw[key]!r} is of the wrong kind. docs/deploy.md has an example.")
    for key in PATHS:
        if key in raw:
            raw[key] = path.absolute().parent / Path(raw[key]).expanduser()
    if "accept" in raw:
        raw["accept"] = tuple(map(str, raw["accept"]))
    try:
        return NodeSettings(**raw)
    except BadInput as cause:
        raise BadFile(f"{path}: {cause}") from cause


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
