"""mppfl risk: who exposes whom, and who matters most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask
from mppfl.cli.leak_inputs import (
    LEAK_ASSUMES,
    PRICED,
    AttributeOption,
    LeakPriceOption,
    exact_leak,
    priced_mechanism,
    require_what_prices_need,
)

if TYPE_CHECKING:
    from mppfl.game import Game, Terms
    from mppfl.leakage import WhoLeaks


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
    mechanism: Annotated[
        str, typer.Option(help="Whose budgets: mppfl, social_agnostic, ..., or leakage_priced.")
    ] = "mppfl",
    payment_limit: ask.PaymentOption = None,
    fixed_budget: ask.FixedBudgetOption = "min",
    client: Annotated[str | None, typer.Option(help="Explain this client's exposure by source and hop.")] = None,
    top: Annotated[int, typer.Option(help="How many clients to list.")] = 10,
    attribute: AttributeOption = None,
    coupling: Annotated[
        float | None, typer.Option("--coupling", help="Ising coupling J of every link, taken as known, for R_bound.")
    ] = None,
    leak_price: LeakPriceOption = None,
    protect_share: Annotated[
        float, typer.Option("--protect-share", help="With --client and --attribute: the share of R_leak to be left.")
    ] = 0.5,
    undirected: ask.UndirectedOption = False,
    normalisation: ask.NormalisationOption = "row",
    isolated: ask.IsolatedOption = "error",
    self_loops: ask.SelfLoopsOption = "error",
    diagonal: ask.DiagonalOption = "auto",
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Who exposes a client, by hop; who is most exposed; whose leaving or budget matters most to the others.

    With --attribute or --coupling also the columns R_model, R_bound and R_leak, and who leaks about whom.
    """
    options = dict(locals())
    import numpy as np

    from mppfl.arrays import require_count, require_number
    from mppfl.errors import BadInput
    from mppfl.game import Horizon, checked, doubts_about

    require_count(round_index, "round")
    require_count(top, "top")
    require_number(protect_share, "protect_share", 0.0, 1.0)
    if ask.is_typed("protect_share") and (client is None or attribute is None):
        raise BadInput(f"--protect-share={protect_share:g} is about one client's leak. Give --client and --attribute.")
    given = ask.Inputs.among(options)
    priced = check_leak_price(mechanism, leak_price, attribute)
    known = ask.chosen_mechanism("social_agnostic" if priced else mechanism, payment_limit, fixed_budget)
    ask.check_mechanism_options(payment_limit, fixed_budget, [mechanism])
    ask.check_network_options(given)
    with ask.working("reading the network"):
        game = ask.make_the_game(given)
    with ask.working("solving"):
        function = checked(known, mechanism)
        if attribute is not None and leak_price is not None:  # only leakage_priced may have a price
            function = priced_mechanism(exact_leak(game.graph, attribute), leak_price)
        plan = function(game, Horizon(np.array([round_index]), seed=seed))
        terms = plan[0]
        if not np.isfinite(terms.budgets).all():
            raise BadInput(f"mechanism={mechanism!r} puts no limit on budgets, so risk has none. Choose another.")
        found = everybody(game, terms, top)
        if client is not None:
            found["client"] = one_client(game, terms, client, top)
        if attribute is not None or coupling is not None:
            found |= leaks(game, terms, attribute, coupling, top, seed, client, protect_share)
        found["notes"] = [*doubts_about(game), *(plan.notes if priced else ())]
    ask.warn(found["notes"])
    if json:
        ask.print_json(found)
    else:
        show(found)


def check_leak_price(mechanism: str, leak_price: float | None, attribute: Path | None) -> bool:
    """Whether the mechanism is leakage_priced; refuses a price without it, and it without a price or a sample."""
    from mppfl.errors import BadInput

    priced = mechanism == PRICED
    if priced:
        require_what_prices_need(attribute, leak_price)
    elif leak_price is not None:
        raise BadInput(f"--leak-price={leak_price:g} means nothing to {mechanism}. Choose {PRICED}, or omit it.")
    return priced


def everybody(game: Game, terms: Terms, top: int) -> dict[str, Any]:
    """The most exposed clients, those who impose most on others, and those whose leaving relieves the others most."""
    import numpy as np

    from mppfl.game import exposure_imposed, harm_imposed, key_players

    name = game.graph.name
    risks = game.propagation @ terms.budgets
    imposed, harm = exposure_imposed(game, terms.budgets), harm_imposed(game, terms.budgets)
    most = np.argsort(-risks, kind="stable")[:top]
    heaviest = np.argsort(-harm, kind="stable")[:top]
    key = key_players(game, terms.prices, terms.budgets, top)
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
            {"name": name(int(k)), "exposure_relief": relief, "budgets_lost": lost}
            for k, relief, lost in zip(key.clients, key.exposure_relief, key.budgets_lost, strict=True)
        ],
        "key_players_assume": key.assumes,
    }


def one_client(game: Game, terms: Terms, client: str, top: int) -> dict[str, Any]:
    """One client's exposure: in all, by hop, and by its largest sources."""
    import numpy as np

    from mppfl.game import privacy_loss, utility
    from mppfl.network import attribute

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


MODEL_ASSUMES = "the paper's index of the game's walks: no unit, no statement about anybody's data"


