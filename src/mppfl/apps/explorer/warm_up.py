"""Warming up: compiled code is loaded while the reader looks at the first picture, not when a lever first needs it."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from itertools import product
from typing import get_args

from mppfl.apps.explorer.choices import LEADERS, Choices
from mppfl.apps.explorer.drawing import Drawn
from mppfl.apps.explorer.world import World
from mppfl.errors import MppflError
from mppfl.game.plan import Participation

log = logging.getLogger(__name__)

SMALL = Choices(num_clients=8, num_rounds=2)


def warm_up() -> threading.Thread:
    """Plays small games of every kind in a thread of its own, which ends with the server."""
    thread = threading.Thread(target=play_small_games, name="warm-up", daemon=True)
    thread.start()
    return thread


def play_small_games() -> int:
    """One small game for each leader, with bounds and with each rule of participation; how many could be played."""
    world, played = World(), 0
    Drawn(world.graph(SMALL)).picture()
    for leader, most, rule in product(LEADERS, (None, 1.0), get_args(Participation)):
        try:
            world.scene(replace(SMALL, leader=leader, budget_max=most, participation=rule))
            played += 1
        except MppflError as error:  # a game without an answer loads the code all the same
            log.debug("not played: %s", error)
    return played
