"""mppfl risk (alone: one file a command): who exposes whom, and who matters most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs
from mppfl.errors import BadInput

if TYPE_CHECKING:
    from mppfl.game import Game, RoundTerms
    from mppfl.leakage import Levels


@inputs.with_game("num_rounds", "reward_rate")
def risk_command(
    asked: inputs.Asked,
    round_index: Annotated[int, inputs.option("--round", "The round whose budgets count.")] = 1,
    mechanism: inputs.MechanismOption = "mppfl",
    client: Annotated[str | None, typer.Option(help="Explain this client's exposure by source and hop.")] = None,
    top: Annotated[int, typer.Option(help="How many clients to list.")] = 10,
    exposure_sources: inputs.AttributeOption = None,
    coupling: inputs.CouplingOption = None,
    leak_price: inputs.LeakPriceOption = None,
    protect_share: Annotated[
        float,
        inputs.option(
            "--protect-share",
            "With --client and --attribute: reduce the client's predicted leakage to this fraction.",
            inputs.LEAKAGE,
        ),
    ] = 0.5,
    json: inputs.JsonOption = False,
    debug: inputs.DebugOption = False,
) -> None:
    """Who exposes a client, by hop; who is most exposed; whose leaving or budget matters most to the others.

    With --attribute or --coupling also R_model, R_bound and R_leak, and who leaks about whom. The mechanism may be
    leakage_priced, with --attribute and --leak-price.
    """
    import numpy as np

    from mppfl.arrays import require_count, require_number
    from mppfl.experiment import build_game, mechanism_of, require_playable
    from mppfl.game import Horizon, doubts_about

    require_count(round_index, "round")
    require_count(top, "top")
    require_number(protect_share, "protect_share", 0.0, 1.0)
    if inputs.is_typed("protect_share") and (client is None or exposure_sources is None):
        raise BadInput(f"--protect-share={protect_share:g} is about one client's leak. Give --client and --attribute.")
    is_priced, spec = mechanism == inputs.PRICED, asked.game
    if is_priced:
        inputs.check_leak_price(exposure_sources, leak_price)
    else:
        mechanism = asked.one_mechanism(mechanism)
        if leak_price is not None:
            raise BadInput(
                f"--leak-price={leak_price:g} means nothing to {mechanism}. Choose {inputs.PRICED}, or omit it."
            )
        require_playable(replace(spec, reward_rate="own"), [mechanism])
    with inputs.working("reading the network"):
        game = build_game(spec)
    with inputs.working("solving"):
        if exposure_sources is not None and leak_price is not None:  # only leakage_priced may have a price
            function = inputs.priced_mechanism(inputs.exact_leak(game.graph, exposure_sources), leak_price)
        else:
            function = mechanism_of(spec, mechanism)
        plan = function(game, Horizon(np.array([round_index]), None, spec.seed, spec.participation, spec.against))
        terms = plan[0]
        if not np.isfinite(terms.budgets).all():
            raise BadInput(
                f"{mechanism} uses infinite budgets, so exposure is infinite. Choose a mechanism with noise."
            )
        answer = everybody(game, terms, top)
        if client is not None:
            answer["client"] = one_client(game, terms, client, top)
        if exposure_sources is not None or coupling is not None:
            answer |= leaks(game, terms, exposure_sources, coupling, top, spec.seed, client, protect_share)
        answer["notes"] = [*doubts_about(game), *(plan.notes if is_priced else ())]
    inputs.warn(answer["notes"])
    if json:
        inputs.print_json(answer)
    else:
        show(answer)


def everybody(game: Game, terms: RoundTerms, top: int) -> dict[str, Any]:
    """The most exposed clients, those whose budgets cost others most, and the key players."""
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


def one_client(game: Game, terms: RoundTerms, client: str, top: int) -> dict[str, Any]:
    """One client's exposure: in all, by hop, and by its largest sources."""
    import numpy as np

    from mppfl.game import privacy_loss, utility
    from mppfl.network import exposure_sources

    position = game.graph.index(client)
    parts = exposure_sources(game.propagation, position, terms.budgets)
    by_hop = np.bincount(parts.hops, weights=parts.amounts, minlength=game.propagation.max_hops + 1)[1:]
    by_source: dict[int, dict[int, float]] = {}
    for source, hop, amount in zip(parts.sources.tolist(), parts.hops.tolist(), parts.amounts.tolist(), strict=True):
        by_source.setdefault(source, {})[hop] = amount
    totals = {source: sum(hops.values()) for source, hops in by_source.items()}
    largest = sorted(totals, key=lambda source: -totals[source])[:top]
    return {
        "name": client,
        "budget": terms.budgets[position],
        "external_risk": float(parts.amounts.sum()),
        "privacy_loss": privacy_loss(game, terms.budgets)[position],
        "utility": utility(game, terms.prices, terms.budgets)[position],
        "by_hop": {str(hop): float(amount) for hop, amount in enumerate(by_hop, start=1)},
        "sources": [
            {"name": game.graph.name(source), "amount": totals[source], "by_hop": by_source[source]}
            for source in largest
        ],
    }


