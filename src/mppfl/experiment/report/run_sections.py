"""One run of a report: exposure, privacy accounts, payments, who stayed out, provenance."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from mppfl.arrays import IntArray
from mppfl.experiment import Run, comparison_cells, comparison_rows
from mppfl.experiment.report import figures as draw
from mppfl.privacy import MECHANISMS
from mppfl.privacy.ledger import SIMULATION
from mppfl.text import between, delta, duration, epsilon, finite, number, percent, plainly, tooltip_values

MOST_LINES = 100  # of a table over clients; clients.csv has all
MOST_NAMED = 12


def run_section(slot: int, label: str, run: Run) -> dict[str, Any]:
    key = f"run-{slot}"
    bars, drawn = draw.exposure_bars(
        run.accounts.spent, run.exposure, run.names, f"Spent budget and exposure of each client under {label}"
    )
    strength = run.setting("externality_strength")
    return {
        "key": key,
        "label": label,
        "style": draw.style_of(slot),
        "mechanism": run.mechanism,
        "facts": comparison_cells(comparison_rows([run])[0]),
        "bars": bars,
        "bars_cut": _cut(len(drawn), run.num_clients, "most exposed"),
        "strength": plainly(strength) if isinstance(strength, (int, float)) else "",
        "absent": _absent(run),
        "privacy": _privacy(run),
        "payments": _payments(run, label, key),
        "config": _toml(run.config),
        "provenance": _provenance(run),
        "notes": run.notes,
    }


def _cut(shown: int, there: int, which: str) -> str:
    return f"The {shown:,} {which} of {there:,} clients; clients.csv has all." if shown < there else ""


def _privacy(run: Run) -> dict[str, Any]:
    accounts, known = run.accounts, MECHANISMS.get(run.accounts.privacy)
    order = np.argsort(-np.nan_to_num(accounts.spent, posinf=np.inf), kind="stable")[:MOST_LINES].tolist()
    taken_part = run.rounds_taken_part
    factors = (
        finite(accounts.worst_case_spent[accounts.spent > 0] / accounts.spent[accounts.spent > 0])
        if (np.isfinite(accounts.spent).all())
        else np.array([])
    )
    return {
        "privacy": accounts.privacy,
        "unit": accounts.unit,
        "adjacency": accounts.adjacency,
        "guarantee": accounts.guarantee,
        "breaks": known.breaks if known else "",
        "noise": accounts.noise,
        "simulation": SIMULATION if accounts.simulation else "",
        "dp_delta": delta(accounts.dp_delta),
        "protected": bool(np.isfinite(accounts.spent).all()),
        "worse": bool((accounts.worst_case_spent > accounts.spent).any()),
        "factor": between(factors.min(), factors.max()) if len(factors) else "",
        "rows": [
            {
                "name": run.names[at],
                "examples": f"{int(run.num_examples[at]):,}",
                "rounds": int(taken_part[at]),
                "spent": number(accounts.spent[at]),
                "worst": number(accounts.worst_case_spent[at]),
                "epsilon": epsilon(accounts.dp_epsilon[at]),
                "worst_epsilon": epsilon(accounts.worst_case_epsilon[at]),
            }
            for at in order
        ],
        "cut": _cut(len(order), run.num_clients, "who spent most"),
    }


def _payments(run: Run, label: str, key: str) -> dict[str, Any]:
    payments = run.history.clients["payments"]
    present = run.history.clients["participating"].astype(np.bool_)
    rounds = run.history.rounds["round_index"].astype(np.int64)
    said = f"Payments under {label}, clients by rounds; {number(run.paid.sum())} in all"
    heat = draw.heat_map(payments, present, rounds, run.names, said, key=key)
    paid, total, taken_part = run.paid, float(run.paid.sum()), run.rounds_taken_part
    order = np.argsort(-np.nan_to_num(paid, posinf=0.0), kind="stable")[:MOST_LINES].tolist()
    small = run.num_clients <= 40 and run.num_rounds <= 200
    averaged = heat.rounds_each > 1
    return {
        "svg": heat.svg,
        "top": number(heat.top),
        "gradient": ", ".join(draw.SCALE[::3]),
        "cut": _cut(len(heat.rows), run.num_clients, "best paid")
        + (f" Each column is the mean over up to {heat.rounds_each} rounds." if averaged else ""),
        "total": number(total),
        "any": bool(len(finite(paid)) and total > 0),
        "rows": [
            {
                "name": run.names[at],
                "paid": number(paid[at]),
                "share": percent(paid[at] / total) if math.isfinite(total) and total > 0 else "–",
                "width": f"{100 * paid[at] / paid.max():.0f}" if math.isfinite(total) and total > 0 else "0",
                "each": number(paid[at] / max(1, int(taken_part[at]))),
                "rounds": int(taken_part[at]),
            }
            for at in order
        ],
        "rows_cut": _cut(len(order), run.num_clients, "best paid"),
        "every": [
            {"round": int(rounds[at]), "rate": number(run.history.rounds["reward_rate"][at]),
             "sum": number(payments[at].sum()),
             "cells": [number(value) if here else "" for value, here in zip(payments[at], present[at], strict=True)]}
            for at in range(run.num_rounds)
        ] if small else [],
        "names": run.names if small else (),
        "data": {
            "names": [run.names[at] for at in heat.rows.tolist()],
            "columns": heat.columns,
            "values": [tooltip_values(row) for row in heat.values],
            "frame": heat.frame,
        },
    }  # fmt: skip


def _absent(run: Run) -> list[dict[str, str]]:
    """Who stayed out, who was refused and whose training diverged, as lines of heading and names."""
    took, refused = run.rounds_taken_part, run.rounds_refused
    everybody, rounds = run.num_clients, run.num_rounds

    def named(where: IntArray, counts: IntArray | None = None) -> str:
        some = [
            run.names[at] + (f" ({int(counts[at])} of {rounds} rounds)" if counts is not None else "")
            for at in where[:MOST_NAMED].tolist()
        ]
        return ", ".join(some) + (f" and {len(where) - MOST_NAMED:,} more" if len(where) > MOST_NAMED else "")

    never = np.flatnonzero(took == 0)
    partly = np.flatnonzero((took > 0) & (took < rounds))
    capped = np.flatnonzero(refused > 0)
    lines = []
    if len(never):
        lines.append({"what": f"{len(never):,} of {everybody:,} never took part", "who": named(never)})
    if len(partly):
        missed = rounds - took
        lines.append(
            {"what": f"{len(partly):,} of {everybody:,} stayed out of some rounds", "who": named(partly, missed)}
        )
    if len(capped):
        what = f"{len(capped):,} of {everybody:,} refused: a release would have passed the client's cap"
        lines.append({"what": what, "who": named(capped, refused)})
    wild = np.flatnonzero(run.rounds_diverged > 0)
    if len(wild):
        what = f"{len(wild):,} of {everybody:,} left out of some rounds: their updates held NaN or infinity"
        lines.append({"what": what, "who": named(wild, run.rounds_diverged)})
    return lines


def _provenance(run: Run) -> list[tuple[str, str]]:
    from_ = run.provenance
    memory = f", {number(from_.memory_gib)} GiB" if from_.memory_gib else ""
    engines = list(dict.fromkeys(run.history.engine))
    versions = (("python", from_.python), ("torch", from_.torch), ("numpy", from_.numpy), ("scipy", from_.scipy))
    return [
        ("mppfl", f"{from_.mppfl}, source {from_.source}" if from_.source else from_.mppfl),
        ("commit", from_.commit or "not in a work tree"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions if version)),
        ("machine", f"{from_.cpu}, {from_.cores} cores{memory}" + (f"; {from_.gpu}" if from_.gpu else "")),
        ("device", from_.device),
        ("engine", ", then ".join(engines)),
        ("started", from_.started),
        ("took", duration(from_.seconds)),
        ("model", f"{run.weights.size:,} parameters, {run.weights.dtype}"),
    ]


def _toml(config: dict[str, Any]) -> str:
    """The configuration as TOML would say it; what is not set is left out. Folders are shortened to their last part."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in config.items() if _is_line(value)]
    for key, value in config.items():
        if isinstance(value, dict):
            inside = _toml_table(key, value)
            lines += ["", *inside] if inside else []
    return "\n".join(lines).strip()


def _toml_table(name: str, table: dict[str, Any]) -> list[str]:
    lines = [f"{key} = {_toml_value(value)}" for key, value in table.items() if _is_line(value)]
    deeper = [_toml_table(f"{name}.{key}", value) for key, value in table.items() if isinstance(value, dict)]
    return ([f"[{name}]", *lines] if lines else []) + [line for each in deeper for line in each]


def _is_line(value: Any) -> bool:
    return value is not None and not isinstance(value, dict)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        whole = re.match(r"/|~|[A-Za-z]:[\\/]", value) is None
        text = value if whole else "…/" + re.split(r"[/\\]", value.rstrip("/"))[-1]
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(each) for each in value)}]"
    return repr(value)
