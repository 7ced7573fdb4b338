"""Where a deployment stands, read from its files alone: nothing is asked of running processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from json import loads
from pathlib import Path
from shlex import quote
from typing import Any

from mppfl.errors import BadInput
from mppfl.flower.accounts import STATES, Accounts, Entry
from mppfl.flower.layout import Layout
from mppfl.flower.state import ServerFolder
from mppfl.flower.upload import spent_in_run
from mppfl.privacy.ledger import PrivacyLedger


@dataclass(frozen=True, slots=True)
class Difference:
    """A client about whom the two disagree.

    server       ρ that the server must presume spent
    paid         ρ of the uploads among them that it took, which the client has spent beyond doubt
    ledger       ρ that the client's own account holds
    is_harmless  whether the server only presumes more than the client spent, as after a lost upload. An account that
                 holds less than was paid for is not whole, and the client's cap counts from too little
    """

    client: str
    server: float
    paid: float
    ledger: float
    what: str

    @property
    def is_harmless(self) -> bool:
        return self.paid <= self.ledger <= self.server

    @property
    def kind(self) -> str:
        """What the difference is, for people and programs."""
        return "presumed, not spent" if self.is_harmless else "NOT ACCOUNTED FOR"


def differences_from_ledgers(entries: Sequence[Entry], ledgers: Mapping[str, Path], run: str) -> list[Difference]:
    """Where the server's rows of a run differ, in any bit, from the ledgers of this machine; a missing one holds 0."""
    found = []
    for client, path in ledgers.items():
        mine = [entry for entry in entries if entry.client == client and entry.run == run]
        server, paid = _booked(mine)
        held = 0.0
        if path.exists():
            with PrivacyLedger.open(path, read_only=True) as ledger:
                held = spent_in_run(ledger, run, client)
        if server != held:
            unsure = [entry.round_index for entry in mine if entry.state in ("lost", "asked", "rejected")]
            rounds = ", ".join(map(str, unsure))
            what = f"no answer, or none that counts, in round {rounds}" if unsure else "no round explains it"
            if not path.exists():
                what = f"its ledger {path} is missing; {what}"
            found.append(Difference(client, server, paid, held, what))
    return found


def differences_from_reports(entries: Sequence[Entry], run: str) -> list[Difference]:
    """Where a client's own words, in its last answer of a run, differ from what the server had booked up to then."""
    found = []
    for client in dict.fromkeys(entry.client for entry in entries if entry.run == run):
        mine = [entry for entry in entries if entry.client == client and entry.run == run]
        told = [entry for entry in mine if entry.client_says is not None]
        if not told:
            continue
        last = told[-1]
        server, paid = _booked([entry for entry in mine if entry.round_index <= last.round_index])
        says = last.client_says or 0.0
        if server != says:
            found.append(Difference(client, server, paid, says, f"as of round {last.round_index}"))
    return found


def _booked(mine: Sequence[Entry]) -> tuple[float, float]:
    """ρ that the server presumes a client to have spent, and of it what it took and paid for."""
    paid = sum((entry.spent for entry in mine if entry.state == "paid"), 0.0)
    return sum((entry.spent for entry in mine), 0.0), paid


# ---- Where a deployment stands, read from its files alone: nothing is asked of running processes --------------------


@dataclass(frozen=True, slots=True)
class ClientStanding:
    """One client over the whole run: ρ presumed spent, money owed, and how its rounds ended."""

    client: str
    spent: float
    owed: float
    paid: int
    refused: int
    rejected: int
    lost: int
    asked: int


