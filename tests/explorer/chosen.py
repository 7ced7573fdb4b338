"""Choices from the fields of the game and of the view together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mppfl.explorer import Choices, ViewState
from mppfl.fields import hints


def choose(**values: Any) -> Choices:
    """Choices with these values of the game and the view."""
    return altered(Choices(), **values)


def altered(choices: Choices, **values: Any) -> Choices:
    """The same choices but for these values."""
    view = {name: value for name, value in values.items() if name in hints(ViewState)}
    game = {name: value for name, value in values.items() if name not in view}
    return Choices(replace(choices.game, **game), replace(choices.view, **view))
