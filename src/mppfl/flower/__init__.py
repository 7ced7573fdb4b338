"""MPPFL on Flower: a strategy that prices every round, a client mod that keeps each client's own account.

    PricedFedAvg    the server's strategy: a plan's terms for each client, checks, payments, a checkpoint every round
    PrivateUpload   the client's mod: clips, checks its own cap, pays its own ledger, adds noise, reports

Needs `pip install mppfl[flower]`. docs/deploy.md shows both in an app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mppfl.errors import MppflError

if TYPE_CHECKING:
    from mppfl.flower.mod import PrivateUpload
    from mppfl.flower.strategy import PricedFedAvg

__all__ = ["PricedFedAvg", "PrivateUpload"]


def __getattr__(name: str) -> Any:
    require_flower()
    if name == "PricedFedAvg":
        from mppfl.flower.strategy import PricedFedAvg

        return PricedFedAvg
    if name == "PrivateUpload":
        from mppfl.flower.mod import PrivateUpload

        return PrivateUpload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def require_flower() -> None:
    """Raises, with the remedy, where Flower is not installed."""
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise MppflError("Flower is not installed. Run: pip install 'mppfl[flower]'")
