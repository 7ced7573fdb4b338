"""The picture of the network as a file for papers, by Matplotlib: PNG, SVG or PDF."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mppfl.explorer.drawing import Picture, Scale

STRONG, LINK, INK = "#d55e00", "#9aa3ab", "#1d2226"
NAMED_BELOW = 60


def network_file(
    picture: Picture, paint: Mapping[str, Any], scale: Scale, words: str, names: Sequence[str], kind: str
) -> bytes:
    """What the page draws, with its colours, the chosen client's walks and the legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    axis, bar = figure.subplots(2, 1, height_ratios=(24, 1))
    x, y = np.asarray(picture.x), np.asarray(picture.y)
    ends = np.stack([np.column_stack([x[at], y[at]]) for at in (picture.sources, picture.targets)], axis=1)
    axis.add_collection(LineCollection(list(ends), colors=LINK, linewidths=0.5, alpha=0.35, zorder=1))
    few = len(x) <= NAMED_BELOW
    areas = (0.6 * np.asarray(picture.diameters)) ** 2  # points; the box of 1000 is some 600 points wide
    axis.scatter(x, y, s=areas, c=paint["colours"], edgecolors="white", linewidths=0.5, zorder=3)
    for walk in paint["walks"]:
        for start, end in pairwise(walk):
            arrow = {"arrowstyle": "-|>", "color": STRONG, "lw": 1.6, "shrinkA": 3, "shrinkB": 5}
            axis.annotate("", (x[end], y[end]), (x[start], y[start]), arrowprops=arrow, zorder=4)
    if paint["chosen"] is not None:
        at = paint["chosen"]
        axis.scatter(x[at], y[at], s=areas[at] * 1.6, facecolors="none", edgecolors=STRONG, linewidths=2.4, zorder=5)
    if few or picture.is_community:
        for at, label in enumerate(_labels(picture, names)):
            style = {"ha": "center", "fontsize": 8, "color": INK, "parse_math": False}  # a client may be called $1$
            axis.annotate(label, (x[at], y[at]), (0, 6), textcoords="offset points", **style)
    axis.set_aspect("equal")
    axis.invert_yaxis()  # the page counts downwards
    axis.axis("off")
    shades = LinearSegmentedColormap.from_list("scale", re.findall("#[0-9a-f]{6}", scale.gradient))
    bar.imshow(np.linspace(0, 1, 256)[None], aspect="auto", cmap=shades, extent=(0, 100, 0, 1))
    bar.set_xticks([place for place, _ in scale.ticks], [text for _, text in scale.ticks])
    bar.set_yticks([])
    bar.set_xlabel(words)
    content = io.BytesIO()
    without_date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(content, format=kind, dpi=200, metadata=without_date)
    return content.getvalue()


def _labels(picture: Picture, names: Sequence[str]) -> list[str]:
    if picture.is_community:
        return [f"{size:,}" for size in np.asarray(picture.sizes).tolist()]
    return [names[int(members[0])] for members in picture.members]
