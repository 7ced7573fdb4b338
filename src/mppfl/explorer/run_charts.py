"""Charts of several trainings laid over each other: curves, budgets and payments by round, accounts by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mppfl.arrays import Array
from mppfl.experiment import LiveAccounts
from mppfl.explorer.chart import ROUNDS, Axis, Chart, Line
from mppfl.explorer.run_view import RunState
from mppfl.explorer.scene_charts import sorted_chart
from mppfl.text import delta

FAR = 30  # times as large: then powers of ten


def run_charts(states: Sequence[RunState]) -> tuple[Chart, ...]:
    """All charts of these runs."""
    return (
        accuracy(states),
        loss(states),
        budgets(states),
        payments(states),
        epsilons(states),
        remaining_caps(states),
    )


def accuracy(states: Sequence[RunState]) -> Chart:
    """Test accuracy by round."""
    lines = tuple(_line(state, state.rounds, state.accuracy) for state in states)
    return Chart("accuracy", "Test accuracy", ROUNDS, Axis("accuracy", "% of test data"), lines, note=_steps(states))


def loss(states: Sequence[RunState]) -> Chart:
    """Test loss by round."""
    lines = tuple(_line(state, state.rounds, state.loss) for state in states)
    return Chart("loss", "Test loss", ROUNDS, Axis("cross-entropy", "nats per example"), lines, note=_steps(states))


def budgets(states: Sequence[RunState]) -> Chart:
    """What clients were charged by round: the middle client, and the middle 80 % of them."""
    lines = tuple(
        Line(f"{state.name}, median", state.charged_rounds, state.budget_middle, state.budget_low, state.budget_high)
        for state in states
    )
    units = " or ".join(dict.fromkeys(state.unit for state in states)) or "record"
    axis = Axis("budget charged", f"ρ of zCDP, per {units}")
    note = _together("bands hold 10–90 % of clients", _without(states, lines), simulated(states))
    return Chart("run-budgets", "Budgets charged by round", ROUNDS, axis, lines, note=note)


def payments(states: Sequence[RunState]) -> Chart:
    """Money paid to all clients by round."""
    lines = tuple(_line(state, state.rounds, state.payments) for state in states)
    axis = Axis("paid to all clients", "money per round")
    return Chart("run-payments", "Payments by round", ROUNDS, axis, lines, note=_steps(states))


def epsilons(states: Sequence[RunState]) -> Chart:
    """ε of every client so far, nominal and worst case for one run, nominal for several."""
    known = [(state, state.accounts) for state in states if state.accounts is not None]
    deltas = ", ".join(dict.fromkeys(delta(state.dp_delta) for state, _ in known)) or "1e-5"
    groups = {state.name: (accounts.names, accounts.dp_epsilon) for state, accounts in known}
    if len(known) == 1:
        ((_, accounts),) = known
        groups = {"nominal": (accounts.names, accounts.dp_epsilon)}
        if (accounts.worst_case_epsilon > accounts.dp_epsilon).any():
            groups["worst case"] = (accounts.names, accounts.worst_case_epsilon)
    axis = Axis("ε", f"at δ = {deltas}", log=_far_apart([values for _, values in groups.values()]))
    return _by_client("dp-epsilon", "ε of each client", axis, groups, states)


def remaining_caps(states: Sequence[RunState]) -> Chart:
    """ρ that every client may still spend before its cap."""
    groups = _accounts(states, lambda accounts: np.where(np.isinf(accounts.cap), np.nan, accounts.remaining))
    capped = any(np.isfinite(values).any() for _, values in groups.values())
    axis = Axis("remaining", "ρ of zCDP")
    title, note = "What each client may still spend", "" if capped or not groups else "no client has a cap"
    return _by_client("remaining", title, axis, groups if capped else {}, states, note)


def simulated(states: Sequence[RunState]) -> str:
    """What must be said where noise came from a seed."""
    seeded = [state.name for state in states if state.is_simulation]
    if not seeded:
        return ""
    which = "" if len(seeded) == len(states) else f"{', '.join(seeded)}: "
    return f"{which}simulation, seeded noise protects no one"


# ---- inside --------------------------------------------------------------------------------------------------------

Groups = dict[str, tuple[tuple[str, ...], Array]]


def _line(state: RunState, rounds: Array, values: Array) -> Line:
    known = ~np.isnan(values)  # rounds without evaluation are no gap
    return Line(state.name, rounds[known], values[known])


def _far_apart(groups: Sequence[Array]) -> bool:
    """Whether the smaller group would not be seen beside the larger one on a plain axis."""
    largest = [float(values[np.isfinite(values)].max(initial=0.0)) for values in groups]
    return bool(largest) and min(largest) > 0 and max(largest) > FAR * min(largest)


def _accounts(states: Sequence[RunState], values: Callable[[LiveAccounts], Array]) -> Groups:
    return {
        state.name: (state.accounts.names, values(state.accounts)) for state in states if state.accounts is not None
    }


def _by_client(key: str, title: str, axis: Axis, groups: Groups, states: Sequence[RunState], note: str = "") -> Chart:
    """All clients of all runs, sorted by the first run; a client that a run does not know has no bar there."""
    names = tuple(dict.fromkeys(name for listed, _ in groups.values() for name in listed))
    at = {name: place for place, name in enumerate(names)}
    table = {}
    for group, (listed, values) in groups.items():
        spread = np.full(len(names), np.nan)
        spread[[at[name] for name in listed]] = values
        table[group] = spread
    said = simulated(states)
    if not names:
        empty = "" if note else "no account is known yet"
        return Chart(key, title, axis, Axis("client", "name"), note=_together(note or empty, said))
    chart = sorted_chart(key, title, axis, table, names)
    return Chart(
        key, title, chart.x, chart.y, chart.lines, chart.bars, chart.labels, note=_together(chart.note, note, said)
    )


def _steps(states: Sequence[RunState]) -> str:
    """Why the curves of a training that is not finished come in steps."""
    steps = sorted({state.checkpoint_every for state in states if not state.finished and state.checkpoint_every > 1})
    if not steps:
        return ""
    return f"while a training runs, this curve grows every {' or '.join(map(str, steps))} rounds, with its checkpoints"


def _without(states: Sequence[RunState], lines: Sequence[Line]) -> str:
    missing = [
        state.name
        for state, line in zip(states, lines, strict=True)
        if state.noise == "none" or (state.rounds_charged and not len(line.x))
    ]
    return f"no budgets: {', '.join(missing)}, whose releases have none that could be drawn" if missing else ""


def _together(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
