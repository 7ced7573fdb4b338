"""What commands ask about leaks, and what they make of it: a public sample's leak, and the mechanism that prices it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mppfl.arrays import Array
    from mppfl.game import Mechanism
    from mppfl.leakage import LeakModel, LeastLeak
    from mppfl.network import SocialGraph

PRICED = "leakage_priced"
LEAK_ASSUMES = (
    "nats; the attribute follows a Gaussian field on the links, its constants fitted on the public sample; "
    "client-level budgets spent once; an estimate, not a bound"
)

AttributeOption = Annotated[
    Path | None, typer.Option("--attribute", help="CSV: name, value (±1 or 0/1) of a public sample, for R_leak.")
]
LeakPriceOption = Annotated[
    float | None, typer.Option("--leak-price", help="For leakage_priced: money that one nat of leak costs.")
]


def require_what_prices_need(attribute: Path | None, leak_price: float | None) -> None:
    """Refuses leakage_priced without its two options, or with a price that is none, before anything is computed."""
    from mppfl.arrays import require_number
    from mppfl.errors import BadInput

    if leak_price is None:
        raise BadInput(
            f"{PRICED} needs --leak-price, the money a nat costs, and --attribute, a public sample. Give both."
        )
    if attribute is None:
        raise BadInput(f"--leak-price={leak_price:g} has no leak to price. Give --attribute, a public sample, too.")
    require_number(leak_price, "--leak-price", 0.0, 1e300, open_ends=False)


def exact_leak(graph: SocialGraph, attribute: Path) -> LeakModel:
    """The leak model of the sample in the file. Raises where the network is too large for matrices."""
    from mppfl.leakage import leak_model, read_values, require_dense

    require_dense(graph.num_clients, PRICED)
    return leak_model(graph, read_values(attribute))


def priced_mechanism(model: LeakModel, leak_price: float) -> Mechanism:
    """leakage_priced with the leak that the public sample predicts."""
    from functools import partial

    from mppfl.leakage import leakage_priced

    return partial(leakage_priced, leak=model.smooth_total_and_marginal, leak_price=leak_price)


@dataclass(frozen=True, eq=False, slots=True)
class SampleLeak:
    """What a public sample predicts to leak on one network.

    total  budgets -> Σ_i R_leak,i in nats
    model  the exact model behind it, or None on a large network, where the total is estimated by random probes
    """

    total: Callable[[Array], float]
    model: LeakModel | None


def leak_of_sample(graph: SocialGraph, attribute: Path, leak_price: float | None, seed: int) -> SampleLeak:
    """The leak of the sample in the file, exact where the network's size allows it, or where a price asks for it."""
    from mppfl.leakage import DENSE_LIMIT

    if leak_price is None and graph.num_clients > DENSE_LIMIT:
        return SampleLeak(_estimated_total(graph, attribute, seed), None)
    model = exact_leak(graph, attribute)
    return SampleLeak(model.total, model)


def priced_among(leak: SampleLeak, leak_price: float | None) -> dict[str, Mechanism]:
    """leakage_priced by its name, or nothing where no price was given."""
    return {} if leak.model is None or leak_price is None else {PRICED: priced_mechanism(leak.model, leak_price)}


def _estimated_total(graph: SocialGraph, attribute: Path, seed: int) -> Callable[[Array], float]:
    from mppfl.leakage import leak_estimator, read_attribute, read_values

    leak = leak_estimator(graph, read_attribute(graph, read_values(attribute)), seed)
    return lambda budgets: float(leak(budgets).nats.sum())


def leaks_as_json(least: list[LeastLeak]) -> dict[str, Any]:
    """What the figure `leak` is, and the least leakage of every game, or why there is none."""
    found: dict[str, Any] = {"reason": "computed for small networks only, of at most 3,000 clients"}
    if least:
        found = {"games": [{"game": number} | asdict(each) for number, each in enumerate(least)]}
        found |= {key: sum(game[key] for game in found["games"]) / len(least) for key in ("leak", "total_budget")}
    return {"leak_is": f"of all clients together in round 1, in {LEAK_ASSUMES}", "least_leakage": found}


def show_leaks(found: dict[str, Any]) -> None:
    """What the column means, and the least that could leak."""
    typer.echo(f"leak: {found['leak_is']}")
    least = found["least_leakage"]
    if "reason" in least:
        typer.echo(f"least leakage: {least['reason']}")
        return
    most = max(game["largest_budget"] for game in least["games"])
    typer.echo(
        f"least leakage found at social_agnostic's own sum of budgets, {least['total_budget']:.4g}: "
        f"{least['leak']:.4g} nats, no budget above {most:.4g}, whatever it costs clients"
    )
