"""Numbers, units, names and small tables as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mppfl.errors import MppflError

if TYPE_CHECKING:
    from mppfl.arrays import Array, IntArray

UNKNOWN = "–"
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
        return f"{mantissa}·10{str(int(power)).translate(RAISED)}".replace("-", "−")
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
    return values[(values > -math.inf) & (values < math.inf)]


def plainly(value: Any) -> str:
    """A number without needless zeros, as on an axis."""
    figure = float(f"{float(value):.4g}")
    return f"{figure:,.10g}".replace("-", "−") if 1e-4 <= abs(figure) < 1e9 else number(figure)


def tooltip_values(values: Any) -> list[float | str | None]:
    """The same for many."""
    return [tooltip_number(value) for value in map(float, values)]


def tooltip_number(value: float) -> float | str | None:
    """What a page's script is given: four digits, null for not known, and text for infinite, which JSON cannot say."""
    if math.isnan(value):
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else number(value)


# ---- names and places ----------------------------------------------------------------------------------------------


RENAMED = {  # names of earlier versions, and what each is called now
    "num_links": "num_edges",
    "links_each": "edges_each",
    "fixed": "dp_fedavg",
    "size": "num_examples",
    "plain": "sgd",
    "source": "graph",
    "network": "graph",
    "generate": "family",
    "alpha": "externality_strength",
    "tau": "accuracy_weight",
    "decay": "hop_decay",
    "hops": "max_hops",
    "rounds": "num_rounds",
    "convention": "reward_rate",
    "always": "everyone",
    "if_better_than_opting_out": "rational",
    "if_better_than_staying_out": "rational",
    "if_non_negative": "rational",
    "seeded": "simulated",
    "replace-one": "replace_one",
    "add-remove": "zero_out",
    "dp_epsilon": "total_epsilon",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, or is called now; None where there is no such."""
    names = list(known)
    if RENAMED.get(name) in names:
        return RENAMED[name]
    return next(iter(get_close_matches(name, names, n=1)), None)


def joined_names(names: Iterable[str], most: int = 5) -> str:
    """The first few names, quoted, for messages."""
    listed = list(names)
    return ", ".join(repr(n) for n in listed[:most]) + (", ..." if len(listed) > most else "")


def count_of(fields: list[str]) -> str:
    return f"{len(fields)} field{'s' * (len(fields) != 1)}"


def shown_path(path: Path) -> str:
    return str(path) if str(path).isprintable() else repr(str(path))


def shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def one_line(cause: BaseException) -> str:
    return " ".join(f"{type(cause).__name__}: {cause}".split())[:160]


# ---- values: a few aligned lines, a table in notebooks, a pandas.DataFrame -----------------------------------------


def lines_of(title: str, facts: Mapping[str, str]) -> str:
    """The title, and below it one aligned line per fact."""
    width = max(map(len, facts), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in facts.items())])


def span(values: Array | IntArray) -> str:
    """Smallest to largest of some numbers, or the one number that they all are."""
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


class Tabular:
    """A value with columns of equal length: a table in notebooks, and a pandas.DataFrame."""

    MOST_ROWS = 20  # in a notebook; what is between the first and the last is left out

    def _columns(self) -> dict[str, list[Any]]:
        raise NotImplementedError

    def to_pandas(self) -> Any:  # pandas.DataFrame
        """All rows; needs pandas."""
        try:
            pandas = import_module("pandas")
        except ImportError as missing:
            raise MppflError("tables need pandas, which is not installed. Run `pip install pandas`.") from missing
        return pandas.DataFrame(self._columns())

    def _repr_html_(self) -> str:
        columns = self._columns()
        rows = list(zip(*columns.values(), strict=True))
        if len(rows) > self.MOST_ROWS:
            rows = [*rows[: self.MOST_ROWS // 2], ("…",) * len(columns), *rows[-self.MOST_ROWS // 2 :]]
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
