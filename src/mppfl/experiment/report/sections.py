"""What a report says in words and tables, over all runs and of each (alone: prose, which page.py only places)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.experiment import Run, comparison_cells
from mppfl.experiment.report import svg
from mppfl.files import toml_text
from mppfl.text import delta, epsilon, finite, number, percent, plainly

MOST_LINES = 100  # of a table over clients; clients.csv has all
MOST_NAMED = 12
MOST_BARS = 60
MODELS = {
    "softmax": "softmax regression",
    "mlp": "multilayer perceptron",
    "cnn_fmnist": "convolutional network",
    "cnn_cifar": "convolutional network",
    "vgg11": "VGG-11",
    "vgg16": "VGG-16",
}


# ---- all runs, in sentences ----------------------------------------------------------------------------------------


def labels_of(runs: Sequence[Run]) -> list[str]:
    """What each run is called on the page: its name, and where two have one, what protected it or a number."""
    names = [run.name for run in runs]
    protections = {run.accounts.protection for run in runs if names.count(run.name) > 1}
    if len(protections) > 1:
        names = [f"{run.name}, {run.accounts.protection}" if names.count(run.name) > 1 else run.name for run in runs]
    numbers = (f" ({names[: k + 1].count(name)})" if names.count(name) > 1 else "" for k, name in enumerate(names))
    return [name + number for name, number in zip(names, numbers, strict=True)]


def headline(runs: Sequence[Run]) -> str:
    """What was trained, in a few words."""
    tables = [run.config.get("data", {}) for run in runs]
    data = {re.split(r"[/\\]", str(table.get("name", "")))[-1] for table in tables}  # without the folder it may lie in
    sizes = {run.num_clients for run in runs}
    if len(sizes) > 1 or len(data) > 1:
        return f"{len(runs)} trainings side by side"
    (size,), (name,) = sizes, data
    return f"{'One client learns' if size == 1 else f'{size:,} clients learn'} {name or 'together'}"


def subtitle(runs: Sequence[Run]) -> str:
    """Models, rounds, edges and mechanism in one line."""
    models = sorted({str(run.setting("model", "")) for run in runs} - {""})
    parts = [" and ".join(MODELS.get(model, model) for model in models)] if models else []
    rounds = sorted({run.num_rounds for run in runs})
    parts.append("1 round" if rounds == [1] else f"{' or '.join(map(str, rounds))} rounds")
    edges = sorted({run.graph.num_edges for run in runs})
    ends = " to ".join(f"{count:,}" for count in dict.fromkeys([edges[0], edges[-1]]))
    parts.append("1 edge" if edges == [1] else f"{ends} edges")
    parts.append(f"{len(runs)} runs" if len(runs) > 1 else f"mechanism {runs[0].mechanism}")
    return " · ".join(parts)


def verdict(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """What came out, in sentences."""
    if len(runs) == 1:
        return [_learned(runs[0]), *_paid(runs[0]), _protected(runs[0])]
    return [*_most_accurate(runs, labels), *_best_for_money(runs, labels), *_least_spent(runs, labels)]


def _learned(run: Run) -> str:
    if math.isnan(run.final_accuracy):
        return f"{run.num_rounds} rounds were trained; the model was never evaluated on test data."
    sentence = f"The model classifies {percent(run.final_accuracy)} of the test data correctly"
    best = int(run.history.rounds["round_index"][int(np.nanargmax(run.history.rounds["accuracy"]))])
    if percent(run.best_accuracy) != percent(run.final_accuracy):
        sentence += f"; its best was {percent(run.best_accuracy)}, after round {best}"
    return f"{sentence}."


def _paid(run: Run) -> list[str]:
    total, never = float(run.paid.sum()), int((run.rounds_taken_part == 0).sum())
    everybody = (run.rounds_taken_part == run.num_rounds).all()
    subject = "Everybody participated in every round" if everybody else "Not all participated"
    if never:
        subject = f"{never:,} of {run.num_clients:,} clients never participated"
    money = f", and clients were paid {number(total)} in all" if math.isfinite(total) else ""
    refused = int((run.rounds_refused > 0).sum())
    caps = "The cap of one client" if refused == 1 else f"The caps of {refused:,} clients"
    return [f"{subject}{money}.", *([f"{caps} forbade some rounds."] if refused else [])]


def _protected(run: Run) -> str:
    accounts = run.accounts
    largest = float(accounts.dp_epsilon.max())
    if math.isinf(largest):
        return accounts.meaning
    bound = f"ε = {epsilon(largest)} at δ = {delta(accounts.dp_delta)} per {accounts.unit}"
    return f"The client who spent most has {bound}. {accounts.meaning}"


def _finite_figures(runs: Sequence[Run], measure: Callable[[Run], Any]) -> dict[int, float]:
    """A figure of the runs for which it is finite, by their position."""
    figures = {k: float(measure(run)) for k, run in enumerate(runs)}
    return {k: figure for k, figure in figures.items() if math.isfinite(figure)}


def _most_accurate(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    evaluated = _finite_figures(runs, lambda run: run.final_accuracy)
    protected = _finite_figures(runs, lambda run: run.accounts.spent.max())
    ranked = sorted(evaluated.keys() & (protected or evaluated), key=lambda k: (-evaluated[k], k))
    if not ranked:
        return []
    first, *others = ranked
    sentence = f"{labels[first]} {'learns best:' if others else 'reaches'} {percent(evaluated[first])} on the test data"
    if others:
        ahead = 100 * (evaluated[first] - evaluated[others[0]])
        far = "level with" if ahead < 0.05 else f"{ahead:.1f} points ahead of"
        sentence += f", {far} {labels[others[0]]}"
    ceiling = max(evaluated.keys() - protected.keys() if protected else (), key=evaluated.__getitem__, default=None)
    reach = "" if ceiling is None else f"{labels[ceiling]} reaches {percent(evaluated[ceiling])}: the ceiling."
    return [f"{sentence}.", *([f"Without any noise, {reach}"] if reach else [])]


def _best_for_money(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    protected = _finite_figures(runs, lambda run: run.accounts.spent.max())
    costs = {k: cost for k, cost in _finite_figures(runs, lambda run: run.server_cost.sum()).items() if k in protected}
    gains = {k: gain for k, gain in _finite_figures(runs, lambda run: run.welfare.sum()).items() if k in costs}
    if len(costs) < 2:
        return []
    cheap = min(costs, key=costs.__getitem__)
    sentence = f"{labels[cheap]} costs the server least ({number(costs[cheap])})"
    if len(gains) > 1:
        kind = max(gains, key=gains.__getitem__)
        sentence += f"; {'it also' if kind == cheap else labels[kind]} leaves clients best off ({number(gains[kind])})"
    return [f"{sentence}."]


def _least_spent(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    middles = _finite_figures(runs, lambda run: np.median(run.accounts.spent))
    if len(middles) < 2 or len({runs[k].accounts.unit for k in middles}) > 1:
        return []
    low, high = min(middles, key=middles.__getitem__), max(middles, key=middles.__getitem__)
    ends = f"{number(middles[low])} under {labels[low]} and {number(middles[high])} under {labels[high]}"
    return [f"The middle client spends between ρ = {ends}."] if middles[high] > middles[low] else []


# ---- one run -------------------------------------------------------------------------------------------------------


def run_section(position: int, slot: int, label: str, run: Run) -> dict[str, Any]:
    """What the template shows of one run beside the run itself: exposure, accounts, payments, and who opted out."""
    key = f"run-{position}"
    strength = run.setting("externality_strength")
    order = _largest_first(np.nan_to_num(run.accounts.spent, posinf=np.inf))
    norms = run.history.rounds["clip_norm"]
    ends = f"{number(norms[0])} in the first round to {number(norms[-1])} in the last"
    return {
        "key": key,
        "run": run,
        "label": label,
        "style": svg.style_of(slot),
        "facts": comparison_cells(run),
        "bars": _exposure(run),
        "most_exposed": run.names[int(np.argmax(run.exposure))] if np.isfinite(run.exposure).all() else "",
        "bars_cut": _cut(MOST_BARS, run.num_clients, "most exposed"),
        "strength": plainly(strength) if isinstance(strength, (int, float)) else "",
        "absent": _absent(run),
        "clip_norm": ends if np.ptp(norms) > 0 else "",
        "protected": bool(np.isfinite(run.accounts.spent).all()),
        "order": order,
        "cut": _cut(len(order), run.num_clients, "who spent most"),
        "payments": _payments(run, label, key),
        "config": toml_text(_without_folders(run.config)).strip(),
    }


def _cut(shown: int, total: int, which: str) -> str:
    return f"The {shown:,} {which} of {total:,} clients; clients.csv has all." if shown < total else ""


def _largest_first(values: Array) -> list[int]:
    """Positions of the clients with the largest values, at most MOST_LINES."""
    return np.argsort(-values, kind="stable")[:MOST_LINES].tolist()  # type: ignore[no-any-return]


def _exposure(run: Run) -> list[dict[str, Any]]:
    """What each client spent itself, beside what others' budgets say about it, the most exposed first."""
    order = np.argsort(-np.nan_to_num(run.exposure, posinf=np.inf, nan=-1.0), kind="stable")[:MOST_BARS]
    columns = {"own": run.accounts.spent[order], "others": run.exposure[order]}
    top = finite(np.concatenate(list(columns.values()))).max(initial=0.0) or 1.0

    def bar(kind: str, value: float) -> dict[str, str]:
        share = "0" if math.isnan(value) else f"{min(value / top, 1.0):.3f}"
        return {"kind": "endless" if math.isinf(value) else kind, "share": share, "words": number(value)}

    return [
        {"name": run.names[client], "bars": [bar(kind, float(values[k])) for kind, values in columns.items()]}
        for k, client in enumerate(order.tolist())
    ]


