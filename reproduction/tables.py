"""The paper's Tables 1 and 2 with our accuracies beside its own and a verdict on every cell, from files alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from mppfl.training import Aggregation
from reproduction.cells import BOTH, CELLS, ArmName, Cell, aggregations_of, arms_of
from reproduction.choice import settings_of, trained_for_choices
from reproduction.settings import SETTINGS, Setting, printed_accuracy
from reproduction.store import (
    NO_DATA,
    NOT_TRAINED,
    Measured,
    every_training,
    is_unavailable,
    read_trials,
    seeds_on_file,
)
from reproduction.units import place_of_unit, units_of, within


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = ([cell.replace("|", "\\|") for cell in cells] for cells in (head, ["---"] * len(head), *lines))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def speed_table(folder: Path) -> str:
    """Arms, hours, examples and arithmetic per second of all that was trained, choices and trials of units included."""
    every = [*every_training(folder), *trained_for_choices(folder)]
    groups: dict[tuple[str, str, str], list[Measured]] = {}
    for dataset, each in every:
        for name in (SETTINGS[dataset].title, "all"):
            groups.setdefault((each.device, each.precision, name), []).append(each)
    lines = []
    for (device, precision, name), found in sorted(groups.items(), key=lambda item: (item[0][:2], item[0][2] == "all")):
        hours = sum(each.seconds for each in found) / 3600
        work = sum(each.num_examples * each.gflop_per_example for each in found) / 1e3
        lines.append(
            (
                f"{device}, {precision}",
                name,
                str(len(found)),
                f"{hours:.2f}",
                f"{len(found) / hours:.1f}",
                f"{sum(each.num_examples for each in found) / hours / 3600:,.0f}",
                f"{work / hours / 3600:.1f}",
            )
        )
    head = ("machine", "data", "arms", "hours", "arms an hour", "examples/s", "TFLOP/s")
    hours = sum(each.seconds for _, each in every) / 3600
    whole = sum(set(arms_of(cell)) <= set(arms) for cell, arms in _cells_on_file(folder))
    return (
        f"{markdown_table(head, lines)}\n\n{whole} whole cells in {hours:.2f} hours of training, choices, trials of "
        f"units and unfinished cells included: {whole / hours:.1f} cells an hour."
    )


Table = Literal[1, 2]
# Our arms in the order of columns; None for those whom the paper's tables do not have.
COLUMNS: dict[str, tuple[str, str | None]] = {
    "social_agnostic": ("SA", "SA"),
    "mppfl": ("MPPFL", "MPPFL"),
    "sarda_like": ("SARDA-like", "SARDA"),
    "fixed-min": ("DP-FedAvg, min", "DP-FedAvg"),
    "fixed-mean": ("DP-FedAvg, mean", "DP-FedAvg"),
    "random": ("Random", None),
    "noiseless": ("noiseless", None),
}
JUDGED = ("social_agnostic", "mppfl", "sarda_like")
MPPFL_WITHIN, SARDA_WITHIN = 1.0, 3.0  # points, between our drop from SA and the paper's
PARTITION_TITLES = {"iid": "IID", "dir0.3": "Dir 0.3", "dir0.6": "Dir 0.6"}
WEIGHTS_TITLES: dict[Aggregation, str] = {
    "noise_aware": "noise-aware weights",
    "size": "size weights (the paper's text)",
}
NOTHING = "Nothing is measured yet: `python -m reproduction` trains the cells and fills this section."


@dataclass(frozen=True, slots=True)
class Figure:
    """An accuracy in percent over seeds; `spread` is the sample standard deviation, None for one seed."""

    mean: float
    spread: float | None
    seeds: int


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of a table under one aggregation.

    printed     the paper's accuracies in percent, by its names
    ours        by mechanism; only seeds for which all three judged mechanisms are measured, where there are any
    paired      mechanisms of `ours` that have the seeds of SA, so that a drop from it means something
    fixes_unit  whether the data set's unit was fixed on it, so that its SA says nothing
    reason      why there is no verdict; "" where there is one
    """

    table: Table
    dataset: str
    partition: str
    num_clients: int
    aggregation: Aggregation
    printed: Mapping[str, float]
    ours: Mapping[str, Figure]
    paired: Collection[str]
    fixes_unit: bool
    reason: str

    def drop(self, mechanism: str) -> float:
        """Points that the mechanism lies below SA, ours."""
        return self.ours["social_agnostic"].mean - self.ours[mechanism].mean

    def printed_drop(self, mechanism: str) -> float:
        """The same in the paper."""
        return self.printed["SA"] - self.printed[COLUMNS[mechanism][1] or ""]

    @property
    def is_judged(self) -> bool:
        return not self.reason

    @property
    def order_holds(self) -> bool:
        """SA ≥ MPPFL > SARDA-like. Means of seeds are equal where only rounding tells them apart."""
        mppfl, sarda = (round(self.drop(name), 6) for name in ("mppfl", "sarda_like"))
        return mppfl >= 0 and sarda > mppfl

    @property
    def mppfl_agrees(self) -> bool:
        return within(self.drop("mppfl") - self.printed_drop("mppfl"), MPPFL_WITHIN)

    @property
    def sarda_agrees(self) -> bool:
        return within(self.drop("sarda_like") - self.printed_drop("sarda_like"), SARDA_WITHIN)

    @property
    def verdict(self) -> str:
        """Reproduced; in part, where the order holds; or not; with what is missed by how much."""
        if self.reason:
            return self.reason
        missed = [] if self.order_holds else ["the order does not hold"]
        for mechanism, agrees in (("mppfl", self.mppfl_agrees), ("sarda_like", self.sarda_agrees)):
            if not agrees:
                off = self.drop(mechanism) - self.printed_drop(mechanism)
                missed.append(f"{COLUMNS[mechanism][0]} falls {abs(off):.2f} points {'more' if off > 0 else 'less'}")
        if not missed:
            return "reproduced"
        return f"{'in part' if self.order_holds else 'not reproduced'}: {'; '.join(missed)}"


