"""The privacy ledger."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .entries import LedgerEntry, name_of
    from .epsilon import TooManyHistories, epsilons
    from .ledger import PrivacyLedger
    from .notes import SIMULATION
    from .totals import CAP_SLACK, Account

export_lazily(__name__)
