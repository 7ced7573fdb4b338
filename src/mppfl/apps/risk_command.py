"""mppfl risk: who exposes whom, and who matters most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.apps import inputs as ask

if TYPE_CHECKING:
    from mppfl.game.model import Game
    from mppfl.game.plan import Terms


def risk_command(
    graph: ask.GraphOption = None,
    clients: ask.ClientsOption = None,
    preset: ask.PresetOption = "paper-like",
    seed: ask.SeedOption = 0,
    num_clients: ask.NumClientsOption = 20,
    max_hops: ask.MaxHopsOption = None,
    hop_decay: ask.HopDecayOption = None,
    externality_strength: ask.StrengthOption = None,
    accuracy_weight: ask.AccuracyOption = None,
    round_index: Annotated[int, typer.Option("--round", help="The round whose budgets count.")] = 1,
    mechanism: Annotated[str, typer.Option(help="Whose budgets: mppfl, social_agnostic, ...")] = "mppfl",
    payment_limit: ask.PaymentOption = None,
    fixed_budget: ask.FixedBudgetOption = "min",
    client: Annotated[str | None, typer.Option(help="Explain this client's exposure by source and hop.")] = None,
    top: Annotated[int, typer.Option(help="How many clients to list.")] = 10,
    undirected: ask.UndirectedOption = False,
    normalisation: ask.NormalisationOption = "row",
    isolated: ask.IsolatedOption = "error",
    self_loops: ask.SelfLoopsOption = "error",
    diagonal: ask.DiagonalOption = "auto",
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Who exposes a client, by hop; who is most exposed; whose leaving or budget matters most to the others."""
    options = dict(locals())
    import numpy as np

    from mppfl.arrays import require_count
    from mppfl.errors import BadInput
    from mppfl.game.plan import Horizon

    require_count(round_index, "round")
    require_count(top, "top")
    given = ask.Inputs.among(options)
    function = ask.chosen_mechanism(mechanism, payment_limit, fixed_budget)
    ask.check_payment_limit(payment_limit, [mechanism])
    with ask.working("reading the network"):
        game = ask.make_the_game(given)
    with ask.working("solving"):
        terms = function(game, Horizon(np.array([round_index]), seed=seed)).terms(0)
        if not np.isfinite(terms.budgets).all():
            raise BadInput(f"mechanism={mechanism!r} puts no limit on budgets, so risk has none. Choose another.")
        found = everybody(game, terms, top)
        if client is not None:
            found["client"] = one_client(game, terms, client, top)
    if json:
        ask.print_json(found)
    else:
        show(found)


def everybody(game: Game, terms: Terms, top: int) -> dict[str, Any]:
    """The most exposed clients, those who impose most on others, and those whose leaving relieves the others most."""
    import numpy as np

    from mppfl.game.key_players import effect_of_leaving, exposure_imposed, exposure_relief, harm_imposed

    name = game.graph.name
    risks = game.propagation @ terms.budgets
    imposed, harm = exposure_imposed(game, terms.budgets), harm_imposed(game, terms.budgets)
    most = np.argsort(-risks, kind="stable")[:top]
    heaviest = np.argsort(-harm, kind="stable")[:top]
    # Leaving matters most for those who impose most; on a small network everybody is tried.
    tried = np.arange(game.num_clients) if game.loss.is_dense else np.argsort(-imposed, kind="stable")[: 2 * top]
    relief = np.array([exposure_relief(game, terms.budgets, int(i)) for i in tried])
    order = np.argsort(-relief, kind="stable")[:top]
    fall = effect_of_leaving(game, terms.budgets, tried[order])
    return {
        "round_index": terms.round_index,
        "reward_rate": terms.reward_rate,
        "most_exposed": [
            {"name": name(i), "external_risk": risks[i], "budget": terms.budgets[i]} for i in most.tolist()
        ],
        "cost_others_most": [
            {"name": name(i), "harm_imposed": harm[i], "exposure_imposed": imposed[i], "budget": terms.budgets[i]}
            for i in heaviest.tolist()
        ],
        "key_players": [
            {"name": name(int(tried[k])), "exposure_relief": relief[k], "budgets_lost": fall[position]}
            for position, k in enumerate(order.tolist())
        ],
    }


def one_client(game: Game, terms: Terms, client: str, top: int) -> dict[str, Any]:
    """One client's exposure: in all, by hop, and by its largest sources."""
    import numpy as np

    from mppfl.game.model import privacy_loss, utility
    from mppfl.network.propagation import attribute

    position = game.graph.index(client)
    found = attribute(game.propagation, position, terms.budgets)
    total = float(found.amounts.sum())
    by_hop = np.bincount(found.hops, weights=found.amounts, minlength=game.propagation.max_hops + 1)[1:]
    by_source: dict[int, float] = {}
    for source, amount in zip(found.sources.tolist(), found.amounts.tolist(), strict=True):
        by_source[source] = by_source.get(source, 0.0) + amount
    largest = sorted(by_source.items(), key=lambda pair: -pair[1])[:top]
    hops_of = {
        source: {
            int(h): float(a) for s, h, a in zip(found.sources, found.hops, found.amounts, strict=True) if s == source
        }
        for source, _ in largest
    }
    return {
        "name": client,
        "budget": terms.budgets[position],
        "external_risk": total,
        "privacy_loss": privacy_loss(game, terms.budgets)[position],
        "utility": utility(game, terms.prices, terms.budgets)[position],
        "by_hop": {str(hop): float(amount) for hop, amount in enumerate(by_hop, start=1)},
        "sources": [
            {"name": game.graph.name(source), "amount": amount, "by_hop": hops_of[source]} for source, amount in largest
        ],
    }


def show(found: dict[str, Any]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(width=100) if not Console().is_terminal else Console()
    console.print(f"round {found['round_index']}, reward rate {found['reward_rate']:.4g} per unit of budget")

    def table(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
        shown = Table(title=title, title_justify="left", box=SIMPLE)
        shown.add_column("client")
        for heading in columns.values():
            shown.add_column(heading, justify="right")
        for row in rows:
            shown.add_row(row["name"], *(f"{row[key]:.4g}" for key in columns))
        console.print(shown)

    if "client" in found:
        one = found["client"]
        console.print(
            f"{one['name']}: own budget {one['budget']:.4g}, external risk {one['external_risk']:.4g}, "
            f"privacy loss {one['privacy_loss']:.4g}, utility {one['utility']:.4g}"
        )
        hops = ", ".join(f"{amount:.4g} at hop {hop}" for hop, amount in one["by_hop"].items())
        console.print(f"external risk by hop: {hops}")
        table("Exposed by", one["sources"], {"amount": "external risk"})
    table("Most exposed", found["most_exposed"], {"external_risk": "external risk", "budget": "own budget"})
    table(
        "Their budgets cost the others most",
        found["cost_others_most"],
        {"harm_imposed": "harm, money", "exposure_imposed": "external risk caused", "budget": "own budget"},
    )
    table(
        "Key players: whose leaving relieves the others most",
        found["key_players"],
        {"exposure_relief": "external risk removed", "budgets_lost": "budgets lost"},
    )
