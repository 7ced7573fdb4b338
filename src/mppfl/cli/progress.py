"""How a training goes, on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mppfl.training import RoundRecord

OnRound = Callable[[Mapping[str, "RoundRecord"]], None]
COLUMNS = ("accuracy", "loss", "reward rate", "median budget", "largest ε")
MOST_LINES = 20  # plain lines for each training, however many rounds


@contextmanager
def training_progress(num_rounds: int, *, quiet: bool = False) -> Iterator[OnRound]:
    """A function to be called after every round, which shows where all trainings stand."""
    if quiet:
        yield lambda records: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield plain_lines(num_rounds)
        return
    from rich.live import Live

    clock = Clock(num_rounds)
    with Live("preparing data, network and plans", console=console, transient=True, refresh_per_second=4) as live:

        def show(records: Mapping[str, RoundRecord]) -> None:
            live.update(live_table(records, clock))

        yield show


class Clock:
    """Time left, from the rounds that this process has seen."""

    def __init__(self, num_rounds: int) -> None:
        self.num_rounds = num_rounds
        self.began = time.monotonic()
        self.seen = 0

    def tick(self, round_index: int) -> str:
        """What remains after this round, in words. The first round also pays for preparation, and is not counted."""
        self.seen += 1
        now = time.monotonic()
        if self.seen == 1:
            self.began = now
            return "" if round_index < self.num_rounds else "done"
        left = (self.num_rounds - round_index) * (now - self.began) / (self.seen - 1)
        return f"{left:.0f} s left" if left < 120 else f"{left / 60:.0f} min left"


def cells(record: RoundRecord) -> tuple[str, ...]:
    """Accuracy, loss, reward rate, median budget and ε of the client who spent most, as text."""
    import numpy as np

    from mppfl.text import epsilon, percent

    taken = record.budgets[record.participating]
    middle = float(np.median(taken)) if len(taken) else math.nan

    def figure(value: float, form: str) -> str:
        return format(value, form) if math.isfinite(value) else "∞" if math.isinf(value) else "–"

    return (
        percent(record.accuracy),
        figure(record.loss, ".3f"),
        figure(record.reward_rate, ".4g"),
        figure(middle, ".3g"),
        epsilon(record.dp_epsilon),
    )


def plain_lines(num_rounds: int) -> OnRound:
    """One line per training, for some twenty of the rounds."""
    clock, every = Clock(num_rounds), max(1, math.ceil(num_rounds / MOST_LINES))

    def show(records: Mapping[str, RoundRecord]) -> None:
        at = next(iter(records.values())).round_index
        left = clock.tick(at)
        if at % every and at != num_rounds:
            return
        width = max(map(len, records))
        for name, record in records.items():
            told = "  ".join(f"{label} {text}" for label, text in zip(COLUMNS, cells(record), strict=True))
            print(f"round {at}/{num_rounds}  {name:<{width}}  {told}  {left}".rstrip(), file=sys.stderr, flush=True)

    return show


def live_table(records: Mapping[str, RoundRecord], clock: Clock) -> RenderableType:
    """All trainings after a round, with a bar for the whole."""
    from rich.box import SIMPLE
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    at = next(iter(records.values())).round_index
    table = Table(box=SIMPLE)
    table.add_column("training", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, record in records.items():
        table.add_row(*(Text(text) for text in (name, *cells(record))))
    bar: Any = ProgressBar(total=clock.num_rounds, completed=at, width=40)
    line = Table.grid(padding=(0, 1))
    line.add_row(f"round {at}/{clock.num_rounds}", bar, clock.tick(at))
    return Group(table, line)
