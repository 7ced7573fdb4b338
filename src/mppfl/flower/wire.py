"""What travels between server and client beside the model: the terms of a round, the report on it, and who is who.

Every client gets a record of its own. Flower carries each record as an object with requests of its own, so terms travel
inside the configuration, and a report is the one record beside the upload. A report holds nothing computed from raw
data: the upload's noise protects the upload, and nothing else leaves.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isnan
from typing import Any, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, RecordDict
from numpy.typing import NDArray

from mppfl.errors import BadInput

Vector = NDArray[np.floating[Any]]


def vector_of(record: ArrayRecord) -> Vector:
    """All entries of the arrays in their order. Refuses what cannot be clipped and made noisy as one vector."""
    parts = [array.numpy() for array in record.values()]
    kinds = {part.dtype for part in parts}
    if not parts or not sum(part.size for part in parts):
        raise BadInput("the model holds no numbers. Send at least one array of float32 or float64.")
    if len(kinds) > 1 or kinds.pop() not in (np.float32, np.float64):
        found = ", ".join(f"{name} {array.dtype}" for name, array in list(record.items())[:5])
        raise BadInput(
            f"the model's arrays must all be float32 or all float64, got {found}. Leave counters and other whole "
            "numbers out of what is trained."
        )
    return np.concatenate([part.reshape(-1) for part in parts])


def record_like(record: ArrayRecord, vector: Vector) -> ArrayRecord:
    """The vector as arrays of the same names and shapes as those of `record`."""
    shapes = {name: tuple(array.shape) for name, array in record.items()}
    found: OrderedDict[str, Array] = OrderedDict()
    start = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape, dtype=np.int64))
        found[name] = Array(np.ascontiguousarray(vector[start : start + size].reshape(shape)))
        start += size
    if start != vector.size:
        raise BadInput(f"{vector.size:,} numbers do not fill arrays of {start:,}.")
    return ArrayRecord(found)


def same_form(record: ArrayRecord, like: ArrayRecord) -> str:
    """What differs in names, shapes or types between two models, in a few words; empty if nothing does."""
    if list(record.keys()) != list(like.keys()):
        return f"arrays {list(record.keys())[:5]} instead of {list(like.keys())[:5]}"
    for name, array in record.items():
        other = like[name]
        if tuple(array.shape) != tuple(other.shape) or array.dtype != other.dtype:
            return f"array {name!r} is {array.dtype} {tuple(array.shape)}, not {other.dtype} {tuple(other.shape)}"
    return ""


def uploaded_vector(record: ArrayRecord, like: ArrayRecord) -> Vector:
    """All entries of a model that somebody else sent. Raises BadInput where it has not the form of `like`.

    What an array declares and what its bytes decode to are two things, and the sender writes both: each is held against
    `like`, and bytes that cannot be read are a fault of the upload, not of who reads it.
    """
    odd = same_form(record, like)
    if odd:
        raise BadInput(f"has a wrong form: {odd}")
    parts: list[NDArray[Any]] = []
    for name, array in record.items():
        try:
            part = array.numpy()  # refuses pickled objects, which could run anything
        except Exception as cause:  # damaged bytes fail in as many ways as there are bytes in them
            raise BadInput(f"has a wrong form: array {name!r} cannot be read ({type(cause).__name__})") from cause
        wanted = tuple(like[name].shape), like[name].dtype
        if not isinstance(part, np.ndarray) or (part.shape, str(part.dtype)) != wanted:  # an archive is no array
            found = f"{part.dtype} {part.shape}" if isinstance(part, np.ndarray) else "no array"
            raise BadInput(f"has a wrong form: array {name!r} holds {found:.80}, not {wanted[1]} {wanted[0]}")
        parts.append(part)
    return np.concatenate([part.reshape(-1) for part in parts])


def digest_of(record: ArrayRecord) -> str:
    """SHA-256 of the model's entries, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(vector_of(record)).data).hexdigest()


# ---- What travels between server and client beside the model: the terms of a round, the report on it, and who is who ----

# Every client gets a record of its own. Flower carries each record as an object with requests of its own, so terms travel
# inside the configuration, and a report is the one record beside the upload. A report holds nothing computed from raw
# data: the upload's noise protects the upload, and nothing else leaves.

REPORT, WHO = "mppfl.report", "mppfl.who"
TERMS = "mppfl-"  # how the keys of terms begin, in the configuration that Flower sends anyway

Outcome = Literal["released", "refused"]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """What the server asks of one client in one round, and what it pays for.

    run           of the training, the same before and after an interruption, and of no other training
    client        whom the terms are for
    budget        ρ of the training that the upload may cost; infinite for no noise
    pays          money for an upload that is accepted
    privacy, adjacency, clip_norm, noise
                  the mechanism, the length updates or gradients are clipped to, and the kind of noise
    local_epochs, num_steps, batch_size
                  the work of the round, as far as privacy depends on it
    """

    run: str
    round_index: int
    client: str
    budget: float
    pays: float
    privacy: str
    adjacency: str
    clip_norm: float
    noise: str
    local_epochs: int
    num_steps: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a client says of one round.

    outcome       whether an upload comes with it
    reason        why not, in one word or two; details stay in the client's own log
    budget        ρ that the client's ledger holds for this round: that of the upload, or of one that was lost; else 0
    num_examples  public
    model         SHA-256 of the model that the upload was computed from
    run_spent     ρ that the client's ledger holds for this run in all: what the server's account must agree with
    """

    client: str
    run: str
    round_index: int
    outcome: str
    reason: str
    budget: float
    num_examples: int
    model: str
    run_spent: float


def to_record(report: Report) -> ConfigRecord:
    """The report as a record."""
    return ConfigRecord({field.name: getattr(report, field.name) for field in fields(report)})


def with_terms(config: Mapping[str, ConfigRecordValues], terms: RoundTerms) -> ConfigRecord:
    """A configuration of one client's own: what everybody gets, and its terms."""
    return ConfigRecord({**config, **{TERMS + field.name: getattr(terms, field.name) for field in fields(terms)}})


def has_terms(content: RecordDict) -> bool:
    """Whether a message comes from a server that prices."""
    return any(f"{TERMS}run" in record for record in content.config_records.values())


def terms_in(content: RecordDict) -> RoundTerms:
    """The terms in a message, each of the right type. Raises BadInput where something is missing or odd."""
    for record in content.config_records.values():
        if f"{TERMS}run" in record:
            return _read(RoundTerms, record, TERMS)
    raise BadInput("the message has no terms. Its server must use PricedFedAvg.")


def report_in(content: RecordDict) -> Report:
    """The report in a reply, each field of the right type. Raises BadInput where something is missing or odd."""
    record: Any = content.get(REPORT)
    if not isinstance(record, ConfigRecord):
        raise BadInput("the reply has no report. Its client must use PrivateUpload.")
    found = _read(Report, record, "")
    if found.outcome not in ("released", "refused"):
        raise BadInput(f"outcome={found.outcome!r:.40} is neither 'released' nor 'refused'.")
    return found


def _read(cls: type[Value], record: ConfigRecord, prefix: str) -> Value:
    values: dict[str, Any] = {}
    kinds: dict[str, Any] = {"str": str, "int": int, "float": float}
    for field in fields(cls):  # type: ignore[arg-type]
        value: Any = record.get(prefix + field.name)
        wanted = kinds[str(field.type)]
        if type(value) is not wanted or (wanted is float and isnan(value)):
            raise BadInput(f"{prefix}{field.name}={value!r:.40} must be {wanted.__name__}.")
        values[field.name] = value
    return cls(**values)