@dataclass(frozen=True, slots=True)
class Counts:
    """In how many of the judged cells, other than those that fixed a unit, each expectation holds."""

    cells: int
    order: int
    mppfl: int
    sarda: int


def table_rows(table: Table, aggregation: Aggregation, folder: Path) -> list[Row]:
    """Every cell of a table that is planned with this aggregation, measured or not, in the order of priority."""
    places = dict.fromkeys(
        (cell.dataset, cell.partition, cell.num_clients) for cell in CELLS if aggregation in aggregations_of(cell)
    )
    settings = settings_of(folder)
    return [
        _row(table, Cell(*place, 0), aggregation, folder, settings[place[0]])
        for place in places
        if printed_accuracy(table, *place)
    ]


def _row(table: Table, cell: Cell, aggregation: Aggregation, folder: Path, setting: Setting) -> Row:
    on_file = seeds_on_file(folder, cell, setting)
    measured = {seed: of_aggregation(arms, aggregation) for seed, arms in on_file.items()}
    whole = {seed: found for seed, found in measured.items() if set(JUDGED) <= set(found)}
    used = whole or measured
    seeds = {name: [seed for seed, found in used.items() if name in found] for name in COLUMNS}
    ours = {name: _figure([used[seed][name] for seed in those]) for name, those in seeds.items() if those}
    return Row(
        table,
        cell.dataset,
        cell.partition,
        cell.num_clients,
        aggregation,
        printed_accuracy(table, cell.dataset, cell.partition, cell.num_clients),
        ours,
        [name for name in ours if seeds[name] == seeds["social_agnostic"]],
        (cell.partition, cell.num_clients) == ("iid", 20),
        "" if whole else _why_not(folder, cell, measured.values()),
    )


