"""A whole federation on this machine: real processes on loopback, or clients simulated by Flower's own engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from mppfl.errors import BadInput
from mppfl.experiment import network_of
from mppfl.flower.accounts import Accounts
from mppfl.flower.experiment_case import deployed_experiment
from mppfl.flower.federation import Ended, Federation, OnRound, SimulatedFederation, Tell
from mppfl.flower.layout import Layout, make_nodes, require_plain_path
from mppfl.flower.processes import stopping_on_signals
from mppfl.flower.server_state import ServerFolder, ServerState


def deploy_local(
    app: str | Path,
    num_nodes: int | None = None,
    *,
    resume: bool = False,
    tell: Tell = lambda line: None,
    on_round: OnRound = lambda facts: None,
) -> Ended:
    """Runs the app's experiment on this machine to its end and stops everything that it started, however it ends.

    Raises where the SuperLink dies or the server app fails; the state stays, and `resume` goes on from it.
    """
    with _prepared(app, resume, num_nodes) as (layout, clients):
        return _run(Federation(layout, clients, tell), on_round)


def deploy_simulated(
    app: str | Path,
    *,
    resume: bool = False,
    tell: Tell = lambda line: None,
    on_round: OnRound = lambda facts: None,
) -> Ended:
    """Runs the same app with clients that Flower's simulation engine computes: no nodes, no keys, names believed."""
    with _prepared(app, resume) as (layout, clients):
        return _run(SimulatedFederation(layout, clients, tell), on_round)


@contextmanager
def _prepared(app: str | Path, resume: bool, num_nodes: int | None = None) -> Iterator[tuple[Layout, list[str]]]:
    """The folder with everything in it that a launch needs, and the clients; nobody else's until the launch ends.

    Refuses what is not to be run, before anything is written. Looks again once the folder is locked: another launch may
    have begun, and ended, meanwhile.
    """
    layout = Layout(Path(app).absolute())
    require_plain_path(layout.app)
    experiment = deployed_experiment(layout.experiment)
    num_clients = network_of(experiment, experiment.seeds[0]).num_clients
    if num_nodes is not None and num_nodes != num_clients:
        raise BadInput(
            f"--nodes {num_nodes}, but the experiment has {num_clients} clients. Leave it out, or change "
            f"network.num_clients in {layout.experiment}."
        )
    _require_runnable(layout, resume)
    with ServerFolder(layout.folder).locked(wait_seconds=0.0):
        _require_runnable(layout, resume)
        yield layout, make_nodes(layout, experiment)


def _require_runnable(layout: Layout, resume: bool) -> None:
    """Raises where there is nothing to go on with, something that must be gone on with, or a ledger missing."""
    folder = quote(str(layout.app))
    state = _whole_state(ServerFolder(layout.server))
    if state is None and resume:
        raise BadInput(f"{layout.app}: nothing has been run there yet. Start with: mppfl deploy local {folder}")
    if state is not None and not resume:
        finished = state.rounds_done >= len(state.budgets)
        remedy = "Choose another folder" if finished else f"Go on with: mppfl deploy resume {folder}"
        raise BadInput(
            f"{layout.app} holds run {state.run!r} after round {state.rounds_done} of {len(state.budgets)}. {remedy}."
        )
    if state is not None:
        _require_ledgers(layout, state)


def _require_ledgers(layout: Layout, state: ServerState) -> None:
    """Raises where a client of this machine was paid and has no ledger: its cap would count from 0 again."""
    with Accounts.open(ServerFolder(layout.server).accounts, read_only=True) as accounts:
        paid = {entry.client for entry in accounts.entries(state.run) if entry.state == "paid"}
    for client, path in layout.ledgers(state.clients).items():
        if client in paid and not path.exists():
            raise BadInput(
                f"{path} is missing, the ledger of client {client!r}, which has released and was paid. Without it what "
                "was spent would be forgotten. Restore a copy."
            )


def _whole_state(server: ServerFolder) -> ServerState | None:
    """Where the server stands. Damage in its files is told here, before anything is started."""
    state = server.state()
    server.notes()
    if state is not None and server.accounts.exists():
        with Accounts.open(server.accounts, read_only=True) as accounts:
            accounts.entries(state.run)
    return state


def _run(federation: Federation, on_round: OnRound) -> Ended:
    with stopping_on_signals():
        try:
            federation.start()
            return federation.watch(on_round)
        finally:
            federation.stop()
