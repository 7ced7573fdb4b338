"""The figure of `mppfl compare`: mechanisms side by side as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mppfl.charts import MECHANISM_SLOTS, Axis, Bars, Chart, write_figure

if TYPE_CHECKING:
    from mppfl.game import Summary

TITLES = {"common": "Common reward", "own": "Own reward"}


def comparison_figure(summaries: Sequence[Summary], path: str | Path, num_rounds: int) -> None:
    """Server cost and client welfare of every mechanism, one row per reward convention, as .png, .pdf or .svg.

    Bars are means over games, whiskers one standard deviation.
    """
    charts = []
    for convention in dict.fromkeys(row.convention for row in summaries):
        rows = [row for row in summaries if row.convention == convention and np.isfinite(row.welfare)]
        for measure, name in (("server_cost", "server cost"), ("welfare", "client welfare")):
            means, spreads = (np.array([getattr(row, measure + end) for row in rows]) for end in ("", "_sd"))
            charts.append(
                Chart(
                    f"{convention}-{measure}",
                    f"{TITLES[convention]}: {name}",
                    Axis(name, f"money, sum over {num_rounds} rounds"),
                    Axis("mechanism", "name"),
                    bars=(Bars(name, 0, means, spreads if spreads.any() else None),),
                    labels=tuple(row.mechanism.replace("_", " ") for row in rows),
                    label_slots=tuple(MECHANISM_SLOTS.get(row.mechanism, 0) for row in rows),
                )
            )
    write_figure(charts, path)