MODEL_ASSUMES = "the paper's index of the game's walks: no unit, no statement about anybody's data"


def leaks(
    game: Game,
    terms: RoundTerms,
    exposure_sources: Path | None,
    coupling: float | None,
    top: int,
    seed: int,
    client: str | None,
    protect_share: float,
) -> dict[str, Any]:
    """R_model, R_bound and R_leak side by side, what each assumes, and who leaks about whom."""
    import numpy as np

    from mppfl.leakage import leak_model, r_bound, read_values

    graph, budgets = game.graph, terms.budgets
    missing = np.full(game.num_clients, np.nan)
    bound = None if coupling is None else r_bound(graph, coupling, budgets)
    sample_leak = (
        None
        if exposure_sources is None
        else leak_model(graph, read_values(exposure_sources), seed=seed).levels(budgets)
    )
    model, limits = game.propagation @ budgets, missing if bound is None else bound.nats
    nats, errors = (missing, missing) if sample_leak is None else (sample_leak.nats, sample_leak.error)
    order = np.argsort(-(model if sample_leak is None else nats), kind="stable")[:top].tolist()
    answer: dict[str, Any] = {
        "columns": [
            {"name": graph.name(i), "r_model": model[i], "r_bound": limits[i], "r_leak": nats[i], "error": errors[i]}
            for i in order
        ],
        "assumes": {
            "r_model": MODEL_ASSUMES,
            "r_bound": "none: no couplings given" if bound is None else bound.reason or f"nats; {bound.premises}",
            "r_leak": "none: no public sample given" if sample_leak is None else inputs.LEAK_ASSUMES,
        },
    }
    if sample_leak is not None:
        marginal, marginal_error = sample_leak.marginal()
        worst = np.argsort(-marginal * budgets, kind="stable")[:top].tolist()
        answer["total_leak"] = float(sample_leak.nats.sum())
        answer["endanger_others_most"] = [
            {
                "name": graph.name(j),
                "marginal_leak": marginal[j],
                "error": marginal_error[j],
                "leak_at_the_margin": marginal[j] * budgets[j],
                "budget": budgets[j],
            }
            for j in worst
        ]
        if client is not None:
            answer["about_client"] = about_client(game, terms, sample_leak, client, top, protect_share)
    return answer


