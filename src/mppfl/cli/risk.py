"""mppfl risk (alone: one file a command): who exposes whom, and who matters most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs
from mppfl.errors import BadInput

if TYPE_CHECKING:
    from mppfl.arrays import Array
    from mppfl.game import Game, RoundTerms
    from mppfl.leakage import Levels


@inputs.with_game("num_rounds", "reward_rate")
def risk_command(
    asked: inputs.Asked,
    round_index: Annotated[int, inputs.option("The round whose budgets count.", name="--round")] = 1,
    mechanism: inputs.MechanismOption = "mppfl",
    client: Annotated[str | None, typer.Option(help="Explain this client's exposure by source and hop.")] = None,
    top: Annotated[int, typer.Option(help="How many clients to list.")] = 10,
    attribute: inputs.AttributeOption = None,
    coupling: inputs.CouplingOption = None,
    leak_price: inputs.LeakPriceOption = None,
    protect_share: Annotated[
        float, inputs.option("With --client and --attribute: share of its leak that may stay.", inputs.LEAKAGE)
    ] = 0.5,
    json: inputs.JsonOption = False,
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
    if inputs.is_typed("protect_share") and (client is None or attribute is None):
        raise BadInput(f"--protect-share={protect_share:g} is about one client's leak. Give --client and --attribute.")
    is_priced, spec = mechanism == inputs.PRICED, asked.game
    if is_priced:
        inputs.check_leak_price(attribute, leak_price)
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
        if attribute is not None and leak_price is not None:  # only leakage_priced may have a price
            model = inputs.leak_of_sample(game.graph, attribute, spec.seed, leak_price)
            function = inputs.priced_mechanism(model, leak_price)
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
        if attribute is not None or coupling is not None:
            answer |= leaks(game, terms, attribute, coupling, top, spec.seed, client, protect_share)
        answer["notes"] = [*doubts_about(game), *(plan.notes if is_priced else ())]
    inputs.warn(answer["notes"])
    if json:
        inputs.print_json(answer)
    else:
        show(answer)


def everybody(game: Game, terms: RoundTerms, top: int) -> dict[str, Any]:
    """The most exposed clients, those whose budgets cost others most, and the key players."""
    from mppfl.game import exposure_imposed, harm_imposed, key_players

    budgets, risks = terms.budgets, game.propagation @ terms.budgets
    imposed, harm = exposure_imposed(game, budgets), harm_imposed(game, budgets)
    key = key_players(game, terms.prices, budgets, top)
    costly = {"harm_imposed": harm, "exposure_imposed": imposed, "budget": budgets}
    return {
        "round_index": terms.round_index,
        "reward_rate": terms.reward_rate,
        "most_exposed": _listed(game, _largest(risks, top), {"external_risk": risks, "budget": budgets}),
        "cost_others_most": _listed(game, _largest(harm, top), costly),
        "key_players": [
            {"name": game.graph.name(int(k)), "exposure_relief": relief, "budgets_lost": lost}
            for k, relief, lost in zip(key.clients, key.exposure_relief, key.budgets_lost, strict=True)
        ],
        "key_players_assume": key.assumes,
    }


def _largest(values: Array, top: int) -> list[int]:
    """Clients with the largest values, largest first."""
    import numpy as np

    order: list[int] = np.argsort(-values, kind="stable")[:top].tolist()
    return order


def _listed(game: Game, clients: list[int], columns: dict[str, Array]) -> list[dict[str, Any]]:
    """For each of these clients its name, and its entry of every column."""
    return [{"name": game.graph.name(i)} | {key: values[i] for key, values in columns.items()} for i in clients]


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
    return {
        "name": client,
        "budget": terms.budgets[position],
        "external_risk": float(parts.amounts.sum()),
        "privacy_loss": privacy_loss(game, terms.budgets)[position],
        "utility": utility(game, terms.prices, terms.budgets)[position],
        "by_hop": {str(hop): float(amount) for hop, amount in enumerate(by_hop, start=1)},
        "sources": [
            {"name": game.graph.name(source), "amount": totals[source], "by_hop": by_source[source]}
            for source in sorted(totals, key=lambda source: -totals[source])[:top]
        ],
    }


MODEL_ASSUMES = "the paper's index of the game's walks: no unit, no statement about anybody's data"


def leaks(
    game: Game,
    terms: RoundTerms,
    attribute: Path | None,
    coupling: float | None,
    top: int,
    seed: int,
    client: str | None,
    protect_share: float,
) -> dict[str, Any]:
    """R_model, R_bound and R_leak side by side, what each assumes, and who leaks about whom."""
    import numpy as np

    from mppfl.leakage import leak_model, r_bound, read_values

    budgets, model = terms.budgets, game.propagation @ terms.budgets
    missing = np.full(game.num_clients, np.nan)
    columns = {"r_model": model, "r_bound": missing, "r_leak": missing, "error": missing}
    assumes = {
        "r_model": MODEL_ASSUMES,
        "r_bound": "none: no couplings given",
        "r_leak": "none: no public sample given",
    }
    by_sample: dict[str, Any] = {}
    if coupling is not None:
        bound = r_bound(game.graph, coupling, budgets)
        columns["r_bound"], assumes["r_bound"] = bound.nats, bound.reason or f"nats; {bound.premises}"
    if attribute is not None:
        sample_leak = leak_model(game.graph, read_values(attribute), seed=seed).levels(budgets)
        columns |= {"r_leak": sample_leak.nats, "error": sample_leak.error}
        assumes["r_leak"] = inputs.LEAK_ASSUMES
        marginal, error = sample_leak.marginal()
        dangers = {"marginal_leak": marginal, "error": error, "leak_at_the_margin": marginal * budgets}
        worst = _listed(game, _largest(marginal * budgets, top), dangers | {"budget": budgets})
        by_sample = {"total_leak": float(sample_leak.nats.sum()), "endanger_others_most": worst}
        if client is not None:
            by_sample["about_client"] = about_client(game, terms, sample_leak, client, top, protect_share)
    order = _largest(model if attribute is None else columns["r_leak"], top)
    return {"columns": _listed(game, order, columns), "assumes": assumes} | by_sample


def about_client(
    game: Game, terms: RoundTerms, sample_leak: Levels, client: str, top: int, protect_share: float
) -> dict[str, Any]:
    """Who leaks about one client, and whose budgets would have to go so that only a share of the leak is left."""
    import numpy as np

    from mppfl.leakage import fits_matrices, protect

    budgets, position = terms.budgets, game.graph.index(client)
    slopes, target = sample_leak.slopes_of(position), protect_share * float(sample_leak.nats[position])
    protection: dict[str, Any]
    if not fits_matrices(game.num_clients):
        protection = {"reason": f"computed for small networks only, not for {game.num_clients:,} clients"}
    elif target <= 0:
        protection = {"reason": "nothing leaks about this client"}
    else:
        withdrawn = protect(sample_leak.model, budgets, position, target=target)
        num_withdrawn = int(np.count_nonzero(withdrawn))
        protection = {
            "target": target,
            "level_after": sample_leak.model.levels(budgets - withdrawn).nats[position],
            "budget_withdrawn": float(withdrawn.sum()),
            "share_of_all_budgets": float(withdrawn.sum()) / float(budgets.sum()),
            "num_clients": num_withdrawn,
            "rewards_forgone": float(np.sum(terms.prices * withdrawn)),
            "largest": _listed(game, _largest(withdrawn, min(top, num_withdrawn)), {"withdrawn": withdrawn}),
        }
    return {
        "name": client,
        "r_leak": sample_leak.nats[position],
        "leaks_from": _listed(game, _largest(slopes * budgets, top), {"slope": slopes, "budget": budgets}),
        "protection": protection,
    }


HEADINGS = {  # of a table's columns
    "amount": "external risk",
    "external_risk": "external risk",
    "budget": "own budget",
    "harm_imposed": "harm, money",
    "exposure_imposed": "external risk caused",
    "exposure_relief": "external risk removed",
    "budgets_lost": "budgets lost",
    "r_model": "R_model, no unit",
    "r_bound": "R_bound, nats",
    "r_leak": "R_leak, nats",
    "error": "± probes",
    "marginal_leak": "nats per unit of budget",
    "leak_at_the_margin": "times budget",
    "slope": "nats per unit of budget",
}


def show(answer: dict[str, Any]) -> None:
    """Tables for a reader."""
    from mppfl.game import SETTLE

    typer.echo(f"round {answer['round_index']}, reward rate {answer['reward_rate']:.4g} per unit of budget")
    if "client" in answer:
        one = answer["client"]
        typer.echo(
            f"{one['name']}: own budget {one['budget']:.4g}, external risk {one['external_risk']:.4g}, "
            f"privacy loss {one['privacy_loss']:.4g}, utility {one['utility']:.4g}"
        )
        hops = ", ".join(f"{amount:.4g} at hop {hop}" for hop, amount in one["by_hop"].items())
        typer.echo(f"external risk by hop: {hops}")
        _table("Exposed by", one["sources"], "amount")
    if "columns" in answer:
        _show_leaks(answer)
    _table("Most exposed", answer["most_exposed"], "external_risk", "budget")
    costly = answer["cost_others_most"]
    _table("Their budgets cost the others most", costly, "harm_imposed", "exposure_imposed", "budget")
    title = "Key players: whose leaving relieves the others most"
    _table(title, answer["key_players"], "exposure_relief", "budgets_lost")
    if answer["key_players_assume"] != SETTLE:  # the usual case needs no note
        typer.echo(f"key players: {answer['key_players_assume']}")


def _table(title: str, rows: list[dict[str, Any]], *keys: str) -> None:
    cells = [[row["name"], *("-" if row[key] != row[key] else f"{row[key]:.4g}" for key in keys)] for row in rows]
    inputs.print_table(title, ["client", *(HEADINGS[key] for key in keys)], cells)


def _show_leaks(answer: dict[str, Any]) -> None:
    _table("What others' uploads reveal", answer["columns"], "r_model", "r_bound", "r_leak", "error")
    for column, text in answer["assumes"].items():
        typer.echo(f"{column.replace('r_', 'R_')}: {text}")
    if "endanger_others_most" in answer:
        typer.echo(f"leak of all clients together {answer['total_leak']:.4g} nats")
        worst = answer["endanger_others_most"]
        _table("Leak most about others", worst, "marginal_leak", "leak_at_the_margin", "budget")
    if "about_client" not in answer:
        return
    one = answer["about_client"]
    cost = one["protection"]
    _table(f"Leak about {one['name']}, {one['r_leak']:.4g} nats, comes from", one["leaks_from"], "slope", "budget")
    if "reason" in cost:
        typer.echo(f"protection: {cost['reason']}")
    else:
        typer.echo(
            f"protection: to bring it down to {cost['target']:.4g} nats, withdraw at most "
            f"{cost['budget_withdrawn']:.4g} of budget ({100 * cost['share_of_all_budgets']:.3g} % of all) "
            f"from {cost['num_clients']:,} clients, who forgo rewards of {cost['rewards_forgone']:.4g}"
        )
