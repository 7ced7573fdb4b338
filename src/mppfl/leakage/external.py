"""The ledger's external columns: what all others' releases, as they were accounted for, say about each client.

    R_model  Σρ of what was spent, the paper's index; no unit
    R_bound  nats, a theorem; NaN, with the reason, where its premises do not hold
    R_leak   nats, a calibrated level; NaN, with the reason, without a public sample or where budgets do not tell

Bound and level need budgets for replacing all of a client's data. A ledger per record is converted: an attribute that
all n records share costs n²ρ; a budget for adding or removing is worth four times as much for replacing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.arrays import Array, IntArray, read_only
from mppfl.errors import BadInput, UnknownClient
from mppfl.leakage.field import densely, fits_matrices
from mppfl.leakage.levels import ExposureBound, Theorem, frozen, is_forest, leak_model, r_bound, r_model, read_attribute
from mppfl.network import Propagation, SocialGraph, propagate
from mppfl.privacy import Unit
from mppfl.privacy.ledger import Account, PrivacyLedger

NO_BOUND_OF_SUMS = "the ledger holds sums in which one noise hides everybody, and no bound is proved for these"


@dataclass(frozen=True, slots=True)
class ExternalColumns:
    """What others' releases say about each client: one entry per client in every array.

    spent              ρ that the client itself has spent
    r_model            index of what the others have spent; no unit
    r_bound            nats; NaN where there is no bound, and then `bound_reason` says why
    r_leak             nats; NaN where there is no level, and then `leak_reason` says why
    theorem, premises  what gave the bound, and what must hold for it
    notes              what must be said beside the columns
    """

    clients: tuple[str, ...]
    spent: Array
    r_model: Array
    r_bound: Array
    r_leak: Array
    theorem: Theorem
    premises: str
    bound_reason: str
    leak_reason: str
    notes: tuple[str, ...]


def external_columns(
    ledger: PrivacyLedger,
    graph: SocialGraph,
    attribute: Any = None,
    *,
    propagation: Propagation | None = None,
    couplings: Any = None,
    unit: Unit | None = None,
    num_examples: Any = None,
    clients: Sequence[str] | None = None,
) -> ExternalColumns:
    """The three columns for the ledger's clients, or for `clients`: anybody in the network, who need not have released.

    Names join the two: everybody in the ledger must be in the network; who is in the network alone has spent nothing.

    attribute     public sample of a binary attribute, as `leak_model` takes it, for R_leak
    propagation   for R_model; `propagate(graph)` if none is given
    couplings     of a known Ising model, as `r_bound` takes them, for R_bound
    unit          needed where the ledger holds both
    num_examples  n of each client, where budgets are per record: one for all, by name, or in the ledger's order
    """
    account = ledger.account(None, unit)
    positions = _positions(graph, account)
    shown = tuple(account.clients if clients is None else map(str, clients))
    rows = positions if clients is None else np.array([graph.index(name) for name in shown], dtype=np.int64)
    walks = propagate(graph) if propagation is None else propagation
    if walks.num_clients != graph.num_clients:
        raise BadInput(f"propagation is for {walks.num_clients} clients, the network has {graph.num_clients}.")
    counts = None if num_examples is None else _counts(num_examples, account)
    known = None if attribute is None else read_attribute(graph, attribute)

    def in_network(values: Any) -> Array:
        """From the ledger's order to the network's."""
        everybody = np.zeros(graph.num_clients)
        everybody[positions] = values
        return everybody

    spent = in_network(account.budget)
    of_all_data = in_network(_worth_for_all_data(account, counts))
    missing = _why_budgets_do_not_tell(ledger.units, account, counts)
    shared = any(ledger.protections.values())
    bound = _bound(graph, couplings, of_all_data * spent, missing or (NO_BOUND_OF_SUMS if shared else ""))
    leak, leak_reason, leak_notes = _leak(graph, known, of_all_data * spent, missing)
    columns = {
        "spent": spent,
        "r_model": r_model(walks, spent),
        "r_bound": bound.nats,
        "r_leak": leak,
    }
    return ExternalColumns(
        clients=shown,
        **{name: frozen(values[rows]) for name, values in columns.items()},
        theorem=bound.theorem,
        premises=bound.premises,
        bound_reason=bound.reason,
        leak_reason=leak_reason,
        notes=_notes(account, counts) + leak_notes,
    )


def _bound(graph: SocialGraph, couplings: Any, budgets: Array, missing: str) -> ExposureBound:
    size = graph.num_clients
    if couplings is None:
        missing = "no couplings were given, and the bound is a theorem about known ones"
    elif not missing and not fits_matrices(size) and not is_forest(graph):
        missing = f"with cycles it is {densely(size)}"
    elif not missing:
        return r_bound(graph, couplings, budgets)
    return ExposureBound(np.full(size, np.nan), "none", "", missing)


def _leak(graph: SocialGraph, known: Array | None, budgets: Array, missing: str) -> tuple[Array, str, tuple[str, ...]]:
    """R_leak, why there is none, and what must be said beside it."""
    size = graph.num_clients
    if known is None or missing:
        return np.full(size, np.nan), "no public sample of an attribute was given" if known is None else missing, ()
    levels = leak_model(graph, known).levels(budgets)
    if fits_matrices(size):
        return levels.nats, "", ()
    off = float(np.median(levels.error / np.maximum(levels.nats, 1e-300)))
    note = f"R_leak is estimated: {size:,} clients are too many for matrices; the median standard error is {off:.0%}"
    return levels.nats, "", (note,)


def _positions(graph: SocialGraph, account: Account) -> IntArray:
    """Where the ledger's clients stand in the network. Raises where one is not there, or released without noise."""
    try:
        positions = np.array([graph.index(name) for name in account.clients], dtype=np.int64)
    except UnknownClient as cause:
        raise UnknownClient(f"the ledger and the network do not fit: {cause}") from cause
    endless = np.isinf(account.budget)
    if endless.any():
        raise BadInput(
            f"client {account.clients[int(np.argmax(endless))]!r} released without noise, so what it tells about "
            "others has no measure here. Leave out the network, or account for it in another ledger."
        )
    return positions


