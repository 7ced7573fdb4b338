"""What a report says in sentences: what was trained, and what came out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from mppfl.experiment import Run
from mppfl.text import delta, duration, epsilon, finite, number, percent

MODELS = {
    "softmax": "softmax regression",
    "mlp": "multilayer perceptron",
    "cnn_fmnist": "convolutional network",
    "cnn_cifar": "convolutional network",
    "vgg11": "VGG-11",
    "vgg16": "VGG-16",
}


def labels_of(runs: Sequence[Run]) -> list[str]:
    """What each run is called on the page: its name, numbered where two are called the same."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: at + 1].count(name)})" for at, name in enumerate(names)
    ]


def headline(runs: Sequence[Run]) -> str:
    """What was trained, in a few words."""
    sizes = {run.num_clients for run in runs}
    data = {_data_name(run) for run in runs}
    if len(sizes) > 1 or len(data) > 1:
        return f"{len(runs)} trainings side by side"
    (size,), (name,) = sizes, data
    who = "One client" if size == 1 else f"{size:,} clients"
    return f"{who} {'learns' if size == 1 else 'learn'} {name or 'together'}"


def _data_name(run: Run) -> str:
    """The data set's name, without the folder it may lie in."""
    data = run.config.get("data")
    name = data.get("name", "") if isinstance(data, dict) else data or run.config.get("dataset", "")
    return re.split(r"[/\\]", str(name))[-1]


def subtitle(runs: Sequence[Run]) -> str:
    models = sorted({str(run.setting("model", "")) for run in runs} - {""})
    parts = [" and ".join(MODELS.get(model, model) for model in models)] if models else []
    rounds = sorted({run.num_rounds for run in runs})
    parts.append("1 round" if rounds == [1] else f"{' or '.join(map(str, rounds))} rounds")
    links = sorted({run.graph.num_links for run in runs})
    parts.append(
        "1 link" if links == [1] else f"{' to '.join(f'{n:,}' for n in dict.fromkeys([links[0], links[-1]]))} links"
    )
    parts.append(f"{len(runs)} runs" if len(runs) > 1 else f"mechanism {runs[0].mechanism}")
    return " · ".join(parts)


