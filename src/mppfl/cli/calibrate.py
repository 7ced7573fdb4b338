"""mppfl calibrate (alone: one file a command): how an attribute leaks along a network, fitted on a sample."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mppfl.cli import inputs

if TYPE_CHECKING:
    from mppfl.leakage import Calibration, Correlation, RankCorrelation


def calibrate_command(
    graph: Annotated[Path, inputs.option("Edge list: source, target[, weight]; or GraphML.")],
    attribute: Annotated[Path, inputs.option("CSV: name, value (±1 or 0/1).")],
    public_share: Annotated[float, inputs.option("Share of the values used as the public sample.")] = 0.3,
    budget: Annotated[float, inputs.option("Client-level ρ of the simulated uploads.")] = 0.3,
    undirected: Annotated[bool, inputs.flag("--undirected", "Here edges always run both ways.")] = True,
    seed: inputs.SeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Fit homophily and the Gaussian field on a public sample, and test whether clients can be ranked by leakage.

    Edges run both ways. Up to 3,000 clients the field is exact, above it is estimated by random probes.
    """
    from mppfl.leakage import calibrate, read_values
    from mppfl.network import read_graph

    rng = inputs.generator(seed)
    with inputs.working("reading the network"):
        network = read_graph(graph, undirected=True, isolated="keep", self_loops="drop")
        values = read_values(attribute)
    with inputs.working("calibrating"):
        calibration = calibrate(network, values, rng=rng, public_share=public_share, budget=budget)
    if json:
        inputs.print_json(asdict(calibration) | {"beta_at_limit": calibration.beta_at_limit})
    else:
        inputs.print_lines(lines(calibration))
        typer.echo(calibration.verdict)


def lines(calibration: Calibration) -> dict[str, str]:
    """The calibration as labelled lines."""
    fit, homophily, eta = calibration.fit, calibration.homophily, calibration.eta
    method = "exact" if calibration.exact else "estimated by probes"
    low, high = calibration.beta
    at_limit = f"at least {low:.3g}: {high:.3g} is the largest tried"
    beta_range = at_limit if calibration.beta_at_limit else f"{low:.3g} to {high:.3g}"
    decay = "none" if homophily.walk_decay is None else f"{homophily.walk_decay:.3g}"
    slope_low, slope_high = calibration.friend_slope
    texts = {
        "network": f"{calibration.num_clients:,} clients, {calibration.num_edges:,} friendships",
        "public": f"{fit.num_public:,} of {calibration.num_known:,} known values, {100 * fit.rate:.3g} % positive",
        "homophily": f"{_correlation(homophily.edge)} between friends",
        "by distance": f"{', '.join(map(_correlation, homophily.by_distance))} at 1, 2, 3 hops",
        "by walks": f"{', '.join(map(_correlation, homophily.by_walks))} over 1 to 4 steps",
        "walk decay": f"{decay:<10}per step",
        "beta": f"{fit.beta:<10.3g}({beta_range}), {method}",
        "eta": f"{fit.eta:<10.3g}({eta[0]:.3g} to {eta[1]:.3g}), share of variance independent of friends",
        "gain": f"{fit.gain_per_client:<10.3g}nats per public client over independence",
        "friend slope": f"{fit.friend_slope:<10.3g}({slope_low:.3g} to {slope_high:.3g})",
        "saturation": f"{fit.friend_covariance:<10.3g}covariance of two friends given the client",
    }
    if calibration.public_leak is not None:
        mean, error = calibration.public_leak
        interval = f"{mean - 1.96 * error:.3g} to {mean + 1.96 * error:.3g}"
        uploads = f"simulated uploads of the public sample, ρ = {calibration.budget:g}"
        texts["measured leak"] = f"{mean:<10.3g}nats ({interval}), {uploads}"
        texts["R_gp"] = f"{_rank(calibration.by_field)} with it"
        texts["R_sat"] = f"{_rank(calibration.by_friends)} with it"
    if calibration.index is not None:
        best = calibration.index
        constants = f"hop_decay {best.hop_decay:g}, max_hops {best.max_hops}, normalisation {best.normalisation}"
        texts["R_model"] = f"{_rank(best.agreement)} at best: {constants}"
    return texts


def _correlation(estimate: Correlation) -> str:
    if estimate.value != estimate.value:
        return "no pair"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _rank(estimate: RankCorrelation) -> str:
    if estimate.reason:
        return f"no rank correlation, {estimate.reason}"
    return f"Spearman {estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
