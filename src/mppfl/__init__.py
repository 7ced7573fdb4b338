"""mppfl prices privacy on a social network. The names here are the public interface, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mppfl.data.sources import load_data
    from mppfl.data.split import ClientData, client_data, split
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
    from mppfl.training.arms import Arm
    from mppfl.training.config import TrainingConfig
    from mppfl.training.models import make_model
    from mppfl.training.rounds import rounds_together, training_rounds
    from mppfl.network.generate import random_graph
    from mppfl.network.graph import SocialGraph, describe, graph_from_links, graph_from_matrix
    from mppfl.network.propagation import Propagation, attribute, propagate
    from mppfl.network.read import read_graph
    from mppfl.privacy.ledger.ledger import PrivacyLedger
    from mppfl.privacy.mechanism import privacy_mechanism
    from mppfl.privacy.release import release
    from mppfl.experiment.experiment import Experiment
    from mppfl.experiment.experiment_file import read_experiment
    from mppfl.experiment.report.page import write_report
    from mppfl.experiment.run import Run
    from mppfl.experiment.run_folder import load_run
    from mppfl.experiment.train import train

_HOME = {
    "data.sources": ("load_data",),
    "data.split": ("ClientData", "client_data", "split"),
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
    "learning.arms": ("Arm",),
    "learning.config": ("TrainingConfig",),
    "learning.models": ("make_model",),
    "learning.rounds": ("rounds_together", "training_rounds"),
    "network.generate": ("random_graph",),
    "network.graph": ("SocialGraph", "describe", "graph_from_links", "graph_from_matrix"),
    "network.propagation": ("Propagation", "attribute", "propagate"),
    "network.read": ("read_graph",),
    "privacy.ledger": ("PrivacyLedger",),
    "privacy.mechanism": ("privacy_mechanism",),
    "privacy.release": ("release",),
    "results.experiment": ("Experiment",),
    "results.experiment_file": ("read_experiment",),
    "results.report": ("write_report",),
    "results.run": ("Run",),
    "results.run_folder": ("load_run",),
    "results.train": ("train",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Arm",
    "BadInput",
    "ClientData",
    "Clients",
    "Experiment",
    "Game",
    "Horizon",
    "MppflError",
    "NoEquilibrium",
    "NotConverged",
    "Plan",
    "PrivacyLedger",
    "Propagation",
    "Run",
    "SocialGraph",
    "Solution",
    "Terms",
    "TrainingConfig",
    "attribute",
    "client_data",
    "compare",
    "describe",
    "draw_clients",
    "evaluate",
    "fixed_point_trace",
    "follow",
    "graph_from_links",
    "graph_from_matrix",
    "load_data",
    "load_run",
    "make_game",
    "make_model",
    "plan_of_rounds",
    "privacy_mechanism",
    "propagate",
    "random_graph",
    "read_clients",
    "read_experiment",
    "read_graph",
    "release",
    "rounds_together",
    "social_optimum",
    "solve",
    "split",
    "train",
    "training_rounds",
    "verify",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f"mppfl.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'mppfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
