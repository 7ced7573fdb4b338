"""A table as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))
