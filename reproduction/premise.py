"""The paper's premise, tested: does Σσρ say who is exposed, and does the equilibrium lower what leaks?

Read from the newest record of benchmarks/leakage.py, which measures attacks on real networks with real attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mppfl.errors import BadFile

SETTING = "unequal 0.3"  # with equal budgets and rows that sum to 1, R_model is the same for all over one hop
LEAST_LEAK = 0.02  # nats: below it there is nothing to rank or to lower
PAPERS = "R_model K=5 0.9"  # K and λ of the preset


@dataclass(frozen=True, slots=True)
class Tested:
    """One network with an attribute that leaks.

    leak                  nats a client, by attack
    model, leak_model, degree    rank correlation of R_model (the preset's K and λ), R_leak and degree with the leak
    change, low, high     of the leak under MPPFL against SA at equal Σρ, as a share, with a 95 % interval
    """

    pair: str
    clients: int
    leak: float
    model: float
    leak_model: float
    degree: float
    change: float
    low: float
    high: float


def premise_tested(records: Path) -> tuple[Tested, ...]:
    """Networks of the newest record on which something leaks; () where there is no record."""
    files = sorted(records.glob("*-leakage.json"))
    if not files:
        return ()
    try:
        pairs: Mapping[str, Any] = json.loads(files[-1].read_text("utf-8"))["pairs"]
        found = tuple(_tested(name, pair) for name, pair in pairs.items() if pair.get("priced"))
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadFile(f"{files[-1]}: no record of benchmarks/leakage.py ({cause}). Restore it.") from cause
    return tuple(each for each in found if each.leak >= LEAST_LEAK)


def _tested(name: str, pair: Mapping[str, Any]) -> Tested:
    measured, equilibrium = pair["measured"][SETTING], pair["priced"]["arms"]["mppfl"]
    ranks = measured["spearman"]
    return Tested(
        pair=name,
        clients=pair["clients"],
        leak=measured["leak"],
        model=ranks[PAPERS],
        leak_model=ranks["R_leak"],
        degree=ranks["degree"],
        change=equilibrium["change"],
        low=equilibrium["change_low"],
        high=equilibrium["change_high"],
    )


def premise_section(records: Path) -> str:
    """The section of the document, in Markdown."""
    found = premise_tested(records)
    if not found:
        return "Not measured yet: `python benchmarks/leakage.py`."
    worse = sum(each.model < each.leak_model for each in found)
    zero = sum(each.low <= 0 <= each.high for each in found)
    lines = [
        "| network and attribute | clients | leak, nats | rank correlation with the leak: `R_model` | `R_leak` "
        "| degree | leak under MPPFL against SA, 95 % |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {each.pair} | {each.clients:,} | {each.leak:.3f} | {each.model:.2f} | {each.leak_model:.2f} "
        f"| {each.degree:.2f} | {100 * each.change:+.0f} % ({100 * each.low:+.0f} to {100 * each.high:+.0f}) |"
        for each in found
    ]
    said = (
        f"`R_model` ranks clients worse than `R_leak`, which is calibrated on a public sample, on {worse} of "
        f"{len(found)} networks. The interval of what the equilibrium changes contains 0 on {zero} of {len(found)}."
    )
    return "\n".join([*lines, "", said])
