"""The privacy ledger."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .entries import LedgerEntry, name_of
    from .epsilon import TooManyHistories, epsilons
    from .file import failures_in_one_line
    from .ledger import PrivacyLedger
    from .notes import SIMULATION
    from .totals import CAP_SLACK, Account
    from .verify import checksum

export_lazily(__name__)