def about_client(
    game: Game, terms: RoundTerms, sample_leak: Levels, client: str, top: int, protect_share: float
) -> dict[str, Any]:
    """Who leaks about one client, and whose budgets would have to go so that only a share of the leak is left."""
    import numpy as np

    from mppfl.leakage import fits_matrices, protect

    graph, budgets, position = game.graph, terms.budgets, game.graph.index(client)
    slopes = sample_leak.slopes_of(position)
    answer: dict[str, Any] = {
        "name": client,
        "r_leak": sample_leak.nats[position],
        "leaks_from": [
            {"name": graph.name(j), "slope": slopes[j], "budget": budgets[j]}
            for j in np.argsort(-slopes * budgets, kind="stable")[:top].tolist()
        ],
    }
    target = protect_share * float(sample_leak.nats[position])
    if not fits_matrices(game.num_clients):
        answer["protection"] = {"reason": f"computed for small networks only, not for {game.num_clients:,} clients"}
    elif target <= 0:
        answer["protection"] = {"reason": "nothing leaks about this client"}
    else:
        withdrawn = protect(sample_leak.model, budgets, position, target=target)
        num_withdrawn = int(np.count_nonzero(withdrawn))
        taken = np.argsort(-withdrawn, kind="stable")[: min(top, num_withdrawn)].tolist()
        answer["protection"] = {
            "target": target,
            "level_after": sample_leak.model.levels(budgets - withdrawn).nats[position],
            "budget_withdrawn": float(withdrawn.sum()),
            "share_of_all_budgets": float(withdrawn.sum()) / float(budgets.sum()),
            "num_clients": num_withdrawn,
            "rewards_forgone": float(np.sum(terms.prices * withdrawn)),
            "largest": [{"name": graph.name(j), "withdrawn": withdrawn[j]} for j in taken],
        }
    return answer


def show(answer: dict[str, Any]) -> None:
    """Tables for a reader."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from mppfl.game import SETTLE

    # Names are shown as they are: in "x[a]" nothing is markup, in "a:b:c" nothing an emoji.
    console = Console(width=None if Console().is_terminal else 100, markup=False, emoji=False)
    console.print(f"round {answer['round_index']}, reward rate {answer['reward_rate']:.4g} per unit of budget")

    def table(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
        shown = Table(title=title, title_justify="left", box=SIMPLE)
        shown.add_column("client")
        for heading in columns.values():
            shown.add_column(heading, justify="right")
        for row in rows:
            shown.add_row(row["name"], *("-" if row[key] != row[key] else f"{row[key]:.4g}" for key in columns))
        console.print(shown)

    if "client" in answer:
        one = answer["client"]
        console.print(
            f"{one['name']}: own budget {one['budget']:.4g}, external risk {one['external_risk']:.4g}, "
            f"privacy loss {one['privacy_loss']:.4g}, utility {one['utility']:.4g}"
        )
        hops = ", ".join(f"{amount:.4g} at hop {hop}" for hop, amount in one["by_hop"].items())
        console.print(f"external risk by hop: {hops}")
        table("Exposed by", one["sources"], {"amount": "external risk"})
    if "columns" in answer:
        _show_leaks(answer, console, table)
    table("Most exposed", answer["most_exposed"], {"external_risk": "external risk", "budget": "own budget"})
    table(
        "Their budgets cost the others most",
        answer["cost_others_most"],
        {"harm_imposed": "harm, money", "exposure_imposed": "external risk caused", "budget": "own budget"},
    )
    table(
        "Key players: whose leaving relieves the others most",
        answer["key_players"],
        {"exposure_relief": "external risk removed", "budgets_lost": "budgets lost"},
    )
    if answer["key_players_assume"] != SETTLE:  # the usual case needs no note
        console.print(f"key players: {answer['key_players_assume']}", highlight=False)


def _show_leaks(answer: dict[str, Any], console: Any, table: Any) -> None:
    headings = {
        "r_model": "R_model, no unit",
        "r_bound": "R_bound, nats",
        "r_leak": "R_leak, nats",
        "error": "± probes",
    }
    table("What others' uploads reveal", answer["columns"], headings)
    for column, text in answer["assumes"].items():
        console.print(f"{column.replace('r_', 'R_')}: {text}", highlight=False)
    if "endanger_others_most" in answer:
        console.print(f"leak of all clients together {answer['total_leak']:.4g} nats")
        table(
            "Leak most about others",
            answer["endanger_others_most"],
            {"marginal_leak": "nats per unit of budget", "leak_at_the_margin": "times budget", "budget": "own budget"},
        )
    if "about_client" not in answer:
        return
    one = answer["about_client"]
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