def leaks(
    game: Game,
    terms: Terms,
    attribute: Path | None,
    coupling: float | None,
    top: int,
    seed: int,
    client: str | None,
    protect_share: float,
) -> dict[str, Any]:
    """R_model, R_bound and R_leak side by side, what each assumes, and who leaks about whom."""
    import numpy as np

    from mppfl.leakage import r_bound, read_values, who_leaks

    graph, budgets = game.graph, terms.budgets
    missing = np.full(game.num_clients, np.nan)
    bound = None if coupling is None else r_bound(graph, coupling, budgets)
    told = None if attribute is None else who_leaks(graph, read_values(attribute), budgets, rng=ask.generator(seed))
    model, limits = game.propagation @ budgets, missing if bound is None else bound.nats
    nats, errors = (missing, missing) if told is None else (told.nats, told.error)
    order = np.argsort(-(model if told is None else nats), kind="stable")[:top].tolist()
    answer: dict[str, Any] = {
        "columns": [
            {"name": graph.name(i), "r_model": model[i], "r_bound": limits[i], "r_leak": nats[i], "error": errors[i]}
            for i in order
        ],
        "assumes": {
            "r_model": MODEL_ASSUMES,
            "r_bound": "none: no couplings given" if bound is None else bound.reason or f"nats; {bound.premises}",
            "r_leak": "none: no public sample given" if told is None else LEAK_ASSUMES,
        },
    }
    if told is not None:
        worst = np.argsort(-told.marginal * budgets, kind="stable")[:top].tolist()
        answer["total_leak"] = float(told.nats.sum())
        answer["endanger_others_most"] = [
            {
                "name": graph.name(j),
                "marginal_leak": told.marginal[j],
                "error": told.marginal_error[j],
                "leak_at_the_margin": told.marginal[j] * budgets[j],
                "budget": budgets[j],
            }
            for j in worst
        ]
        if client is not None:
            answer["about_client"] = about_client(game, terms, told, client, top, protect_share)
    return answer


def about_client(
    game: Game, terms: Terms, told: WhoLeaks, client: str, top: int, protect_share: float
) -> dict[str, Any]:
    """Who leaks about one client, and whose budgets would have to go so that only a share of the leak is left."""
    import numpy as np

    from mppfl.leakage import protect

    graph, budgets, position = game.graph, terms.budgets, game.graph.index(client)
    slopes = told.slopes_of(position)
    answer: dict[str, Any] = {
        "name": client,
        "r_leak": told.nats[position],
        "leaks_from": [
            {"name": graph.name(j), "slope": slopes[j], "budget": budgets[j]}
            for j in np.argsort(-slopes * budgets, kind="stable")[:top].tolist()
        ],
    }
    target = protect_share * float(told.nats[position])
    if told.model is None:
        answer["protection"] = {"reason": f"computed for small networks only, not for {game.num_clients:,} clients"}
    elif target <= 0:
        answer["protection"] = {"reason": "nothing leaks about this client"}
    else:
        found = protect(told.model, budgets, position, target=target)
        taken = np.argsort(-found.withdrawn, kind="stable")[: min(top, found.num_withdrawn)].tolist()
        answer["protection"] = {
            "target": target,
            "level_after": found.level_after,
            "budget_withdrawn": found.total,
            "share_of_all_budgets": found.total / float(budgets.sum()),
            "num_clients": found.num_withdrawn,
            "rewards_forgone": float(np.sum(terms.prices * found.withdrawn)),
            "largest": [{"name": graph.name(j), "withdrawn": found.withdrawn[j]} for j in taken],
        }
    return answer


def show(found: dict[str, Any]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from mppfl.game import SETTLE

    # Names are shown as they are: in "x[a]" nothing is markup, in "a:b:c" nothing an emoji.
    console = Console(width=None if Console().is_terminal else 100, markup=False, emoji=False)
    console.print(f"round {found['round_index']}, reward rate {found['reward_rate']:.4g} per unit of budget")

    def table(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
        shown = Table(title=title, title_justify="left", box=SIMPLE)
        shown.add_column("client")
        for heading in columns.values():
            shown.add_column(heading, justify="right")
        for row in rows:
            shown.add_row(row["name"], *("-" if row[key] != row[key] else f"{row[key]:.4g}" for key in columns))
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
    if "columns" in found:
        show_leaks(found, console, table)
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
    if found["key_players_assume"] != SETTLE:  # the usual case needs no words
        console.print(f"key players: {found['key_players_assume']}", highlight=False)


def show_leaks(found: dict[str, Any], console: Any, table: Any) -> None:
    headings = {
        "r_model": "R_model, no unit",
        "r_bound": "R_bound, nats",
        "r_leak": "R_leak, nats",
        "error": "± probes",
    }
    table("What others' uploads tell", found["columns"], headings)
    for column, text in found["assumes"].items():
        console.print(f"{column.replace('r_', 'R_')}: {text}", highlight=False)
    if "endanger_others_most" in found:
        console.print(f"leak of all clients together {found['total_leak']:.4g} nats")
        table(
            "Endanger others most",
            found["endanger_others_most"],
            {"marginal_leak": "nats per unit of budget", "leak_at_the_margin": "times budget", "budget": "own budget"},
        )
    if "about_client" not in found:
        return
    one = found["about_client"]
    title = f"Leak about {one['name']}, {one['r_leak']:.4g} nats, comes from"
    table(title, one["leaks_from"], {"slope": "nats per unit of budget", "budget": "own budget"})
    cost = one["protection"]
    if "reason" in cost:
        console.print(f"protection: {cost['reason']}")
    else:
        console.print(
            f"protection: to bring it down to {cost['target']:.4g} nats, withdraw at most "
            f"{cost['budget_withdrawn']:.4g} of budget ({100 * cost['share_of_all_budgets']:.3g} % of all) "
            f"from {cost['num_clients']:,} clients, who forgo rewards of {cost['rewards_forgone']:.4g}"
        )