def _why_not(folder: Path, cell: Cell, measured: Collection[Mapping[str, Measured]]) -> str:
    if not any(measured):
        return f"not measured: {NO_DATA if is_unavailable(folder, cell.dataset) else NOT_TRAINED}"
    lacking = [COLUMNS[name][0] for name in JUDGED if not any(name in found for found in measured)]
    return f"not measured: no {' and no '.join(lacking) or 'seed has all mechanisms'} yet"


def of_aggregation(found: Mapping[ArmName, Measured], aggregation: str) -> dict[str, Measured]:
    """Arms by mechanism; Random and noiseless exist once, and stand beside both aggregations."""
    mine = {arm.mechanism: each for arm, each in found.items() if arm.mechanism in ("random", "noiseless")}
    return mine | {arm.mechanism: each for arm, each in found.items() if arm.aggregation == aggregation}


def _figure(found: Sequence[Measured]) -> Figure:
    values = [100 * each.accuracy for each in found]
    return Figure(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def all_rows(aggregation: Aggregation, folder: Path) -> list[Row]:
    """Each cell once: N = 20 as Table 1 prints it, more clients as Table 2 does."""
    second = [row for row in table_rows(2, aggregation, folder) if row.num_clients != 20]
    return [*table_rows(1, aggregation, folder), *second]


def counts(rows: Iterable[Row]) -> Counts:
    """How often the paper's pattern is met where nothing was tuned."""
    judged = [row for row in rows if row.is_judged and not row.fixes_unit]
    return Counts(
        len(judged),
        sum(row.order_holds for row in judged),
        sum(row.mppfl_agrees for row in judged),
        sum(row.sarda_agrees for row in judged),
    )


# ---- as text ------------------------------------------------------------------------------------------------------


def tables_section(folder: Path) -> str:
    """Tables 1 and 2, the units, and the speed of it all, as Markdown; short where nothing is measured."""
    if not every_training(folder):
        return f"## Tables 1 and 2\n\n{NOTHING}\n"
    parts = [
        "## Tables 1 and 2",
        "Test accuracy in percent after the last round, ours / the paper's; ± is the sample standard deviation over "
        "seeds. A drop is what a mechanism lies below SA. A cell is *reproduced* if SA ≥ MPPFL > SARDA-like, MPPFL's "
        f"drop is within {MPPFL_WITHIN:g} point of the paper's and SARDA-like's within {SARDA_WITHIN:g}; *in part* if "
        "the order holds. DP-FedAvg's one budget follows two rules: the least that MPPFL buys in round 1, and SA's "
        "mean there. Random (noise-aware weights) and noiseless (size weights, clipped as the others are) were trained "
        "once a seed and stand beside both weights. With size weights FMNIST and CIFAR-10 are planned, N = 20.",
        "### How often the paper's pattern is met",
        _counts_table(folder),
        "### Units",
        _units_table(folder),
    ]
    for weights in BOTH:
        parts += [f"### Table 1, {WEIGHTS_TITLES[weights]}", _rows_table(table_rows(1, weights, folder))]
    parts += [
        f"### Table 2, {WEIGHTS_TITLES['noise_aware']}",
        _rows_table(table_rows(2, "noise_aware", folder)),
        *_by_clients(table_rows(2, "noise_aware", folder)),
        "### What the cells were trained with",
        _terms_table(folder),
        "Clipped: share of updates that were shortened to 𝒮, mean over rounds. 𝒮 is a length of the first round; how "
        "many later updates pass it shows whether they grew or shrank since.",
        *_left_out(folder),
        "### Speed",
        speed_table(folder),
    ]
    return "\n\n".join(parts) + "\n"


def _by_clients(rows: Sequence[Row]) -> list[str]:
    """How accuracy moves with the number of clients, ours and the paper's; none where fewer than two are measured."""
    sentences = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        for partition in dict.fromkeys(row.partition for row in rows if row.dataset == dataset):
            several = [row for row in rows if (row.dataset, row.partition) == (dataset, partition) and row.is_judged]
            if len(several) < 2:
                continue
            several.sort(key=lambda row: row.num_clients)
            ours = " → ".join(f"{row.ours['social_agnostic'].mean:.2f}" for row in several)
            printed = " → ".join(f"{row.printed['SA']:.2f}" for row in several)
            noiseless = [row.ours.get("noiseless") for row in several]
            told = " → ".join("–" if figure is None else f"{figure.mean:.2f}" for figure in noiseless)
            without = f", without noise {told}" if any(noiseless) else ""
            counts_of_clients = ", ".join(str(row.num_clients) for row in several)
            place = f"{SETTINGS[dataset].title}, {PARTITION_TITLES[partition]}, N = {counts_of_clients}"
            sentences.append(f"- {place}: SA {ours} (the paper's {printed}){without}.")
    if not sentences:
        return []
    return [
        "With more clients each has fewer examples and takes fewer local steps in a round; the number of rounds is the "
        "paper's at every N. SA against N:",
        "\n".join(sentences),
    ]


def readme_table(folder: Path) -> str:
    """The measured cells of both tables under noise-aware weights, in few columns, and how often the pattern is met."""
    rows = [row for row in all_rows("noise_aware", folder) if row.is_judged]
    if not rows:
        return NOTHING + "\n"
    lines = [
        (
            _title(row),
            *(_beside(row, mechanism) for mechanism in (*JUDGED, "fixed-min")),
            row.verdict.partition(":")[0] + (" (unit fixed here)" if row.fixes_unit else ""),
        )
        for row in rows
    ]
    head = ("accuracy, ours / paper's", *(COLUMNS[mechanism][0] for mechanism in (*JUDGED, "fixed-min")), "verdict")
    return f"{markdown_table(head, lines)}\n\n{_counted('noise_aware', folder)}\n"


def _rows_table(rows: Sequence[Row]) -> str:
    head = (
        "data",
        "split",
        "clients",
        "seeds",
        *(title for title, _ in COLUMNS.values()),
        "drop of MPPFL",
        "drop of SARDA-like",
        "verdict",
    )
    lines = [
        (
            SETTINGS[row.dataset].title,
            PARTITION_TITLES[row.partition],
            str(row.num_clients),
            str(max((figure.seeds for figure in row.ours.values()), default=0)),
            *(_beside(row, mechanism) for mechanism in COLUMNS),
            *(_drops(row, mechanism) for mechanism in ("mppfl", "sarda_like")),
            row.verdict + (" (unit fixed here)" if row.fixes_unit and row.is_judged else ""),
        )
        for row in rows
    ]
    return markdown_table(head, lines)


def _beside(row: Row, mechanism: str) -> str:
    figure, theirs = row.ours.get(mechanism), row.printed.get(COLUMNS[mechanism][1] or "")
    ours = (
        "–" if figure is None else f"{figure.mean:.2f}" + ("" if figure.spread is None else f" ± {figure.spread:.2f}")
    )
    return ours if theirs is None else f"{ours} / {theirs:.2f}"


def _drops(row: Row, mechanism: str) -> str:
    return f"{f'{row.drop(mechanism):.2f}' if mechanism in row.paired else '–'} / {row.printed_drop(mechanism):.2f}"


def _counts_table(folder: Path) -> str:
    lines = []
    for weights in BOTH:
        found = counts(all_rows(weights, folder))
        lines.append(
            (WEIGHTS_TITLES[weights], *(f"{k} of {found.cells}" for k in (found.order, found.mppfl, found.sarda)))
        )
    head = (
        "measured cells but those that fixed a unit",
        "SA ≥ MPPFL > SARDA-like",
        f"MPPFL's drop within {MPPFL_WITHIN:g}",
        f"SARDA-like's drop within {SARDA_WITHIN:g}",
    )
    return markdown_table(head, lines)


def _counted(weights: Aggregation, folder: Path) -> str:
    found = counts(all_rows(weights, folder))
    return (
        f"Of {found.cells} measured cells on which nothing was fixed, with {WEIGHTS_TITLES[weights]}: the order SA ≥ "
        f"MPPFL > SARDA-like holds in {found.order}, MPPFL's drop is within {MPPFL_WITHIN:g} point of the paper's in "
        f"{found.mppfl}, SARDA-like's within {SARDA_WITHIN:g} in {found.sarda}."
    )


def _units_table(folder: Path) -> str:
    lines = []
    for dataset, setting in settings_of(folder).items():
        trials = read_trials(folder, place_of_unit(dataset), setting)
        for weights, unit in units_of(dataset, trials).items():
            reached = "–" if unit.accuracy is None else f"{unit.accuracy:.2f}"
            lines.append((setting.title, weights, f"{unit.unit:g}", f"{reached} / {unit.target:.2f}", unit.why))
    if not lines:
        return "No unit is fixed yet."
    return markdown_table(("data", "weights", "unit", "SA there / the paper's", "how it was fixed"), lines)


def _terms_table(folder: Path) -> str:
    """𝒮, share of updates it shortened, unit, ρ_0, ε and precision of every cell on file."""
    lines = []
    for cell, found in _cells_on_file(folder):
        for weights in aggregations_of(cell):
            arms = {arm: each for arm, each in found.items() if arm.aggregation == weights and each.unit is not None}
            if arms:
                lines.append(_terms(cell, weights, arms, len(found)))
    if not lines:
        return "No cell is measured yet; trials of units are."
    head = (
        "cell", "seed", "weights", "𝒮", "clipped of MPPFL, SA", "unit", "ρ₀ min", "ρ₀ mean", "nominal ε of MPPFL, SA",
        "precision", "arms",
    )  # fmt: skip
    return markdown_table(head, lines)


def _left_out(folder: Path) -> list[str]:
    """Which arms had to do without some updates, as a sentence; none where none had."""
    found = [
        f"{_title(cell)}, seed {cell.seed}, {arm}: {each.diverged:,} of {cell.num_clients * each.num_rounds:,}"
        for cell, arms in _cells_on_file(folder)
        for arm, each in arms.items()
        if each.diverged
    ]
    return ["Updates that held NaN or infinity and were left out: " + "; ".join(found) + "."] if found else []


def _cells_on_file(folder: Path) -> Iterator[tuple[Cell, dict[ArmName, Measured]]]:
    """Every seed of every planned cell that has a file, and its arms."""
    settings = settings_of(folder)
    for place in dict.fromkeys((cell.dataset, cell.partition, cell.num_clients) for cell in CELLS):
        for seed, found in seeds_on_file(folder, Cell(*place, 0), settings[place[0]]).items():
            yield Cell(*place, seed), found


def _title(cell: Cell | Row) -> str:
    return f"{SETTINGS[cell.dataset].title}, {PARTITION_TITLES[cell.partition]}, N = {cell.num_clients}"


def _terms(cell: Cell, weights: str, arms: Mapping[ArmName, Measured], count: int) -> tuple[str, ...]:
    def of(mechanism: str, name: str) -> str:
        value = getattr(arms.get(ArmName(mechanism, weights)), name, None)
        return "–" if value is None else f"{value:.3g}"

    norms = [f"{norm:.3g}" for norm in sorted(each.clip_norm for each in arms.values())]
    return (
        _title(cell),
        str(cell.seed),
        weights,
        " to ".join(dict.fromkeys((norms[0], norms[-1]))),
        f"{of('mppfl', 'share_clipped')}, {of('social_agnostic', 'share_clipped')}",
        ", ".join(f"{unit:g}" for unit in sorted({each.unit for each in arms.values() if each.unit is not None})),
        of("fixed-min", "fixed_budget"),
        of("fixed-mean", "fixed_budget"),
        f"{of('mppfl', 'dp_epsilon')}, {of('social_agnostic', 'dp_epsilon')}",
        ", ".join(sorted({each.precision for each in arms.values()})),
        f"{count} of {len(arms_of(cell))}",
    )
