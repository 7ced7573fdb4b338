"""mppfl calibrate: how an attribute leaks along a network, fitted on a public share of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask

if TYPE_CHECKING:
    from mppfl.leakage import Calibration, Correlation, RankCorrelation


def calibrate_command(
    graph: Annotated[Path, typer.Option("--graph", help="Links: source, target[, weight]; or GraphML.")],
    attribute: Annotated[Path, typer.Option("--attribute", help="CSV: name, value (±1 or 0/1).")],
    public_share: Annotated[
        float, typer.Option("--public-share", help="Share of the known values that may be used; the rest is not.")
    ] = 0.3,
    budget: Annotated[float, typer.Option("--budget", help="Client-level ρ of the uploads that are tried out.")] = 0.3,
    seed: ask.SeedOption = 0,
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Homophily, the Gaussian field's constants with intervals, and whether clients can be ranked by what leaks.

    Links count in both directions. Up to 3,000 clients the field is exact, above it is estimated by probes.
    """
    from mppfl.leakage import calibrate, read_values
    from mppfl.network import read_graph

    rng = ask.generator(seed)
    with ask.working("reading the network"):
        network = read_graph(graph, undirected=True, isolated="keep", self_loops="drop")
        values = read_values(attribute)
    with ask.working("calibrating"):
        found = calibrate(network, values, rng=rng, public_share=public_share, budget=budget)
    if json:
        ask.print_json(as_object(found))
    else:
        for line in lines(found):
            typer.echo(line)


def as_object(found: Calibration) -> dict[str, Any]:
    """The calibration as one object, all the way down."""
    from dataclasses import asdict

    return asdict(found) | {"beta_at_limit": found.beta_at_limit}


def lines(found: Calibration) -> list[str]:
    """The calibration as aligned lines, ending with what can be said."""
    fit, alike = found.fit, found.homophily
    how = "exact" if found.exact else "estimated by probes"
    shown = [
        f"{'network':<16}{found.num_clients:,} clients, {found.num_links:,} friendships",
        f"{'public':<16}{fit.num_public:,} of {found.num_known:,} known values, {100 * fit.rate:.3g} % positive",
        f"{'homophily':<16}{_correlation(alike.link)} between friends",
        f"{'by distance':<16}{', '.join(map(_correlation, alike.by_distance))} at 1, 2, 3 links",
        f"{'by walks':<16}{', '.join(map(_correlation, alike.by_walks))} over 1 to 4 steps",
        f"{'walk decay':<16}{_number(alike.walk_decay)}per step",
        f"{'beta':<16}{fit.beta:<10.3g}({_beta_range(found)}), {how}",
        f"{'eta':<16}{fit.eta:<10.3g}({found.eta[0]:.3g} to {found.eta[1]:.3g}), share that no friend tells",
        f"{'gain':<16}{fit.gain_per_client:<10.3g}nats per public client over independence",
        f"{'friend slope':<16}{fit.friend_slope:<10.3g}({found.friend_slope[0]:.3g} to {found.friend_slope[1]:.3g})",
        f"{'saturation':<16}{fit.friend_covariance:<10.3g}covariance of two friends given the client",
    ]
    if found.public_leak is not None:
        mean, error = found.public_leak
        told = f"{mean - 1.96 * error:.3g} to {mean + 1.96 * error:.3g}"
        shown.append(
            f"{'leak tried out':<16}{mean:<10.3g}nats ({told}), uploads of the public share, ρ = {found.budget:g}"
        )
        shown.append(f"{'R_gp':<16}{_rank(found.by_field)} with it")
        shown.append(f"{'R_sat':<16}{_rank(found.by_friends)} with it")
    if found.index is not None:
        best = found.index
        shown.append(
            f"{'R_model':<16}{_rank(best.agreement)} at best: hop_decay {best.hop_decay:g}, max_hops {best.max_hops}, "
            f"normalisation {best.normalisation}"
        )
    return [*shown, found.verdict]


def _beta_range(found: Calibration) -> str:
    low, high = found.beta
    return f"at least {low:.3g}: {high:.3g} is the largest tried" if found.beta_at_limit else f"{low:.3g} to {high:.3g}"


def _correlation(found: Correlation) -> str:
    if found.value != found.value:
        return "no pair"
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _rank(found: RankCorrelation) -> str:
    if found.reason:
        return f"no rank correlation, {found.reason}"
    return f"Spearman {found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _number(value: float | None) -> str:
    return f"{'none':<10}" if value is None else f"{value:<10.3g}"
