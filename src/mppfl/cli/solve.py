"""mppfl solve: prices and budgets of every round."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask

if TYPE_CHECKING:
    from mppfl.game import Solution


def solve_command(
    graph: ask.GraphOption = None,
    clients: ask.ClientsOption = None,
    preset: ask.PresetOption = "paper-like",
    seed: ask.SeedOption = 0,
    num_clients: ask.NumClientsOption = 20,
    max_hops: ask.MaxHopsOption = None,
    hop_decay: ask.HopDecayOption = None,
    externality_strength: ask.StrengthOption = None,
    accuracy_weight: ask.AccuracyOption = None,
    rounds: ask.RoundsOption = 60,
    mechanism: Annotated[str, typer.Option(help="Who prices how: mppfl, mppfl_exact, social_agnostic, ...")] = "mppfl",
    participation: Annotated[
        str, typer.Option(help="always, if_better_than_staying_out or if_non_negative.")
    ] = "always",
    reward_rate: Annotated[float | None, typer.Option(help="Fix the reward rate of all rounds.")] = None,
    payment_limit: ask.PaymentOption = None,
    fixed_budget: ask.FixedBudgetOption = "min",
    undirected: ask.UndirectedOption = False,
    normalisation: ask.NormalisationOption = "row",
    isolated: ask.IsolatedOption = "error",
    self_loops: ask.SelfLoopsOption = "error",
    diagonal: ask.DiagonalOption = "auto",
    experiment: ask.ExperimentOption = None,
    device: ask.DeviceOption = None,
    json: ask.JsonOption = False,
    no_budgets: Annotated[bool, typer.Option("--no-budgets", help="Leave budgets out of the JSON.")] = False,
    prices: Annotated[bool, typer.Option("--prices", help="Add personal prices to the JSON.")] = False,
    debug: ask.DebugOption = False,
) -> None:
    """Solve the game: what the server pays, and how much privacy each client gives, in every round."""
    options = dict(locals())
    began = time.perf_counter()
    ask.check_rounds(rounds)
    ask.check_device(device)
    if not json:
        ask.refuse_idle_options(["no_budgets", "prices"], "without --json", "Give --json, too, or leave it out.")
    if experiment is not None:
        mechanism, found = solve_experiment(experiment, mechanism, rounds, device)
    else:
        found = solve_options(options)
    ask.warn(found.warnings)
    seconds = time.perf_counter() - began
    if json:
        ask.print_json(as_json(found, mechanism, seconds, budgets=not no_budgets, prices=prices))
    else:
        show(found, seconds)


def solve_options(options: dict[str, Any]) -> Solution:
    """The game that the command's options describe, solved."""
    import numpy as np

    from mppfl.arrays import require_number
    from mppfl.errors import BadInput
    from mppfl.game import LARGEST, follows, solve

    mechanism, rounds, reward_rate = options["mechanism"], options["rounds"], options["reward_rate"]
    given = ask.Inputs.among(options)
    function = ask.chosen_mechanism(mechanism, options["payment_limit"], options["fixed_budget"])
    ask.check_mechanism_options(options["payment_limit"], options["fixed_budget"], [mechanism])
    ask.check_network_options(given)
    if reward_rate is not None and options["payment_limit"] is not None:
        raise BadInput(
            f"--reward-rate={reward_rate:g} leaves budget_limited no choice, and may cost more than "
            f"--payment-limit={options['payment_limit']:g}. Leave one of them out."
        )
    rates = None
    if reward_rate is not None:
        rates = np.full(rounds, require_number(reward_rate, "reward_rate", 0.0, LARGEST))
    with ask.working("reading the network"):
        game = ask.make_the_game(given, device=options["device"])
    with ask.working(f"solving {game.num_clients:,} clients"):
        found = solve(
            game,
            function,
            num_rounds=rounds,
            reward_rates=rates,
            participation=options["participation"],
            seed=options["seed"],
            device=options["device"],
        )
    if rates is not None and not follows(found.plan, rates):
        raise BadInput(
            f"--reward-rate={reward_rate:g} means nothing to {mechanism}, which has prices of its own. Leave it out."
        )
    return found


def solve_experiment(path: Path, mechanism: str, rounds: int, device: str | None) -> tuple[str, Solution]:
    """The mechanism of an experiment file, and what it does in that game; both it and the rounds may be typed."""
    from mppfl.errors import BadInput
    from mppfl.experiment import game_without_data, solve_all, toml_value

    overrides = [f"game.num_rounds={rounds}"] if ask.is_typed("rounds") else []
    overrides += [f"mechanism={toml_value(mechanism)}"] if ask.is_typed("mechanism") else []
    beside = ("mechanism", "rounds", "device", "json", "no_budgets", "prices", "debug")
    chosen = ask.read_the_experiment(path, overrides, beside=beside)
    for several, remedy in (("mechanisms", "Choose one by --mechanism"), ("seeds", "Keep one of them in the file")):
        listed = getattr(chosen, several)
        if len(listed) > 1:
            named = ", ".join(map(str, listed))
            raise BadInput(f"{path}: {several} are {named}, and solve plays one. {remedy}, or use `mppfl compare`.")
    (name,), (seed,) = chosen.mechanisms, chosen.seeds
    with ask.working("reading the network"):
        game = game_without_data(chosen, seed, device)
    with ask.working(f"solving {game.num_clients:,} clients"):
        return name, solve_all(chosen, game, seed, device)[name]