def _payments(run: Run, label: str, key: str) -> dict[str, Any]:
    payments, total = run.history.clients["payments"], float(run.paid.sum())
    present = run.history.clients["participating"].astype(np.bool_)
    rounds = run.history.rounds["round_index"].astype(np.int64)
    alt_text = f"Payments under {label}, clients by rounds; {number(total)} in all"
    heat, top, data = svg.heat_map(payments, present, rounds, run.names, alt_text, key=key)
    order = _largest_first(np.nan_to_num(run.paid, posinf=0.0))
    first, last = data["columns"][0]
    averaged = f" Each column is the mean over up to {last - first + 1} rounds." if last > first else ""
    return {
        "svg": heat,
        "top": number(top),
        "cut": _cut(len(data["names"]), run.num_clients, "best paid") + averaged,
        "total": total,
        "finite": math.isfinite(total) and total > 0,
        "any": bool(len(finite(run.paid)) and total > 0),
        "order": order,
        "rows_cut": _cut(len(order), run.num_clients, "best paid"),
        "all": payments if run.num_clients <= 40 and run.num_rounds <= 200 else None,
        "present": present,
        "data": data,
    }


def _absent(run: Run) -> list[dict[str, str]]:
    """Who opted out and who was refused, as lines of heading and names."""
    taken_part, rounds = run.rounds_taken_part, run.num_rounds
    kinds = (
        (taken_part == 0, "never participated"),
        (np.where(taken_part > 0, rounds - taken_part, 0), "opted out of some rounds"),
        (run.rounds_refused, "refused: a release would have passed the client's cap, or total_epsilon"),
    )
    lines = []
    for counts, words in kinds:
        clients = np.flatnonzero(counts).tolist()
        times = ["" if counts.dtype == bool else f" ({int(counts[client])} of {rounds} rounds)" for client in clients]
        names = [run.names[client] + often for client, often in zip(clients, times, strict=True)][:MOST_NAMED]
        more = f" and {len(clients) - MOST_NAMED:,} more" if len(clients) > MOST_NAMED else ""
        if clients:
            what = f"{len(clients):,} of {run.num_clients:,} {words}"
            lines.append({"what": what, "who": ", ".join(names) + more})
    return lines


def _without_folders(value: Any) -> Any:
    """A configuration without what is not set, and with paths shortened to their last part: a page may be published."""
    if isinstance(value, dict):
        kept = {key: _without_folders(inner) for key, inner in value.items() if inner is not None}
        return {key: inner for key, inner in kept.items() if inner != {}}
    if isinstance(value, (list, tuple)):
        return [_without_folders(inner) for inner in value]
    if isinstance(value, str) and re.match(r"/|~|[A-Za-z]:[\\/]", value):
        return "…/" + re.split(r"[/\\]", value.rstrip("/"))[-1]
    return value
