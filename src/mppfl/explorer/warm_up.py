"""Warming up: compiled code is loaded while the reader looks at the first picture, not when a lever first needs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import get_args

from mppfl.errors import MppflError
from mppfl.experiment import Family
from mppfl.explorer.choices import LEADERS, Choices
from mppfl.explorer.drawing import Drawn
from mppfl.explorer.world import World
from mppfl.game import Participation

log = logging.getLogger(__name__)

SMALL = Choices(num_clients=8, num_rounds=2)
SPARSE = Choices(num_clients=1100, num_rounds=2, family="watts_strogatz")  # walks are walked, not multiplied out


def warm_up() -> threading.Thread:
    """Plays games of every kind in a thread of its own, which ends with the server."""
    thread = threading.Thread(target=play_every_kind, name="warm-up", daemon=True)
    thread.start()
    return thread


def every_kind() -> Iterator[Choices]:
    """One small game for each leader, with bounds, with each rule of participation, on each network; a sparse one."""
    for leader, most, rule in product(LEADERS, (None, 1.0), get_args(Participation)):
        yield replace(SMALL, leader=leader, budget_max=most, participation=rule)
    for family in get_args(Family):
        yield replace(SMALL, family=family)
    for hops in (2, 3):
        yield replace(SPARSE, max_hops=hops)


def play_every_kind() -> int:
    """Plays them all; how many could be played."""
    world, played = World(), 0
    Drawn(world.graph(SMALL)).picture()
    for choices in every_kind():
        try:
            world.scene(choices)
            played += 1
        except MppflError as error:  # a game without an answer loads the code all the same
            log.debug("not played: %s", error)
    return played