def as_json(found: Solution, mechanism: str, seconds: float, *, budgets: bool, prices: bool) -> dict[str, Any]:
    """The object that --json prints; its keys are a public contract."""
    import numpy as np

    graph, outcome, quality = found.game.graph, found.outcome, found.verification
    names = [graph.name(i) for i in range(graph.num_clients)] if budgets or prices else []
    rounds = []
    for k, terms in enumerate(found.plan):
        out = np.flatnonzero(terms.budgets <= 0)
        entry: dict[str, Any] = {
            "round_index": terms.round_index,
            "reward_rate": terms.reward_rate,
            "server_cost": outcome.server_costs[k],
            "welfare": outcome.welfare[k],
        }
        if budgets:
            entry["budgets"] = dict(zip(names, terms.budgets.tolist(), strict=True))
        if prices:
            each = np.broadcast_to(terms.prices, graph.num_clients)
            entry["prices"] = dict(zip(names, each.tolist(), strict=True))
        entry["not_participating"] = [graph.name(int(i)) for i in out]
        entry["clients_below_zero"] = int(outcome.below_zero[k])
        rounds.append(entry)
    home = found.game.propagation.home
    return {
        "num_clients": graph.num_clients,
        "num_links": graph.num_links,
        "mechanism": mechanism,
        "rounds": rounds,
        "residual": quality.residual,
        "client_regret": quality.client_regret,
        "leader_regret": quality.leader_regret,
        "contraction": found.game.contraction,
        "is_unique": found.is_unique,
        "exact_hops": home.exact_hops,
        "diagonal_error": found.diagonal_error,
        "notes": list(found.warnings),
        "seconds": seconds,
    }


def show(found: Solution, seconds: float) -> None:
    """The result for a reader."""
    import numpy as np

    game, outcome, quality = found.game, found.outcome, found.verification
    spread, graph = game.propagation, game.graph
    first, last = found.plan[0], found.plan[len(found.plan) - 1]

    def line(label: str, text: str) -> None:
        typer.echo(f"{label:<16}{text}")

    def range_of(budgets: Any) -> str:
        part = budgets[budgets > 0]
        if len(part) == 0 or not np.isfinite(part).all():
            return "none" if len(part) == 0 else "without limit"
        return f"{np.median(part):.4g} median ({part.min():.3g} to {part.max():.3g})"

    line(
        "network",
        f"{graph.num_clients:,} clients, {graph.num_links:,} links, up to {spread.max_hops} hops, "
        f"decay {spread.hop_decay:g}, αS = {game.contraction:.3g}",
    )
    line("mechanism", f"{found.plan.mechanism}, {len(found.plan)} rounds")
    typer.echo(f"{'':<16}{'round ' + str(first.round_index):>36}{'round ' + str(last.round_index):>36}")
    rows = [
        ("reward rate", [f"{t.reward_rate:.4g} per unit of budget" for t in (first, last)]),
        ("budgets", [range_of(t.budgets) for t in (first, last)]),
        ("server cost", [f"{outcome.server_costs[k]:.5g}" for k in (0, -1)]),
        ("  τ · accuracy", [f"{game.accuracy_weight * outcome.accuracy_terms[k]:.5g}" for k in (0, -1)]),
        ("  (1−τ) · paid", [f"{(1 - game.accuracy_weight) * outcome.payments[k]:.5g}" for k in (0, -1)]),
        ("paid to clients", [f"{outcome.payments[k]:.5g}" for k in (0, -1)]),
        ("client welfare", [f"{outcome.welfare[k]:.5g}" for k in (0, -1)]),
        ("below zero", [f"{outcome.below_zero[k]:,} of {graph.num_clients:,} clients" for k in (0, -1)]),
        ("taking part", [f"{outcome.taking_part[k]:,} of {graph.num_clients:,} clients" for k in (0, -1)]),
    ]
    for label, cells in rows:
        typer.echo(f"{label:<16}{cells[0]:>36}{cells[1]:>36}")
    line("", "")
    line("check", f"residual {quality.residual:.1e}, largest client gain alone {quality.client_regret:.1e}")
    if quality.leader_regret is not None:
        line("", f"the server could save {quality.leader_regret:.3g} in a round by another rate")
    if found.diagonal_error:
        line("", f"walks beyond {spread.home.exact_hops} hops estimated: budgets within {found.diagonal_error:.1e}")
    unique = "proved unique" if found.is_unique else "not proved unique"
    line("", f"equilibrium {unique}; solved in {seconds:.2f} s")
