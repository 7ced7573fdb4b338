"""What travels between server and client: the model as one flat vector, the terms of a round, and the report on it.

Every client gets a record of its own. Flower carries each record as an object with requests of its own, so terms travel
inside the configuration, and a report is the one record beside the upload. A report holds nothing computed from raw
data: the upload's noise protects the upload, and nothing else leaves.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, RecordDict
from numpy.typing import NDArray

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, Protection, ReleaseCost, round_cost

if TYPE_CHECKING:
    from mppfl.training import TrainingConfig

REPORT, WHO = "mppfl.report", "mppfl.who"
TERMS = "mppfl-"  # prefix of the terms' keys in the configuration that Flower sends anyway

# The same names in terms and in TrainingConfig, or in its Protection.
OF_TRAINING = ("local_epochs", "num_steps", "batch_size")
OF_PROTECTION = ("unit", "release", "batches", "adjacency", "clip_norm", "noise")

Vector = NDArray[np.floating[Any]]
Value = TypeVar("Value")


# ---- terms and reports ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """What the server asks of one client in one round, and what it pays.

    run           name of the training, the same before and after an interruption, and of no other training
    client        to whom the terms apply
    budget        ρ of the training that the upload may cost; infinite for no noise
    pays          money for an upload that is accepted
    unit, release, batches, adjacency, clip_norm, noise
                  the protection, as `Protection` names it; the noise is the client's own
    local_epochs, num_steps, batch_size
                  the work of the round, as far as privacy depends on it
    """

    run: str
    round_index: int
    client: str
    budget: float
    pays: float
    unit: str
    release: str
    batches: str
    adjacency: str
    clip_norm: float
    noise: str
    local_epochs: int
    num_steps: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class UploadReport:
    """What a client says about one round.

    outcome       "released" with an upload, or "refused"
    reason        why it refused, in a word or two; details stay in the client's own log
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

    def to_record(self) -> ConfigRecord:
        return ConfigRecord(_written(self))


def with_terms(config: Mapping[str, ConfigRecordValues], terms: ClientTerms) -> ConfigRecord:
    """The configuration for one client: what everybody gets, and its terms."""
    return ConfigRecord({**config, **_written(terms, TERMS)})


def terms_in(content: RecordDict) -> ClientTerms:
    """The terms in a message, each of the right type. Raises BadInput where something is missing or wrong."""
    for record in content.config_records.values():
        if f"{TERMS}run" in record:
            return _read(ClientTerms, record, TERMS)
    raise BadInput("the message has no terms. Its server must use PricedFedAvg.")


def report_in(content: RecordDict) -> UploadReport:
    """The report in a reply, each field of the right type. Raises BadInput where something is missing or wrong."""
    record: Any = content.get(REPORT)
    if not isinstance(record, ConfigRecord):
        raise BadInput("the reply has no report. Its client must use PrivateUpload.")
    report = _read(UploadReport, record)
    if report.outcome not in ("released", "refused"):
        raise BadInput(f"outcome={report.outcome!r:.40} is neither 'released' nor 'refused'.")
    return report


def _written(value: Any, prefix: str = "") -> dict[str, ConfigRecordValues]:
    return {prefix + field.name: getattr(value, field.name) for field in fields(value)}


def _read(cls: type[Value], record: ConfigRecord, prefix: str = "") -> Value:
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        value: Any = record.get(prefix + field.name)
        if type(value).__name__ != field.type or value != value:  # noqa: PLR0124  # NaN is no figure
            raise BadInput(f"{prefix}{field.name}={value!r:.40} must be {field.type}.")
        values[field.name] = value
    return cls(**values)


def protection_of(terms: ClientTerms) -> Protection:
    """The protection that the terms name. Raises BadInput where there is none such."""
    values: dict[str, Any] = {name: getattr(terms, name) for name in OF_PROTECTION}
    return Protection(**values)


def work_of(settings: ClientTerms | TrainingConfig, protection: Protection, num_examples: int) -> LocalWork:
    """What a client with so many examples does in a round, as far as privacy depends on it."""
    batch_size = num_examples if protection.sees_all else settings.batch_size
    return LocalWork(num_examples, settings.local_epochs, settings.num_steps, batch_size)


def cost_of(terms: ClientTerms, protection: Protection, work: LocalWork, num_parameters: int) -> ReleaseCost:
    """What an upload under these terms costs. Raises BadInput where the terms cannot be met."""
    return round_cost(protection, terms.budget, work, num_parameters, terms.client, terms.round_index, terms.run)


# ---- models ---------------------------------------------------------------------------------------------------------


def vector_of(record: ArrayRecord) -> Vector:
    """All entries of the arrays in their order. Refuses what cannot be clipped and made noisy as one vector."""
    parts = [array.numpy() for array in record.values()]
    kinds = {part.dtype for part in parts}
    if not parts or not sum(part.size for part in parts):
        raise BadInput("the model holds no numbers. Send at least one array of float32 or float64.")
    if len(kinds) > 1 or kinds.pop() not in (np.float32, np.float64):
        types = ", ".join(f"{name} {array.dtype}" for name, array in list(record.items())[:5])
        raise BadInput(
            f"the model's arrays must all be float32 or all float64, got {types}. Leave counters and other whole "
            "numbers out of what is trained."
        )
    return np.concatenate([part.reshape(-1) for part in parts])


def record_like(record: ArrayRecord, vector: Vector) -> ArrayRecord:
    """The vector as arrays of the same names and shapes as those of `record`."""
    arrays: OrderedDict[str, Array] = OrderedDict()
    start = 0
    for name, array in record.items():
        size = int(np.prod(tuple(array.shape), dtype=np.int64))
        arrays[name] = Array(np.ascontiguousarray(vector[start : start + size].reshape(tuple(array.shape))))
        start += size
    if start != vector.size:
        raise BadInput(f"{vector.size:,} numbers do not fill arrays of {start:,}.")
    return ArrayRecord(arrays)


def uploaded_vector(record: ArrayRecord, like: ArrayRecord) -> Vector:
    """All entries of a model that somebody else sent. Raises BadInput where it has not the form of `like`.

    What an array declares and what its bytes decode to may differ, and the sender writes both: each is compared with
    `like`, and bytes that cannot be read are a fault of the upload, not of its reader.
    """
    if list(record.keys()) != list(like.keys()):
        raise BadInput(f"has a wrong form: arrays {list(record.keys())[:5]} instead of {list(like.keys())[:5]}")
    parts: list[NDArray[Any]] = []
    for name, array in record.items():
        shape, dtype = tuple(like[name].shape), like[name].dtype
        if tuple(array.shape) != shape or array.dtype != dtype:
            raise BadInput(
                f"has a wrong form: array {name!r} is {array.dtype} {tuple(array.shape)}, not {dtype} {shape}"
            )
        try:
            part = array.numpy()  # refuses pickled objects, which could run anything
        except Exception as cause:  # damaged bytes raise many kinds of errors
            raise BadInput(f"has a wrong form: array {name!r} cannot be read ({type(cause).__name__})") from cause
        if not isinstance(part, np.ndarray) or (part.shape, str(part.dtype)) != (shape, dtype):  # or an archive
            content = f"{part.dtype} {part.shape}" if isinstance(part, np.ndarray) else "no array"
            raise BadInput(f"has a wrong form: array {name!r} holds {content:.80}, not {dtype} {shape}")
        parts.append(part)
    return np.concatenate([part.reshape(-1) for part in parts])


def digest_of(record: ArrayRecord) -> str:
    """SHA-256 of the model's entries, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(vector_of(record)).data).hexdigest()
