"""The social graph as a picture: where clients stand, what they spent and what they were paid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.experiment.report.figures import fill_of, level_of, shortened
from mppfl.network import SocialGraph
from mppfl.text import number

SIDE = 460.0
MOST_NODES, NODES_SAMPLED, MOST_LINKS, MOST_LABELS = 500, 300, 6_000, 40


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """Where the drawn clients stand, in a square of `SIDE`, and the links between them as one path.

    shown     positions of the clients that are drawn: all, or those around the best connected one
    note      what was left out, or ""
    """

    shown: IntArray
    x: Array
    y: Array
    links: str
    num_links: int
    note: str


def lay_out(graph: SocialGraph) -> Layout:
    """A seeded spring layout. Above `MOST_NODES` clients only the surroundings of the best connected are drawn."""
    matrix = graph.influence
    either = (matrix + matrix.T).tocsr()
    shown: IntArray = np.arange(graph.num_clients)
    notes = []
    if graph.num_clients > MOST_NODES:
        shown = _surroundings(either, NODES_SAMPLED)
        notes.append(f"{len(shown):,} of {graph.num_clients:,} clients are drawn: those around the best connected one")
    among = either[shown][:, shown].tocoo()
    once = among.row < among.col
    firsts, seconds, strengths = among.row[once], among.col[once], among.data[once]
    if len(firsts) > MOST_LINKS:
        notes.append(f"only the {MOST_LINKS:,} strongest of {len(firsts):,} links are drawn")
        kept = np.argsort(-strengths, kind="stable")[:MOST_LINKS]
        firsts, seconds = firsts[kept], seconds[kept]
    linked = np.zeros(len(shown), dtype=np.bool_)
    linked[np.concatenate([firsts, seconds])] = True
    x, y = _places(zip(firsts.tolist(), seconds.tolist(), strict=True), linked)
    links = "".join(
        f"M{x[a]:.0f} {y[a]:.0f}L{x[b]:.0f} {y[b]:.0f}" for a, b in zip(firsts.tolist(), seconds.tolist(), strict=True)
    )
    return Layout(shown, x, y, links, len(firsts), "; ".join(notes))


def _places(ties: Iterable[tuple[int, int]], linked: BoolArray) -> tuple[Array, Array]:
    """Linked clients where springs pull them, the others in rows below. Within a square of `SIDE`."""
    import networkx as nx

    size, margin = len(linked), 26.0
    x, y = np.full(size, SIDE / 2), np.full(size, SIDE / 2)
    alone, together = np.flatnonzero(~linked), np.flatnonzero(linked)
    a_row = 14 if size <= 60 else 40
    rows = math.ceil(len(alone) / a_row)
    step = min(30.0, 150.0 / rows) if rows else 0.0
    floor = SIDE - margin - rows * step - 16 * (rows > 0)
    if len(together):
        net = nx.Graph()
        net.add_nodes_from(together.tolist())
        net.add_edges_from(ties, weight=1.0)
        # A weak tie to a common centre, which is not drawn, keeps separate parts from drifting out of sight.
        net.add_edges_from(((-1, node) for node in together.tolist()), weight=0.15)
        spread = 1.6 / math.sqrt(len(together) + 1)
        found = nx.spring_layout(net, k=spread, seed=7, iterations=150 if len(together) <= 100 else 60)
        points = np.array([found[node] for node in together.tolist()])
        points -= points.min(axis=0)
        points /= np.maximum(points.max(axis=0), 1e-9)
        x[together], y[together] = (points * [SIDE - 2 * margin, floor - margin] + margin).T
    for row in range(rows):
        here = alone[row * a_row : (row + 1) * a_row]
        x[here] = np.linspace(margin, SIDE - margin, len(here) + 2)[1:-1]
        y[here] = (
            SIDE - margin - (rows - row - 1) * step
            if len(together)
            else margin + (row + 1) * (SIDE - 2 * margin) / (rows + 1)
        )
    return x.round(1), y.round(1)


def _surroundings(either: object, count: int) -> IntArray:
    """So many clients, reached first from the best connected one, then from the next not yet reached."""
    from scipy.sparse.csgraph import breadth_first_order

    by_degree = np.argsort(-np.diff(either.indptr), kind="stable")  # type: ignore[attr-defined]
    taken: dict[int, None] = {}
    for start in by_degree.tolist():
        if len(taken) >= count:
            break
        if start not in taken:
            reached = breadth_first_order(either, start, directed=False, return_predecessors=False)
            taken.update(dict.fromkeys(reached.tolist()))
    return np.sort(np.array(list(taken)[:count]))


def graph_picture(
    layout: Layout,
    names: Sequence[str],
    spent: Array,
    paid: Array,
    ends: tuple[float, float],
    label: str,
    *,
    key: str,
    links_id: str,
) -> Markup:
    """The social graph: colour says what a client spent, size what it was paid; `ends` are the most of both."""
    top, most = ends
    levels = level_of(spent[layout.shown], top)
    money = np.nan_to_num(paid[layout.shown], posinf=0.0)
    small, large = (6.0, 15.0) if len(layout.shown) <= 60 else (3.0, 8.0)
    radii = small + (large - small) * np.sqrt(np.clip(money / most, 0, 1)) if most > 0 else np.full(len(money), small)
    spoken = f'role="img" aria-label="{escape(label)}"'
    out = [f'<svg viewBox="0 0 {SIDE:g} {SIDE:g}" {spoken} class="graph" data-graph="{escape(key)}">']
    out.append(f'<use href="#{escape(links_id)}"/>')
    for at, client in enumerate(layout.shown.tolist()):
        title = f"{names[client]}: spent ρ {number(spent[client])}, paid {number(paid[client])}"
        place = f'cx="{layout.x[at]:g}" cy="{layout.y[at]:g}" r="{radii[at]:.1f}"'
        out.append(f'<circle {place} fill="{fill_of(int(levels[at]))}"><title>{escape(title)}</title></circle>')
    if len(layout.shown) <= MOST_LABELS:
        for at, client in enumerate(layout.shown.tolist()):
            x, y = layout.x[at], layout.y[at] - radii[at] - 4
            out.append(
                f'<text x="{x:g}" y="{y:.1f}" text-anchor="middle">{escape(shortened(names[client], 12))}</text>'
            )
    out.append("</svg>")
    return Markup("".join(out))