def _counts(num_examples: Any, account: Account) -> Array:
    """n of each of the ledger's clients."""
    if isinstance(num_examples, Mapping):
        given = {str(name): count for name, count in num_examples.items()}
        missing = [name for name in account.clients if name not in given]
        if missing:
            raise BadInput(f"num_examples has no count for client {missing[0]!r} ({len(missing):,} such). Add them.")
        num_examples = [given[name] for name in account.clients]
    counts = read_only(num_examples, "num_examples", length=len(account.clients))
    whole = np.isfinite(counts) & (counts >= 1) & (counts == np.floor(counts))
    if not whole.all():
        where = int(np.argmin(whole))
        raise BadInput(
            f"num_examples={counts[where]:g} of client {account.clients[where]!r} must be a whole number of at least 1."
        )
    return counts


def _worth_for_all_data(account: Account, counts: Array | None) -> Array:
    """What a unit of each client's budget comes to for replacing all of its data."""
    records = 1.0 if counts is None or account.unit == "client" else counts**2
    return np.asarray(np.where(account.zero_out, 4.0, 1.0) * records)


def _why_budgets_do_not_tell(units: Sequence[str], account: Account, counts: Array | None) -> str:
    """Why no statement in nats follows from these budgets, or ""."""
    if account.poisson.any():
        name = account.clients[int(np.argmax(account.poisson > 0))]
        return f"client {name!r} has Poisson-sampled releases, which no zCDP budget measures"
    if account.unit == "client" and "record" in units:  # figures per record count everything
        return "the ledger also holds releases per record, which these budgets leave out"
    if account.unit == "record" and counts is None:
        return (
            "budgets per record say nothing about an attribute that all records share; with num_examples n they count "
            "as n²·budget per client"
        )
    return ""


def _notes(account: Account, counts: Array | None) -> tuple[str, ...]:
    lines = []
    if account.unit == "record":
        lines.append("R_model adds up budgets per record: what all records share is told n² times as loudly")
        if counts is not None:
            lines.append("R_bound and R_leak are for an attribute that all n records share: n² times the budget")
    if account.poisson.any():
        lines.append("R_model leaves out Poisson-sampled releases, which have no budget")
    return tuple(lines)
