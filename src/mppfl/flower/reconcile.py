"""Whether the server's book and the clients' own ledgers say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mppfl.flower.accounts import Entry
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


def spent_in_run(ledger: PrivacyLedger, run: str, client: str) -> float:
    """ρ that the ledger holds for one client in one run, its rounds added up in their order."""
    return sum((budget for _, budget in sorted(_rounds(ledger, run, client))), 0.0)


def spent_in_round(ledger: PrivacyLedger, run: str, round_index: int, client: str) -> float:
    """ρ that the ledger holds for one client in one round of a run."""
    return sum((budget for at, budget in _rounds(ledger, run, client) if at == round_index), 0.0)


def _rounds(ledger: PrivacyLedger, run: str, client: str) -> list[tuple[int, float]]:
    return [
        (event["round_index"], float(event["budget"] or 0.0))
        for event in ledger.events()
        if event["run"] == run and event["client"] == client
    ]


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
