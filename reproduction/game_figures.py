"""The paper's figures of the game, played anew: φ per sweep, server cost and welfare, and both against α, K and N.

No training is needed: a data set enters by its rounds T and by the harm ε that its noise does. The paper gives neither
ε nor the constants in it. By eq. 11, ε = p β 𝒮²/(μ² |D|²) with p the model's parameters and |D| all training examples;
β 𝒮²/μ² is taken to be the same for all five data sets and chosen so that CIFAR-10 has the preset's ε = 0.1. Costs, λ
and τ are the preset's; networks are drawn as the paper says. Every seed draws one network with its clients, the same at
every place of an axis.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from mppfl.arrays import Array, require_count
from mppfl.errors import BadFile, BadInput
from mppfl.game import (
    Game,
    Horizon,
    Mechanism,
    Plan,
    dp_fedavg,
    draw_clients,
    evaluate,
    make_game,
    mppfl,
    mppfl_exact,
    noise_harm,
    preset,
    random,
    rounds_up_to,
    sarda_like,
    sarda_r,
    social_agnostic,
)
from mppfl.network import random_graph
from reproduction.algorithm_1 import fixed_point_trace
from reproduction.figure_files import Figure, Strand, figure_path, read_figure, write_figure
from reproduction.settings import EXTERNALITY_STRENGTH, MAX_HOPS, PRESET, SETTINGS

REFERENCE = "cifar-10"  # has the preset's ε: of the data sets in both tables, the one whose model the paper describes
NUM_PARAMETERS = {  # p of the data set's model: convolutions and dense layers
    "fashion-mnist": 1_663_370,
    "cifar-10": 1_756_426,
    "svhn": 9_225_610,
    "cifar-100": 14_765_988,
    "cinic-10": 1_756_426,
}

MECHANISMS: dict[str, Mechanism] = {
    "mppfl": mppfl,
    "mppfl_exact": mppfl_exact,
    "social_agnostic": social_agnostic,
    "random": random,
    "fixed_min": dp_fedavg.with_options(fixed_budget="min"),
    "fixed_mean": dp_fedavg.with_options(fixed_budget="mean"),
    "sarda_like": sarda_like,
    "sarda_r": sarda_r,
}
HELD = "held"  # MPPFL's clients at rates that its server chose elsewhere on the axis

SWEPT = "cinic-10"  # the data set of the paper's figures against α and K; φ's it does not say
STRENGTHS = tuple(round(0.01 * k, 2) for k in range(1, 11))
HOPS = tuple(range(1, 9))
SIZES = (20, 50, 80)
SIZED = ("cinic-10", "cifar-10")
PHI_ROUNDS = (1, 10, 20, 40, 60)
PHI_SWEEPS = 20
THRESHOLD = 1e-3  # ε₀, where the paper's Algorithm 1 stops
AXES: dict[str, tuple[str, Sequence[str | float]]] = {  # what runs along x, and its places
    "fig-phi": ("sweep", range(1, PHI_SWEEPS + 1)),
    "fig-cost": ("data set", list(SETTINGS)),
    "fig-welfare": ("data set", list(SETTINGS)),
    "fig-alpha": ("α", STRENGTHS),
    "fig-k": ("K", HOPS),
    "fig-n": ("N", SIZES),
}
MEASURED = "mean_edges"  # stands in a configuration, but follows from the seeds


@dataclass(frozen=True, slots=True)
class Place:
    """Where a game is played: the data set's setting, how many clients, how far and how strongly exposure reaches."""

    dataset: str
    num_clients: int = 20
    max_hops: int = MAX_HOPS
    externality_strength: float = EXTERNALITY_STRENGTH

    @property
    def num_rounds(self) -> int:
        return SETTINGS[self.dataset].num_rounds


