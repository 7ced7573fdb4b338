"""mppfl prices privacy on a social network. The names here are the public interface, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mppfl.errors import BadInput, MppflError, NoEquilibrium, NotConverged
    from mppfl.game.clients_file import read_clients
    from mppfl.game.compare import compare
    from mppfl.game.fixed_point import fixed_point_trace
    from mppfl.game.model import Clients, Game, make_game
    from mppfl.game.outcome import evaluate, verify
    from mppfl.game.plan import Horizon, Plan, Terms, plan_of_rounds
    from mppfl.game.presets import draw_clients
    from mppfl.game.solve import Solution, follow, solve
    from mppfl.game.welfare import social_optimum
    from mppfl.network.generate import random_graph
    from mppfl.network.graph import SocialGraph, describe, graph_from_links, graph_from_matrix
    from mppfl.network.propagation import Propagation, attribute, propagate
    from mppfl.network.read import read_graph
    from mppfl.privacy.ledger import PrivacyLedger
    from mppfl.privacy.mechanism import privacy_mechanism
    from mppfl.privacy.release import release

_HOME = {
    "errors": ("BadInput", "MppflError", "NoEquilibrium", "NotConverged"),
    "game.clients_file": ("read_clients",),
    "game.compare": ("compare",),
    "game.fixed_point": ("fixed_point_trace",),
    "game.model": ("Clients", "Game", "make_game"),
    "game.outcome": ("evaluate", "verify"),
    "game.plan": ("Horizon", "Plan", "Terms", "plan_of_rounds"),
    "game.presets": ("draw_clients",),
    "game.solve": ("Solution", "follow", "solve"),
    "game.welfare": ("social_optimum",),
    "network.generate": ("random_graph",),
    "network.graph": ("SocialGraph", "describe", "graph_from_links", "graph_from_matrix"),
    "network.propagation": ("Propagation", "attribute", "propagate"),
    "network.read": ("read_graph",),
    "privacy.ledger": ("PrivacyLedger",),
    "privacy.mechanism": ("privacy_mechanism",),
    "privacy.release": ("release",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BadInput",
    "Clients",
    "Game",
    "Horizon",
    "MppflError",
    "NoEquilibrium",
    "NotConverged",
    "Plan",
    "PrivacyLedger",
    "Propagation",
    "SocialGraph",
    "Solution",
    "Terms",
    "attribute",
    "compare",
    "describe",
    "draw_clients",
    "evaluate",
    "fixed_point_trace",
    "follow",
    "graph_from_links",
    "graph_from_matrix",
    "make_game",
    "plan_of_rounds",
    "privacy_mechanism",
    "propagate",
    "random_graph",
    "read_clients",
    "read_graph",
    "release",
    "social_optimum",
    "solve",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f"mppfl.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'mppfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
