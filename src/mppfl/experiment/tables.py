"""Trainings side by side, as rows and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mppfl.experiment.run import Run
from mppfl.text import UNKNOWN, between, epsilon, number, percent

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One run in a comparison. Money is summed over rounds; NaN where a figure is not known.

    dp_epsilon          of the client who spent most, nominal
    worst_case_epsilon  of the client for whom the worst case is worst
    median_spent        ρ of the middle client, over all rounds
    least_exposed, most_exposed   R_model of the clients at both ends
    """

    name: str
    mechanism: str
    aggregation: str
    final_accuracy: float
    best_accuracy: float
    payments: float
    server_cost: float
    welfare: float
    dp_epsilon: float
    worst_case_epsilon: float
    median_spent: float
    least_exposed: float
    most_exposed: float
    seconds: float


def comparison_rows(runs: Sequence[Run]) -> list[ComparisonRow]:
    """One row per run, in the order given."""
    return [
        ComparisonRow(
            name=run.name,
            mechanism=run.mechanism,
            aggregation=str(run.setting("aggregation", "")),
            final_accuracy=run.final_accuracy,
            best_accuracy=run.best_accuracy,
            payments=float(run.paid.sum()),
            server_cost=float(run.server_cost.sum()),
            welfare=float(run.welfare.sum()),
            dp_epsilon=float(run.accounts.dp_epsilon.max()),
            worst_case_epsilon=float(run.accounts.worst_case_epsilon.max()),
            median_spent=float(np.median(run.accounts.spent)),
            least_exposed=float(run.exposure.min()),
            most_exposed=float(run.exposure.max()),
            seconds=run.provenance.seconds,
        )
        for run in runs
    ]


def comparison_cells(row: ComparisonRow) -> dict[str, str]:
    """A row as it is shown: heading and text of every cell."""
    return {
        "mechanism": row.mechanism,
        "aggregation": row.aggregation or UNKNOWN,
        "final accuracy": percent(row.final_accuracy),
        "best accuracy": percent(row.best_accuracy),
        "total payments": number(row.payments),
        "server cost": number(row.server_cost),
        "client welfare": number(row.welfare),
        "largest ε": epsilon(row.dp_epsilon),
        "worst case ε": epsilon(row.worst_case_epsilon),
        "median spent ρ": number(row.median_spent),
        "exposure, least to most": between(row.least_exposed, row.most_exposed),
        "seconds": number(row.seconds, 2),
    }


def comparison_table(runs: Sequence[Run]) -> Table:
    """The runs side by side for the terminal."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    rows = comparison_rows(runs)
    named = any(row.name != row.mechanism for row in rows)
    table = Table(box=SIMPLE)
    headings = list(comparison_cells(rows[0])) if rows else []
    for heading in ["run"] * named + headings:
        left = heading in ("run", "mechanism", "aggregation")
        table.add_column(_broken(heading), justify="left" if left else "right", no_wrap=True)
    for row in rows:
        # Text, not markup: a run may be called "[red]".
        table.add_row(*(Text(cell) for cell in [row.name] * named + list(comparison_cells(row).values())))
    return table


def _broken(heading: str) -> str:
    first, *rest = heading.split(" ")
    return f"{first}\n{' '.join(rest)}" if rest else heading
