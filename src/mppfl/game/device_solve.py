"""A game played on a device of PyTorch's: a plan, its outcome and its quality, or one line that says why not.

The device solves what is large and simple: equilibria strictly inside everybody's bounds. Whatever else is asked for
is refused, never handed to another solver in silence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mppfl.errors import BadInput
from mppfl.game.device_equilibrium import (
    DeviceClients,
    DeviceLine,
    LineLeader,
    clients_on_device,
    line_on_device,
    rates_on_device,
    totals_on_device,
)
from mppfl.game.device_loss import DeviceLoss
from mppfl.game.equilibrium import Response
from mppfl.game.leader_regret import LEADER_ROUNDS_ABOVE, PROBES
from mppfl.game.leaders import require_somebody
from mppfl.game.loss import KRYLOV_BASIS
from mppfl.game.mechanisms import Mechanism, mppfl, mppfl_exact
from mppfl.game.model import Game, amplification
from mppfl.game.natural_units import natural_units
from mppfl.game.outcome import Outcome, Verification, outcome_of_sums
from mppfl.game.plan import AlongLine, Horizon, Participation, Plan
from mppfl.game.resting_at_bounds import has_ceilings, has_floors, rates_worth_trying
from mppfl.network import find_device, matrix_bytes, propagation_on_device, require_room

_LEADERS: tuple[tuple[Mechanism, str, LineLeader], ...] = (
    (mppfl, "mppfl", "mean_field"),
    (mppfl_exact, "mppfl_exact", "anticipating"),
)
LEAVE_OUT = "Leave device out, and NumPy solves"
PAIRS_AT_ONCE = 12  # pairs of vectors that a solution holds beside its Krylov basis
WORKING_BYTES = 2**30  # sums over clients, and what the sparse products ask for


def solution_bytes(num_clients: int, num_links: int) -> int:
    """Memory that a game takes on a device while it is solved: the network, a Krylov basis and the vectors around it.

    12 bytes a link and some 480 a client (a pair of vectors is 16), and a working space that small games do not fill.
    """
    pairs = 16 * (KRYLOV_BASIS + PAIRS_AT_ONCE) * num_clients
    working = min(WORKING_BYTES, 1000 * num_clients)
    return matrix_bytes(num_clients, num_links) + pairs + 48 * num_clients + working


def play_on_device(
    game: Game, mechanism: Mechanism, horizon: Horizon, participation: Participation, device: str
) -> tuple[Plan, Outcome, Verification]:
    """What a mechanism does in every round, found on a device: the same numbers as the plain way gives, to rounding.

    Raises BadInput for mechanisms other than mppfl and mppfl_exact, for participation other than "always", where some
    client would be at a bound or mppfl_exact might have it there, and where the game does not fit into the device's
    memory.
    """
    known = [(name, leader) for function, name, leader in _LEADERS if function is mechanism]
    if not known:
        asked = getattr(getattr(mechanism, "func", mechanism), "__name__", repr(mechanism))
        raise BadInput(f"device={device!r} solves the mechanisms mppfl and mppfl_exact, not {asked}. {LEAVE_OUT} it.")
    if participation != "always":
        raise BadInput(f'device={device!r} solves participation="always", not {participation!r}. {LEAVE_OUT} it.')
    require_somebody(game)
    name, leader = known[0]
    if leader == "anticipating" and horizon.reward_rates is None and has_floors(game):
        raise BadInput(
            f"device={device!r} solves mppfl_exact where every lowest budget is 0; a cheaper rate may leave some at "
            f"theirs. {LEAVE_OUT} at the bounds too."
        )
    where = find_device(device)
    size, links = game.num_clients, game.graph.num_links
    require_room(where, solution_bytes(size, links), f"equilibria of {size:,} clients and {links:,} links")
    loss = DeviceLoss(propagation_on_device(game.propagation, where), game.externality_strength)
    clients = clients_on_device(game.clients, where)
    _note_row_sums(game, loss)
    line = line_on_device(loss, clients)
    rates = horizon.reward_rates
    if rates is None and line.has_interior:
        rates = rates_on_device(line, clients, game.accuracy_weight, leader, horizon.rounds, _amplified(game, line))
    if rates is None or not line.holds(rates):
        raise BadInput(
            f"some clients would be at a bound of their budgets, and device={device!r} solves only where nobody is. "
            f"{LEAVE_OUT} at the bounds too."
        )
    budgets = AlongLine(line.slope.cpu().numpy(), line.offset.cpu().numpy())
    plan = Plan(name, horizon.rounds, np.asarray(rates, dtype=np.float64), budgets, size)
    outcome = outcome_of_sums(game, plan, totals_on_device(line, loss, clients, plan.reward_rates))
    if leader == "anticipating" and horizon.reward_rates is None and has_ceilings(game):
        _require_best_inside(game, line, plan, outcome, device)
    return plan, outcome, _verify(game, plan, outcome, line, loss, clients)


def _amplified(game: Game, line: DeviceLine) -> float:
    """What every ε_i is multiplied by because others are at 0, whatever the rate."""
    return 1.0 if line.free is None else amplification(game, (line.free | (line.offset < 0)).cpu().numpy())


def _require_best_inside(game: Game, line: DeviceLine, plan: Plan, outcome: Outcome, device: str) -> None:
    """Raises BadInput unless it is sure that no rate with clients at their ceilings is cheaper."""
    free = np.ones(game.num_clients, dtype=bool) if line.free is None else line.free.cpu().numpy()
    slope, offset = line.slope.cpu().numpy(), line.offset.cpu().numpy()
    response = Response(slope, offset, line.lowest_rate, line.highest_rate, np.ones(game.num_clients), free)
    noise = game.accuracy_weight * outcome.accuracy_terms
    costs = outcome.server_costs + (_amplified(game, line) - 1.0) * noise
    if rates_worth_trying(game, response, "anticipating", plan.rounds, costs) is not None:
        raise BadInput(
            f"a cheaper rate may leave some at their budget_max, and device={device!r} solves only where nobody is. "
            f"{LEAVE_OUT} at the bounds too."
        )


def _note_row_sums(game: Game, loss: DeviceLoss) -> None:
    """Σ·1, which the proof of uniqueness asks for, found here and kept where the plain way would keep it."""
    ones = torch.ones(game.num_clients, dtype=torch.float64, device=loss.propagation.home.device)
    game.propagation.__dict__.setdefault("row_sums", (loss.propagation @ ones).cpu().numpy())


def _verify(
    game: Game, plan: Plan, outcome: Outcome, line: DeviceLine, loss: DeviceLoss, clients: DeviceClients
) -> Verification:
    """The twin of `outcome.verify` on the line."""
    ends = (float(plan.reward_rates[0]), float(plan.reward_rates[-1]))
    largest = max(natural_units(game).budget, *(float((rate * line.slope - line.offset).abs().max()) for rate in ends))
    everything = len(plan) * plan.num_clients < LEADER_ROUNDS_ABOVE
    positions = np.arange(len(plan)) if everything else np.unique([0, len(plan) // 2, len(plan) - 1])
    saved = _leader_saving(game, plan, outcome, line, loss, clients, positions)
    return Verification(
        residual=float(outcome.best_response_gap.max()) / largest,
        client_regret=max(0.0, float(outcome.client_regret.max())),
        relative_regret=max(0.0, float(outcome.relative_regret.max())),
        leader_regret=saved,
        leader_rounds=tuple(int(t) for t in plan.rounds[positions]),
    )


def _leader_saving(
    game: Game,
    plan: Plan,
    outcome: Outcome,
    line: DeviceLine,
    loss: DeviceLoss,
    clients: DeviceClients,
    positions: Any,
) -> float:
    """What the server could save by another rate that keeps everybody inside the bounds, in the worst of the rounds.

    The best such rate, or where it has none the nearby rates that `leader_regret.PROBES` names and the bounds allow.
    """
    rounds, weight = plan.rounds[positions], game.accuracy_weight
    grown = _amplified(game, line)
    best = rates_on_device(line, clients, weight, "anticipating", rounds, grown)
    others = plan.reward_rates[positions, None] * np.array(PROBES) if best is None else best[:, None]  # [rounds, tries]
    inside = (others > line.lowest_rate) & (others < line.highest_rate)
    if not inside.any():
        return 0.0
    distinct, where = np.unique(others[inside], return_inverse=True)
    totals = totals_on_device(line, loss, clients, distinct)[where]
    of_round = np.broadcast_to(np.arange(len(rounds))[:, None], others.shape)[inside]
    then = weight * grown * totals[:, 0] / rounds[of_round] + (1 - weight) * totals[:, 1]
    now = weight * grown * outcome.accuracy_terms[positions] + (1 - weight) * outcome.payments[positions]
    return float(max(0.0, (now[of_round] - then).max()))