@dataclass(frozen=True, slots=True)
class Totals:
    """What all rounds of a plan bring. Money, unless said.

    server_cost  Σ_t U_t (eq. 9)
    welfare      Σ_t Σ_i (paid − privacy cost) (eq. 23)
    mean_budget  of a client in a round, zCDP
    negative_utility   share of clients with negative utility, mean over rounds
    """

    server_cost: float
    welfare: float
    payments: float
    mean_budget: float
    negative_utility: float


QUANTITIES = tuple(field.name for field in fields(Totals))


# ---- one game -----------------------------------------------------------------------------------------------------


def harm_of(dataset: str) -> float:
    """ε of every client of a data set: eq. 11 with the constant that gives the reference data set the preset's ε."""

    def by_formula(name: str, ratio: float) -> float:
        sizes = np.array([float(SETTINGS[name].num_train)])
        return float(noise_harm(NUM_PARAMETERS[name], 1.0, sizes, smoothness_ratio=ratio)[0])

    return by_formula(dataset, preset(PRESET).noise_harm / by_formula(REFERENCE, 1.0))


def draw_game(place: Place, seed: int) -> Game:
    """The network and the clients of a seed, in a place."""
    rng = np.random.default_rng(seed)
    graph = random_graph("erdos_renyi", place.num_clients, rng=rng)
    clients = draw_clients(PRESET, place.num_clients, rng)
    constants = preset(PRESET)
    return make_game(
        graph,
        replace(clients, noise_harm=np.full(place.num_clients, harm_of(place.dataset))),
        max_hops=place.max_hops,
        hop_decay=constants.hop_decay,
        externality_strength=place.externality_strength,
        accuracy_weight=constants.accuracy_weight,
    )


@cache  # cost and welfare are two figures of the same games, and axes cross at the default place
def play(place: Place, seed: int) -> dict[tuple[str, str], Totals]:
    """Every mechanism under both conventions: (convention, mechanism) -> totals.

    At MPPFL's rates `mppfl_exact` is `mppfl`, so it stands under "own" alone.
    """
    game, rounds = draw_game(place, seed), rounds_up_to(place.num_rounds)
    ours = mppfl(game, Horizon(rounds))
    auction = totals(game, sarda_like(game, Horizon(rounds)))  # has its own prices under either convention
    done = {("common", "sarda_like"): auction, ("own", "sarda_like"): auction}
    done |= dict.fromkeys((("common", "mppfl"), ("own", "mppfl")), totals(game, ours))
    for convention, rates in (("common", ours.reward_rates), ("own", None)):
        for name, mechanism in MECHANISMS.items():
            if (convention, name) not in done and (convention, name) != ("common", "mppfl_exact"):
                done[convention, name] = totals(game, mechanism(game, Horizon(rounds, rates, seed)))
    return done


def play_at(place: Place, elsewhere: Place, seed: int) -> Totals:
    """MPPFL's clients in one place, at the rates that its server would choose elsewhere."""
    rounds = rounds_up_to(place.num_rounds)
    rates = mppfl(draw_game(elsewhere, seed), Horizon(rounds)).reward_rates
    game = draw_game(place, seed)
    return totals(game, mppfl(game, Horizon(rounds, rates)))


def totals(game: Game, plan: Plan) -> Totals:
    """Sums of the plan's outcome over all its rounds."""
    outcome = evaluate(game, plan)
    return Totals(
        server_cost=float(outcome.server_costs.sum()),
        welfare=float(outcome.welfare.sum()),
        payments=float(outcome.payments.sum()),
        mean_budget=float(plan.to_matrix().mean()),
        negative_utility=float(outcome.negative_utility.mean()) / game.num_clients,
    )


# ---- figures ------------------------------------------------------------------------------------------------------


def over_data_sets(seeds: int, *, name: str, quantity: str) -> Figure:
    """Server cost, or welfare of all clients, per data set and mechanism, N = 20."""
    return _figure(name, seeds, _strands("", [Place(dataset) for dataset in SETTINGS], seeds, (quantity,)))


