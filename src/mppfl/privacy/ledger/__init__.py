"""The privacy ledger."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .entries import name_of
    from .epsilon import CAP_SLACK, Account, TooManyHistories, epsilons
    from .ledger import PrivacyLedger
    from .schema import SIMULATION

export_lazily(__name__)
