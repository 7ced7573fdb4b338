"""What can go wrong, as a tree. Every message says what was wrong, with its value, and what to do.

MppflError
├── BadInput (also a ValueError)      an argument or a value that cannot be
│   ├── BadFile                       a file that cannot be read as what it should be
│   ├── BadGraph                      edges that do not make a social network
│   └── UnknownClient                 a name that nobody in the network has
├── BudgetExceeded                    a release that would take a client past its cap; carries who was refused
├── MissingExtra (also an ImportError) a library of an optional extra that is not installed
├── LedgerUnavailable                 an account that cannot be written or read, so nothing may be released
├── NoEquilibrium                     a game in which nobody can be moved to participate
└── NotConverged                      a solver that stopped short; carries its last iterate and residual
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class MppflError(Exception):
    """Anything mppfl refuses to do, or cannot do."""


class BadInput(MppflError, ValueError):
    """An argument or a value that cannot be."""


class BadFile(BadInput):
    """A file that cannot be read as what it should be."""


class BadGraph(BadInput):
    """Edges that do not make a social network."""


class UnknownClient(BadInput):
    """A name that nobody in the network has."""


class BudgetExceeded(MppflError):
    """A release that would take a client past its cap; nothing of its round was recorded.

    refusals  who was refused, with what was spent, asked and allowed
    """

    def __init__(self, refusals: Sequence[Any]) -> None:
        more = f" (and {len(refusals) - 1:,} others)" if len(refusals) > 1 else ""
        super().__init__(f"{refusals[0]}{more}. Ask for less, leave the client out, or raise its cap.")
        self.refusals = tuple(refusals)


class MissingExtra(MppflError, ImportError):
    """A library of an optional extra that is not installed; the message names the extra."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed. Run: pip install 'mppfl[{extra}]'")


class LedgerUnavailable(MppflError):
    """The ledger could not be written or read, so nothing may be released."""


class NoEquilibrium(MppflError):
    """A game in which no reward moves anybody to participate."""


class NotConverged(MppflError):
    """A solver that stopped short of its tolerance.

    last_iterate  what it had reached
    residual      how far that is from a solution
    """

    def __init__(self, message: str, last_iterate: Any, residual: float) -> None:
        super().__init__(message)
        self.last_iterate = last_iterate
        self.residual = residual