@dataclass(frozen=True, slots=True)
class Status:
    """A deployment between two rounds.

    running      whether processes of a launch are alive on this machine
    differences  clients about whom the server's book and their own ledgers, or words, disagree
    ledgers_read how many clients' own ledgers lie on this machine and were compared to the last bit
    missing      clients whose node is, or was, on this machine and whose ledger is not, though they were asked for
                 something
    misbooked    rounds whose amount in the server's book is not what its own terms make of them, a line each
    """

    run: str
    rounds_done: int
    num_rounds: int
    running: bool
    accuracy: float | None
    clients: tuple[ClientStanding, ...]
    differences: tuple[Difference, ...]
    ledgers_read: int
    missing: tuple[str, ...] = ()
    misbooked: tuple[str, ...] = ()

    @property
    def owed(self) -> float:
        return sum(each.owed for each in self.clients)

    def as_dict(self) -> dict[str, Any]:
        gaps = [asdict(gap) | {"kind": gap.kind, "is_harmless": gap.is_harmless} for gap in self.differences]
        return asdict(self) | {"differences": gaps, "is_sound": self.is_sound, "owed": self.owed}

    @property
    def is_sound(self) -> bool:
        """Whether every difference is one that may be, and every amount what the terms say."""
        return all(gap.is_harmless for gap in self.differences) and not self.misbooked

    def lines(self) -> list[str]:
        """For people."""
        where = "running" if self.running else "not running"
        found = [f"{'run':<12}{self.run}, {where}, round {self.rounds_done} of {self.num_rounds}"]
        if self.accuracy is not None:
            found.append(f"{'accuracy':<12}{self.accuracy:.3f}")
        found.append(f"{'owed':<12}{self.owed:.6g} in all")
        found.append(f"{'client':<16}{'spent ρ':>12}{'owed':>12}{'paid':>7}{'refused':>9}{'rejected':>10}{'lost':>6}")
        for each in self.clients:
            counts = f"{each.paid:>7}{each.refused:>9}{each.rejected:>10}{each.lost + each.asked:>6}"
            found.append(f"{each.client:<16}{each.spent:>12.6g}{each.owed:>12.6g}{counts}")
        for gap in self.differences:
            figures = f"server {gap.server:.6g}, client {gap.ledger:.6g}"
            found.append(f"{'differs':<12}client {gap.client}: {figures} ({gap.kind}; {gap.what})")
        for client in self.missing:
            found.append(f"{'missing':<12}the ledger of client {client}, whose node was made on this machine")
        found += [f"{'misbooked':<12}{line}" for line in self.misbooked]
        if not (self.differences or self.missing or self.misbooked):
            found.append(f"{'accounts':<12}agree to the last bit with {self.ledgers_read} ledgers read here")
        return found


def status_of(app: str | Path, payments: Path | None = None) -> Status:
    """The status of the deployment in the app's folder; writes its accounts to a CSV file where one is named."""
    if payments is not None and payments.is_dir():
        raise BadInput(f"--payments {payments} is a folder. Name a file in it.")
    layout = Layout(Path(app).absolute())
    server = ServerFolder(layout.server)
    state = server.state()
    if state is None:
        folder = quote(str(layout.app))
        raise BadInput(f"{layout.app}: nothing has been run there yet. Start with: mppfl deploy local {folder}")
    with Accounts.open(server.accounts, read_only=True) as accounts:
        entries = accounts.entries(state.run)
        if payments is not None:
            accounts.export_csv(payments)
    ledgers = layout.ledgers(state.clients)
    asked = {entry.client for entry in entries}
    missing = tuple(client for client, path in ledgers.items() if client in asked and not path.exists())
    found = {gap.client: gap for gap in differences_from_reports(entries, state.run)}
    found |= {gap.client: gap for gap in differences_from_ledgers(entries, ledgers, state.run)}
    standings = []
    for client in state.clients:
        mine = [entry for entry in entries if entry.client == client]
        counts = {name: sum(entry.state == name for entry in mine) for name in STATES}
        spent, owed = sum((entry.spent for entry in mine), 0.0), sum((entry.amount for entry in mine), 0.0)
        standings.append(ClientStanding(client, spent, owed, **counts))
    accuracies = [facts["accuracy"] for facts in server.notes() if "accuracy" in facts]
    return Status(
        state.run,
        state.rounds_done,
        len(state.budgets),
        _is_running(layout),
        accuracies[-1] if accuracies else None,
        tuple(standings),
        tuple(found.values()),
        sum(path.exists() for path in ledgers.values()),
        missing,
        tuple(_misbooked(entries)),
    )


def _misbooked(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        if entry.amount != entry.worth:
            terms = f"{entry.state} at price {entry.price:.6g} for {entry.game_budget:.6g} is worth {entry.worth:.6g}"
            yield f"client {entry.client}, round {entry.round_index}: {terms}, the book says {entry.amount:.6g}"


def _is_running(layout: Layout) -> bool:
    """Whether the launcher that the folder names is alive."""
    try:
        os.kill(int(loads(layout.processes.read_text())["launcher"]), 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return False  # a damaged note names no process
    return True
