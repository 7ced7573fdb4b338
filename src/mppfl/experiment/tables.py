"""Trainings side by side, as rows and as a table for the terminal; and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mppfl.arrays import Array
from mppfl.experiment.run import Run

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN = "–"


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


# ---- how numbers are written ---------------------------------------------------------------------------------------


def number(value: Any, digits: int = 3) -> str:
    """To so many significant digits, thousands set apart, ∞ for infinite and a dash for not known."""
    figure = float(value)
    if math.isnan(figure):
        return UNKNOWN
    if math.isinf(figure):
        return "∞" if figure > 0 else "−∞"
    if figure == 0:
        return "0"
    size = math.floor(math.log10(abs(figure)))
    if size >= 9 or size < -4:
        mantissa, _, power = f"{figure:.{digits - 1}e}".partition("e")
        return f"{mantissa}·10{_raised(int(power))}".replace("-", "−")
    digits = max(digits, 4) if size >= 3 else digits
    rounded = float(f"{figure:.{digits}g}")
    return f"{rounded:,.{max(0, digits - 1 - size)}f}".replace("-", "−")


def percent(share: Any) -> str:
    """A share as per cent, to a tenth."""
    figure = float(share)
    return f"{100 * figure:.1f} %" if math.isfinite(figure) else UNKNOWN


def epsilon(value: Any) -> str:
    """dp_epsilon, upwards: a guarantee is never rounded to a stronger one."""
    figure = float(value)
    if not math.isfinite(figure) or figure == 0:
        return number(figure)
    step = 10.0 ** (math.floor(math.log10(abs(figure))) - 2)
    return number(math.ceil(figure / step - 1e-9) * step)


def delta(value: float) -> str:
    """dp_delta, which is small and usually a power of ten."""
    return f"{value:.3g}".replace("e-0", "e-")


def between(low: Any, high: Any) -> str:
    """Both ends of a range, or the one value they share."""
    least, most = number(low), number(high)
    return least if least == most else f"{least} to {most}"


def duration(seconds: Any) -> str:
    """Seconds as people say them."""
    figure = float(seconds)
    if not math.isfinite(figure):
        return UNKNOWN
    if figure < 120:
        return f"{number(figure, 2)} s"
    if figure < 7200:
        return f"{figure / 60:.0f} min"
    return f"{figure / 3600:.1f} h"


def finite(values: Array) -> Array:
    """Only the finite ones."""
    return np.asarray(values[np.isfinite(values)])


def plainly(value: Any) -> str:
    """A number without needless zeros, as on an axis."""
    figure = float(f"{float(value):.4g}")
    return f"{figure:,.10g}".replace("-", "−") if 1e-4 <= abs(figure) < 1e9 else number(figure)


def tooltip_values(values: Any) -> list[float | str | None]:
    """The same for many."""
    return [tooltip_number(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def tooltip_number(value: float) -> float | str | None:
    """What a page's script is given: four digits, null for not known, and text for infinite, which JSON cannot say."""
    if math.isnan(value):
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else number(value)


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