def verdict(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """What came out, in sentences."""
    if len(runs) == 1:
        return [*_learned(runs[0]), *_paid(runs[0]), *_protected(runs[0])]
    return [*_most_accurate(runs, labels), *_best_for_money(runs, labels), *_least_spent(runs, labels)]


def _learned(run: Run) -> list[str]:
    if math.isnan(run.final_accuracy):
        return [f"{run.num_rounds} rounds were trained; the model was never evaluated on test data."]
    accuracy = run.history.rounds["accuracy"]
    sentence = f"The model classifies {percent(run.final_accuracy)} of the test data correctly"
    best = int(run.history.rounds["round_index"][int(np.nanargmax(accuracy))])
    if percent(run.best_accuracy) != percent(run.final_accuracy):
        sentence += f"; its best was {percent(run.best_accuracy)}, after round {best}"
    return [f"{sentence}."]


def _paid(run: Run) -> list[str]:
    total = float(run.paid.sum())
    never = int((run.rounds_taken_part == 0).sum())
    who = (
        "Everybody took part in every round" if (run.rounds_taken_part == run.num_rounds).all() else "Not all took part"
    )
    if never:
        who = f"{never:,} of {run.num_clients:,} clients never took part"
    money = f", and clients were paid {number(total)} in all" if math.isfinite(total) else ""
    refused = int((run.rounds_refused > 0).sum())
    caps = "The cap of one client" if refused == 1 else f"The caps of {refused:,} clients"
    return [f"{who}{money}."] + ([f"{caps} forbade some rounds."] if refused else [])


def _protected(run: Run) -> list[str]:
    accounts = run.accounts
    nominal, worst = float(accounts.dp_epsilon.max()), float(accounts.worst_case_epsilon.max())
    if math.isinf(nominal):
        return ["No noise was added: nobody's data is protected."]
    sentence = (
        f"The client who spent most has ε = {epsilon(nominal)} at δ = {delta(accounts.dp_delta)} per {accounts.unit}"
    )
    if worst > nominal:
        sentence += f", as declared; in the worst case ε is up to {epsilon(worst)}"
    return [f"{sentence}."]


def _most_accurate(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    protected = [at for at, run in enumerate(runs) if np.isfinite(run.accounts.spent).all()]
    known = [at for at in protected or range(len(runs)) if math.isfinite(runs[at].final_accuracy)]
    said = []
    if known:
        first, *others = sorted(known, key=lambda at: -runs[at].final_accuracy)
        how = "learns best:" if others else "reaches"
        sentence = f"{labels[first]} {how} {percent(runs[first].final_accuracy)} on the test data"
        if others:
            ahead = 100 * (runs[first].final_accuracy - runs[others[0]].final_accuracy)
            far = "level with" if ahead < 0.05 else f"{ahead:.1f} points ahead of"
            sentence += f", {far} {labels[others[0]]}"
        said.append(f"{sentence}.")
    open_runs = [at for at in range(len(runs)) if at not in protected and math.isfinite(runs[at].final_accuracy)]
    if known and open_runs and protected:
        ceiling = max(open_runs, key=lambda at: runs[at].final_accuracy)
        said.append(
            f"Without any noise, {labels[ceiling]} reaches {percent(runs[ceiling].final_accuracy)}: the ceiling."
        )
    return said


def _best_for_money(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    costs = {at: float(run.server_cost.sum()) for at, run in enumerate(runs) if np.isfinite(run.accounts.spent).all()}
    costs = {at: cost for at, cost in costs.items() if math.isfinite(cost)}
    gains = {at: float(runs[at].welfare.sum()) for at in costs if math.isfinite(float(runs[at].welfare.sum()))}
    if len(costs) < 2:
        return []
    cheap = min(costs, key=lambda at: costs[at])
    said = f"{labels[cheap]} costs the server least ({number(costs[cheap])})"
    if len(gains) > 1:
        kind = max(gains, key=lambda at: gains[at])
        said += f"; {'it also' if kind == cheap else labels[kind]} leaves clients best off ({number(gains[kind])})"
    return [f"{said}."]


def _least_spent(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    middles = {at: float(np.median(run.accounts.spent)) for at, run in enumerate(runs)}
    middles = {at: middle for at, middle in middles.items() if math.isfinite(middle)}
    units = {runs[at].accounts.unit for at in middles}
    if len(middles) < 2 or len(units) > 1:
        return []
    low, high = min(middles, key=lambda at: middles[at]), max(middles, key=lambda at: middles[at])
    ends = f"{number(middles[low])} under {labels[low]} and {number(middles[high])} under {labels[high]}"
    return [f"The middle client spends between ρ = {ends}."] if middles[high] > middles[low] else []


def tiles(runs: Sequence[Run]) -> list[dict[str, str]]:
    """The figures a single run is remembered by."""
    if len(runs) > 1:
        return []
    run = runs[0]
    exposed, worst = finite(run.exposure), float(run.accounts.worst_case_epsilon.max())
    who = run.names[int(np.nanargmax(run.exposure))] if len(exposed) == run.num_clients else ""
    return [
        {"value": percent(run.final_accuracy), "label": "accuracy on test data", "more": ""},
        {"value": number(run.paid.sum()), "label": "paid to clients", "more": ""},
        {
            "value": f"ε {epsilon(run.accounts.dp_epsilon.max())}",
            "label": "of the client who spent most",
            "more": f"worst case: up to {epsilon(worst)}" if worst > run.accounts.dp_epsilon.max() else "",
        },
        {"value": number(run.exposure.max()), "label": "exposure of the most exposed", "more": who},
        {"value": duration(run.provenance.seconds), "label": "of training", "more": run.provenance.device},
    ]
