"""mppfl solve (alone: one file a command): prices and budgets of every round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs

if TYPE_CHECKING:
    from mppfl.game import Solution

QUICK = 300  # clients; on larger networks the saving if clients may leave is computed only in Python


@inputs.with_game()
def solve_command(
    asked: inputs.Asked,
    mechanism: inputs.MechanismOption = "mppfl",
    device: Annotated[str | None, typer.Option(help="Solve by PyTorch on cuda, cuda:1 or cpu; default: NumPy.")] = None,
    json: inputs.JsonOption = False,
    no_budgets: Annotated[bool, inputs.flag("--no-budgets", "Leave budgets out of the JSON.")] = False,
    prices: Annotated[bool, inputs.flag("--prices", "Add personal prices to the JSON.")] = False,
) -> None:
    """Solve the game: what the server pays, and how much privacy each client gives, in every round."""
    from mppfl.experiment import build_game, require_playable, solve_all

    began = time.perf_counter()
    if device is not None:
        from mppfl.device import find_device

        find_device(device)  # refuses one that does not exist, before anything is read
    if not json:
        inputs.refuse_idle_options(["no_budgets", "prices"], "without --json", "Give --json, too, or leave it out.")
    name, spec = asked.one_mechanism(mechanism), asked.game
    require_playable(spec, [name])
    with inputs.working("reading the network"):
        game = build_game(spec, device)
    with inputs.working(f"solving {game.num_clients:,} clients"):
        solution = solve_all(spec, [name], game, device)[name]
    inputs.warn(solution.warnings)
    seconds = time.perf_counter() - began
    if json:
        inputs.print_json(as_json(solution, name, seconds, budgets=not no_budgets, prices=prices))
    else:
        show(solution, seconds)


def as_json(solution: Solution, mechanism: str, seconds: float, *, budgets: bool, prices: bool) -> dict[str, Any]:
    """The object that --json prints; its keys are a public contract."""
    import numpy as np

    graph, outcome, quality = solution.game.graph, solution.outcome, solution.verification
    names = [graph.name(i) for i in range(graph.num_clients)]
    rounds = []
    for k, terms in enumerate(solution.plan):
        entry: dict[str, Any] = {
            "round_index": terms.round_index,
            "reward_rate": terms.reward_rate,
            "server_cost": outcome.server_costs[k],
            "welfare": outcome.welfare[k],
        }
        if budgets:
            entry["budgets"] = dict(zip(names, terms.budgets.tolist(), strict=True))
        if prices:
            personal = np.broadcast_to(terms.prices, graph.num_clients)
            entry["prices"] = dict(zip(names, personal.tolist(), strict=True))
        entry["not_participating"] = [names[i] for i in np.flatnonzero(terms.budgets <= 0)]
        entry["num_negative_utility"] = int(outcome.negative_utility[k])
        rounds.append(entry)
    return {
        "num_clients": graph.num_clients,
        "num_edges": graph.num_edges,
        "mechanism": mechanism,
        "rounds": rounds,
        "residual": quality.residual,
        "client_regret": quality.client_regret,
        "leader_regret": quality.leader_regret,
        "saving_if_clients_may_leave": solution.saving_if_clients_may_leave if graph.num_clients <= QUICK else None,
        "contraction": solution.game.contraction,
        "is_unique": solution.is_unique,
        "exact_hops": solution.game.propagation.home.exact_hops,
        "diagonal_error": solution.diagonal_error,
        "notes": list(solution.warnings),
        "seconds": seconds,
    }


def show(solution: Solution, seconds: float) -> None:
    """Network, first and last round side by side, and how good the solution is."""
    game, outcome, quality = solution.game, solution.outcome, solution.verification
    spread, graph, num_rounds = game.propagation, game.graph, len(solution.plan)
    shown = [0] if num_rounds == 1 else [0, num_rounds - 1]
    terms, payments = [solution.plan[k] for k in shown], outcome.payments
    clients = f"of {graph.num_clients:,} clients"
    rows = {
        "": [f"round {t.round_index}" for t in terms],
        "reward rate": [f"{t.reward_rate:.4g} per unit of budget" for t in terms],
        "budgets": [_range_of(t.budgets) for t in terms],
        "server cost": [f"{outcome.server_costs[k]:.5g}" for k in shown],
        "  τ · noise harm": [f"{game.accuracy_weight * outcome.accuracy_terms[k]:.5g}" for k in shown],
        "  (1−τ) · paid": [f"{(1 - game.accuracy_weight) * payments[k]:.5g}" for k in shown],
        "paid to clients": [f"{payments[k]:.5g}" for k in shown],
        "client welfare": [f"{outcome.welfare[k]:.5g}" for k in shown],
        "negative utility": [f"{outcome.negative_utility[k]:,} {clients}" for k in shown],
        "participating": [f"{outcome.participating[k]:,} {clients}" for k in shown],
    }
    checks = [f"residual {quality.residual:.1e}, maximum unilateral gain {quality.client_regret:.1e}"]
    if quality.leader_regret is not None:
        rule = f"participation = {solution.plan.participation!r}"
        checks.append(f"leader regret {quality.leader_regret:.3g} in a round, over rates that {rule} allows")
    if game.num_clients <= QUICK and (saving := solution.saving_if_clients_may_leave) is not None:
        checks.append(f"the server could save {saving:.3g} in a round if clients might leave")
    if solution.diagonal_error:
        error = f"{solution.diagonal_error:.1e}"
        checks.append(f"closed walks beyond {spread.home.exact_hops} hops estimated: budgets within {error}")
    unique = "proved unique" if solution.is_unique else "not proved unique"
    checks.append(f"equilibrium {unique}; solved in {seconds:.2f} s")

    size = f"{graph.num_clients:,} clients, {graph.num_edges:,} edges"
    hops = f"up to {spread.max_hops} hops, decay {spread.hop_decay:g}, αS = {game.contraction:.3g}"
    lines = [("network", f"{size}, {hops}")]
    trust = f", noise on the sum of all ({game.trust})" if game.opens_sums else ""
    lines.append(("mechanism", f"{solution.plan.mechanism}, {num_rounds} round{'s' * (num_rounds > 1)}{trust}"))
    lines += [(label, "".join(f"{cell:>36}" for cell in cells)) for label, cells in rows.items()]
    lines += [("", ""), ("check", checks[0]), *(("", text) for text in checks[1:])]
    for label, text in lines:
        typer.echo(f"{label:<18}{text}")


def _range_of(budgets: Any) -> str:
    import numpy as np

    positive = budgets[budgets > 0]
    if len(positive) == 0 or not np.isfinite(positive).all():
        return "none" if len(positive) == 0 else "without limit"
    return f"{np.median(positive):.4g} median ({positive.min():.3g} to {positive.max():.3g})"