def swept(seeds: int, *, name: str, places: Sequence[Place]) -> Figure:
    """Cost and welfare along an axis, and MPPFL's clients at rates held as they are at its end.

    Rates are highest there: held at lower ones, some clients would opt out where exposure is stronger, and the cost
    would forget their noise.
    """
    strands = _strands(SWEPT, places, seeds, ("server_cost", "welfare"))
    rest = ("payments", "mean_budget", "negative_utility")  # why cost and welfare move, for MPPFL alone
    strands += [s for s in _strands(SWEPT, places, seeds, rest) if s.mechanism == "mppfl" and s.convention == "own"]
    held = [[play_at(place, places[-1], seed) for seed in range(seeds)] for place in places]
    strands += [_strand(SWEPT, HELD, "mppfl", quantity, held) for quantity in QUANTITIES]
    return _figure(name, seeds, strands)


def size_figure(seeds: int) -> Figure:
    """Cost and welfare against N, in two settings."""
    strands = []
    for dataset in SIZED:
        places = [Place(dataset, num_clients=size) for size in SIZES]
        strands += _strands(dataset, places, seeds, ("server_cost", "welfare"))
    return _figure("fig-n", seeds, strands)


def phi_figure(seeds: int) -> Figure:
    """φ₁ after every sweep of Algorithm 1: with the rate solved in every sweep, and to the letter.

    external_risk  φ₁ itself, in units of budget
    distance       |φ₁ − φ₁*|/φ₁*, from the equilibrium solved directly
    settled        1 from the sweep on at which the paper's rule stops (threshold 10⁻³, rate included), else 0
    """
    strands: list[Strand] = []
    edges = {size: [draw_game(Place(SWEPT, size), seed).graph.num_edges for seed in range(seeds)] for size in SIZES}
    for round_index in PHI_ROUNDS:
        for version, literal in (("solved", False), ("literal", True)):
            traces = [_phi_trace(draw_game(Place(SWEPT), seed), round_index, literal) for seed in range(seeds)]
            for position, quantity in enumerate(("external_risk", "distance", "settled")):
                values = np.array([trace[position] for trace in traces]).T
                strands.append(Strand(SWEPT, version, f"t = {round_index}", quantity, values))
    mean_edges = {str(size): float(np.mean(counts)) for size, counts in edges.items()}
    return _figure("fig-phi", seeds, strands, {MEASURED: mean_edges})


def _phi_trace(game: Game, round_index: int, literal: bool) -> tuple[Array, Array, Array]:
    # The smallest threshold there is: sweeps go on after the paper's rule would stop, until nothing moves at all.
    trace = fixed_point_trace(game, round_index, threshold=5e-324, literal=literal, max_sweeps=PHI_SWEEPS)
    risk = np.full(PHI_SWEEPS, np.nan)
    risk[: trace.num_sweeps] = trace.external_risk[:, 0]
    if trace.converged:
        risk[trace.num_sweeps :] = risk[trace.num_sweeps - 1]
    exact = mppfl(game, Horizon(np.array([round_index])))[0].budgets
    goal = float((game.propagation @ exact)[0]) / game.num_clients
    stopped = fixed_point_trace(game, round_index, threshold=THRESHOLD, literal=literal, max_sweeps=PHI_SWEEPS)
    settled = (np.arange(1, PHI_SWEEPS + 1) >= stopped.num_sweeps) & stopped.converged
    return risk, np.abs(risk - goal) / goal, settled.astype(np.float64)


def _strands(setting: str, places: Sequence[Place], seeds: int, quantities: Sequence[str]) -> list[Strand]:
    played = [[play(place, seed) for seed in range(seeds)] for place in places]
    strands = []
    for convention in ("common", "own"):
        for name in MECHANISMS:
            if (convention, name) in played[0][0]:
                column = [[game[convention, name] for game in row] for row in played]
                strands += [_strand(setting, convention, name, quantity, column) for quantity in quantities]
    return strands


