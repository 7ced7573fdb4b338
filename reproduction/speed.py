"""How fast it all was: arms, hours, examples and arithmetic per second of everything on file, and cells an hour."""

from __future__ import annotations

from pathlib import Path

from reproduction.cells import CELLS, Cell, arms_of
from reproduction.choice import settings_of, trained_for_choices
from reproduction.markdown import markdown_table
from reproduction.settings import SETTINGS
from reproduction.store import Measured, every_training, seeds_on_file


def speed_table(folder: Path) -> str:
    """Arms, hours, examples and arithmetic per second of all that was trained, choices and trials of units included."""
    groups: dict[tuple[str, str, str], list[Measured]] = {}
    for dataset, each in _all_trained(folder):
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
    return f"{markdown_table(head, lines)}\n\n{_cells_an_hour(folder)}"


def _all_trained(folder: Path) -> list[tuple[str, Measured]]:
    return [*every_training(folder), *trained_for_choices(folder)]


def _cells_an_hour(folder: Path) -> str:
    hours = sum(each.seconds for _, each in _all_trained(folder)) / 3600
    whole, settings = 0, settings_of(folder)
    for place in dict.fromkeys((cell.dataset, cell.partition, cell.num_clients) for cell in CELLS):
        cell = Cell(*place, 0)
        found = seeds_on_file(folder, cell, settings[cell.dataset]).values()
        whole += sum(set(arms_of(cell)) <= set(arms) for arms in found)
    return (
        f"{whole} whole cells in {hours:.2f} hours of training, choices, trials of units and unfinished cells "
        "included: "
        f"{whole / hours:.1f} cells an hour."
    )
