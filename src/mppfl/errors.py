"""What can go wrong, as a tree. Every message says what was wrong, with its value, and what to do.

MppflError
├── BadInput (also a ValueError)      an argument or a value that cannot be
│   ├── BadFile                       a file that cannot be read as what it should be
│   ├── BadGraph                      links that do not make a social network
│   └── UnknownClient                 a name that nobody in the network has
├── NoEquilibrium                     a game in which nobody can be moved to take part
└── NotConverged                      a solver that stopped short; carries its last iterate and residual
"""

from __future__ import annotations

from typing import Any


class MppflError(Exception):
    """Anything mppfl refuses to do, or cannot do."""


class BadInput(MppflError, ValueError):
    """An argument or a value that cannot be."""


class BadFile(BadInput):
    """A file that cannot be read as what it should be."""


class BadGraph(BadInput):
    """Links that do not make a social network."""


class UnknownClient(BadInput):
    """A name that nobody in the network has."""


class NoEquilibrium(MppflError):
    """A game in which no reward moves anybody to take part."""


class NotConverged(MppflError):
    """A solver that stopped short of its tolerance.

    last_iterate  what it had reached
    residual      how far that is from a solution
    """

    def __init__(self, message: str, last_iterate: Any, residual: float) -> None:
        super().__init__(message)
        self.last_iterate = last_iterate
        self.residual = residual