def _strand(setting: str, convention: str, mechanism: str, quantity: str, rows: Sequence[Sequence[Totals]]) -> Strand:
    values = np.array([[getattr(one, quantity) for one in row] for row in rows])
    return Strand(setting, convention, mechanism, quantity, values)


def _figure(name: str, seeds: int, strands: Sequence[Strand], measured: dict[str, object] | None = None) -> Figure:
    axis, places = AXES[name]
    return Figure(name, _configuration(name) | (measured or {}), seeds, axis, list(places), strands, {})


def _configuration(name: str) -> dict[str, object]:
    """Constants of a figure; what an axis moves takes the axis's value there."""
    of_sweeps = {"rounds_shown": list(PHI_ROUNDS), "threshold": THRESHOLD} if name == "fig-phi" else {}
    return {
        "preset": PRESET,
        **{constant: value for constant, value in asdict(preset(PRESET)).items() if constant != "noise_harm"},
        "max_hops": MAX_HOPS,
        "externality_strength": EXTERNALITY_STRENGTH,
        "num_clients": Place(SWEPT).num_clients,
        "network": "erdos_renyi",
        "reference": REFERENCE,
        "num_rounds": {dataset: setting.num_rounds for dataset, setting in SETTINGS.items()},
        "num_parameters": NUM_PARAMETERS,
        "noise_harm": {dataset: float(f"{harm_of(dataset):.6g}") for dataset in SETTINGS},
        **of_sweeps,
    }


FIGURES: dict[str, Callable[[int], Figure]] = {
    "fig-phi": phi_figure,
    "fig-cost": partial(over_data_sets, name="fig-cost", quantity="server_cost"),
    "fig-welfare": partial(over_data_sets, name="fig-welfare", quantity="welfare"),
    "fig-alpha": partial(swept, name="fig-alpha", places=[Place(SWEPT, externality_strength=a) for a in STRENGTHS]),
    "fig-k": partial(swept, name="fig-k", places=[Place(SWEPT, max_hops=hops) for hops in HOPS]),
    "fig-n": size_figure,
}


def kept_figure(name: str, folder: str | Path, seeds: int = 30) -> tuple[Path, int] | None:
    """The file of a figure and its seeds, if it has at least so many of the same games; else None: make it.

    The same games are those of the same configuration, axis and mechanisms. What the solver makes of them is not
    looked at: after a change there, remove the file, or call `run_figure`.
    """
    try:
        found = read_figure(folder, name)
    except BadFile:  # to be made anew, as the error would have said
        return None
    if found is None or found.seeds < seeds:
        return None
    stored = {key: value for key, value in found.configuration.items() if key != MEASURED}
    axis, places = AXES[name]
    here = json.loads(json.dumps([_configuration(name), axis, list(places)]))  # as a file gives it back
    mechanisms = [] if name == "fig-phi" else list(MECHANISMS)
    is_same = [stored, found.axis, found.places] == here and found.mechanisms("own") == mechanisms
    return (figure_path(folder, name), found.seeds) if is_same else None


def run_figure(name: str, folder: str | Path, seeds: int = 30) -> Path:
    """Plays the games of a figure and writes `folder`/<name>.json: all figures in about a minute of one core.

    Everything but the provenance is the same at every run. Games that another figure of this process has played are
    not played again.
    """
    from mppfl.experiment import provenance_here

    if name not in FIGURES:
        raise BadInput(f"figure={name!r} is not known. Known: {', '.join(FIGURES)}.")
    require_count(seeds, "seeds")
    here, began, cpu_began = provenance_here(), time.perf_counter(), time.process_time()
    figure = FIGURES[name](seeds)
    spent = {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu_began, 2),
    }
    provenance = {key: value for key, value in asdict(here).items() if key not in ("torch", "gpu", "device")}
    return write_figure(folder, replace(figure, provenance=provenance | spent))
