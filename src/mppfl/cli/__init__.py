"""Doors into the house: they hold no mathematics."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .audit import float_command
    from .calibrate import _beta_range
    from .explore import open_site
    from .inputs import Command, DebugOption, JsonOption, SeedOption, print_json, working
    from .main import app, main, run
    from .progress import Clock
    from .report import report_command
    from .train import DISPENSABLE, fit

export_lazily(__name__)
