"""Where a deployment stands, read from its files alone, and whether the server's book agrees with clients' ledgers."""

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
from mppfl.flower.upload import budgets_in_run
from mppfl.privacy.ledger import PrivacyLedger


@dataclass(frozen=True, slots=True)
class Difference:
    """A client whose account with the server differs from its own ledger.

    server       ρ that the server must presume spent
    paid         ρ of the uploads among them that were accepted, which the client has certainly spent
    ledger       ρ that the client's own ledger holds
    what         what is known about the cause
    is_harmless  whether the server only presumes more than the client spent, as after a lost upload. A ledger that
                 holds less than was paid for is incomplete, and the client's cap counts from too little
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


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One client over the whole run: ρ presumed spent, money owed, and how many of its rounds ended in each state."""

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

    running      whether the launcher is alive on this machine
    differences  clients whose account with the server differs from their own ledger, or from what they reported
    ledgers_read how many clients' own ledgers lie on this machine and were compared to the last bit
    missing      clients that were asked, whose node is or was on this machine, and whose ledger is not
    misbooked    rounds whose amount in the server's book does not follow from its own terms, a line each
    """

    run: str
    rounds_done: int
    num_rounds: int
    running: bool
    accuracy: float | None
    clients: tuple[ClientStatus, ...]
    differences: tuple[Difference, ...]
    ledgers_read: int
    missing: tuple[str, ...] = ()
    misbooked: tuple[str, ...] = ()

    @property
    def owed(self) -> float:
        return sum(client.owed for client in self.clients)

    @property
    def is_sound(self) -> bool:
        """Whether every difference is harmless, and every amount follows from the terms."""
        return all(gap.is_harmless for gap in self.differences) and not self.misbooked

    def as_dict(self) -> dict[str, Any]:
        gaps = [asdict(gap) | {"kind": gap.kind, "is_harmless": gap.is_harmless} for gap in self.differences]
        return asdict(self) | {"differences": gaps, "is_sound": self.is_sound, "owed": self.owed}

    def lines(self) -> list[str]:
        """The status as text."""
        activity = "running" if self.running else "not running"
        lines = [f"{'run':<12}{self.run}, {activity}, round {self.rounds_done} of {self.num_rounds}"]
        if self.accuracy is not None:
            lines.append(f"{'accuracy':<12}{self.accuracy:.3f}")
        lines.append(f"{'owed':<12}{self.owed:.6g} in all")
        lines.append(f"{'client':<16}{'spent ρ':>12}{'owed':>12}{'paid':>7}{'refused':>9}{'rejected':>10}{'lost':>6}")
        for row in self.clients:
            counts = f"{row.paid:>7}{row.refused:>9}{row.rejected:>10}{row.lost + row.asked:>6}"
            lines.append(f"{row.client:<16}{row.spent:>12.6g}{row.owed:>12.6g}{counts}")
        for gap in self.differences:
            figures = f"server {gap.server:.6g}, client {gap.ledger:.6g}"
            lines.append(f"{'differs':<12}client {gap.client}: {figures} ({gap.kind}; {gap.what})")
        for client in self.missing:
            lines.append(f"{'missing':<12}the ledger of client {client}, whose node was made on this machine")
        lines += [f"{'misbooked':<12}{line}" for line in self.misbooked]
        if not (self.differences or self.missing or self.misbooked):
            lines.append(f"{'accounts':<12}agree to the last bit with {self.ledgers_read} ledgers read here")
        return lines


def status_of(app: str | Path, payments: Path | None = None) -> Status:
    """The status of the deployment in the app's folder; writes its accounts to the CSV file `payments`, if given."""
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
    differences = {gap.client: gap for gap in differences_from_reports(entries, state.run)}
    differences |= {gap.client: gap for gap in differences_from_ledgers(entries, ledgers, state.run)}
    accuracies = [facts["accuracy"] for facts in server.notes() if "accuracy" in facts]
    return Status(
        state.run,
        state.rounds_done,
        len(state.budgets),
        _is_running(layout),
        accuracies[-1] if accuracies else None,
        tuple(_client_status(client, entries) for client in state.clients),
        tuple(differences.values()),
        sum(path.exists() for path in ledgers.values()),
        tuple(client for client, path in ledgers.items() if client in asked and not path.exists()),
        tuple(_misbooked(entries)),
    )


def _client_status(client: str, entries: Sequence[Entry]) -> ClientStatus:
    rows = [entry for entry in entries if entry.client == client]
    counts = {name: sum(entry.state == name for entry in rows) for name in STATES}
    return ClientStatus(client, _total(rows), sum((entry.amount for entry in rows), 0.0), **counts)


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


def differences_from_ledgers(entries: Sequence[Entry], ledgers: Mapping[str, Path], run: str) -> list[Difference]:
    """Where the server's rows of a run differ, in any bit, from the ledgers of this machine; a missing one holds 0."""
    differences = []
    for client, path in ledgers.items():
        rows = [entry for entry in entries if (entry.client, entry.run) == (client, run)]
        held = 0.0
        if path.exists():
            with PrivacyLedger.open(path, read_only=True) as ledger:
                held = sum((budget for _, budget in budgets_in_run(ledger, run, client)), 0.0)
        unsure = ", ".join(str(entry.round_index) for entry in rows if entry.state in ("lost", "asked", "rejected"))
        cause = f"no answer, or none that counts, in round {unsure}" if unsure else "no round explains it"
        what = cause if path.exists() else f"its ledger {path} is missing; {cause}"
        differences.append(Difference(client, _total(rows), _total(rows, "paid"), held, what))
    return [gap for gap in differences if gap.server != gap.ledger]


def differences_from_reports(entries: Sequence[Entry], run: str) -> list[Difference]:
    """Where a client's last report in a run differs from what the server had booked up to then."""
    reports = {entry.client: entry for entry in entries if entry.run == run and entry.client_says is not None}
    differences = []
    for client, last in reports.items():
        rows = [entry for entry in entries if (entry.client, entry.run) == (client, run)]
        rows = [entry for entry in rows if entry.round_index <= last.round_index]
        what, held = f"as of round {last.round_index}", last.client_says or 0.0
        differences.append(Difference(client, _total(rows), _total(rows, "paid"), held, what))
    return [gap for gap in differences if gap.server != gap.ledger]


def _total(rows: Sequence[Entry], *states: str) -> float:
    """ρ that the server presumes spent in these rows, or in those of them that ended in one of these states."""
    return sum((entry.spent for entry in rows if not states or entry.state in states), 0.0)
