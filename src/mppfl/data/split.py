"""ClientData: which client learns from which examples; split divides a data set among clients."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mppfl.arrays import require_count, require_number
from mppfl.data.dataset import (
    Dataset,
    Inputs,
    Labels,
    as_labels,
    model_inputs,
    require_finite,
    require_labels_below,
    unchangeable,
)
from mppfl.data.partition import Owners, community_owners, dirichlet_owners, iid_owners, members_of
from mppfl.errors import BadInput
from mppfl.network import SocialGraph, communities_of, joined_names

How = Literal["iid", "dirichlet", "community", "natural"]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClientData:
    """What every client learns from: one table of examples, and which rows are whose.

    features     model inputs, float32 [n, C, H, W] or [n, d]; `labels` int64 [n]
    members      rows of each client: at least one, in no other client's, sizes may differ
    names        of the clients
    provenance   where the examples come from; `split` says how they were divided
    """

    name: str
    features: Inputs
    labels: Labels
    members: tuple[Rows, ...]
    test_features: Inputs
    test_labels: Labels
    num_classes: int
    names: tuple[str, ...]
    provenance: str
    split: str

    def __post_init__(self) -> None:
        _require_inputs(self.features, self.labels, "")
        _require_inputs(self.test_features, self.test_labels, "test ")
        if self.features.shape[1:] != self.test_features.shape[1:]:
            raise BadInput(
                f"test features have shape {self.test_features.shape[1:]}, the others {self.features.shape[1:]}."
            )
        require_labels_below(self.labels, self.num_classes, "training")
        require_labels_below(self.test_labels, self.num_classes, "test")
        _require_names(self.names, len(self.members))
        _require_disjoint(self.members, self.names, len(self.labels))
        for field in ("features", "labels", "test_features", "test_labels"):
            object.__setattr__(self, field, unchangeable(getattr(self, field)))
        object.__setattr__(self, "members", tuple(unchangeable(rows) for rows in self.members))

    @property
    def num_clients(self) -> int:
        return len(self.members)

    @property
    def num_examples(self) -> NDArray[np.int64]:
        """How many examples each client has."""
        return np.array([len(rows) for rows in self.members], dtype=np.int64)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W), or (d,) for flat examples."""
        return self.features.shape[1:]

    @cached_property
    def fingerprint(self) -> str:
        """Of what clients learn from: shape and every bit of examples, labels and whose is what."""
        digest = hashlib.sha256()
        arrays: tuple[NDArray[Any], ...] = (self.features, self.labels, *self.members)
        for array in arrays:
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def of(self, client: int) -> tuple[Inputs, Labels]:
        """Features and labels of one client, as copies."""
        rows = self.members[client]
        return self.features[rows], self.labels[rows]


def client_data(
    features: Any,
    labels: Any,
    members: Sequence[Any],
    test_features: Any,
    test_labels: Any,
    *,
    num_classes: int | None = None,
    names: Sequence[str] | None = None,
    name: str = "own data",
    provenance: str = "given as arrays",
    split: str = "given by the caller",
) -> ClientData:
    """A user's own arrays as ClientData, or an error that says what does not fit.

    Features are what the model takes, already standardised: [n, C, H, W] or [n, d]. `members` has the rows of each
    client; rows that nobody has are left unused. Without `num_classes` the largest label decides.
    """
    labels, test_labels = as_labels(labels), as_labels(test_labels)
    if num_classes is None:
        num_classes = 1 + max(int(each.max(initial=0)) for each in (labels, test_labels))
    return ClientData(
        name=name,
        features=_as_inputs(features, "features"),
        labels=labels,
        members=tuple(_as_rows(rows, client) for client, rows in enumerate(members)),
        test_features=_as_inputs(test_features, "test_features"),
        test_labels=test_labels,
        num_classes=require_count(num_classes, "num_classes"),
        names=tuple(map(str, range(len(members)))) if names is None else tuple(names),
        provenance=provenance,
        split=split,
    )


def split(
    dataset: Dataset,
    how: How,
    num_clients: int | None = None,
    *,
    rng: np.random.Generator,
    concentration: float = 0.3,
    min_examples: int = 10,
    graph: SocialGraph | None = None,
    names: Sequence[str] | None = None,
    uneven: float = 0.0,
) -> ClientData:
    """The training examples divided among clients, each used once; everyone has at least `min_examples`.

    iid        in random order; sizes equal up to one, or lognormal with standard deviation `uneven` of their logarithm
    dirichlet  each class in proportions drawn from Dirichlet(concentration): the smaller, the fewer labels each has
    community  members of one community of `graph` prefer the same labels: preferences ~ Dirichlet(concentration)
    natural    by the data set's users; with `graph`, its clients must be the users, by name

    Where the draw leaves a client with too few examples it is repeated, and at last examples are moved from the
    largest clients (partition.py has the details; ClientData.split says how many). With `graph` the clients are the
    graph's, in its order. Raises BadInput where the examples are too few, or the arguments do not fit together.
    """
    min_examples = require_count(min_examples, "min_examples")
    concentration = require_number(concentration, "concentration", 0.0, 1e6)
    uneven = require_number(uneven, "uneven", 0.0, 10.0, open_ends=False)
    if how not in ("iid", "dirichlet", "community", "natural"):
        raise BadInput(f'how={how!r} must be "iid", "dirichlet", "community" or "natural".')
    if uneven and how != "iid":
        raise BadInput(f'uneven={uneven:g} is for how="iid" only: a {how} split has sizes of its own. Leave it out.')
    labels = dataset.train.labels
    if how == "natural":
        owners, called = _owners_by_user(dataset, graph)
        _require_size(num_clients, len(called), "users")
        _require_min(owners, called, min_examples)
        told = "natural, by user"
    else:
        size = _size(num_clients, graph, names)
        called = tuple(map(str, range(size))) if graph is None else tuple(graph.name(i) for i in range(size))
        if how == "iid":
            owners = iid_owners(len(labels), size, rng, min_examples, uneven)
            told = f"IID, {f'lognormal({uneven:g})' if uneven else 'equal'} sizes"
        elif how == "dirichlet":
            owners, moved = dirichlet_owners(labels, size, concentration, rng, min_examples)
            told = f"Dirichlet({concentration:g}) over labels, at least {min_examples} each{_told_moved(moved)}"
        else:
            if graph is None:
                raise BadInput('how="community" needs the graph whose communities it is about.')
            communities = communities_of(graph, rng)
            owners, moved = community_owners(labels, communities, concentration, rng, min_examples)
            told = (
                f"{communities.max() + 1} communities, each with label preferences from Dirichlet({concentration:g}), "
                f"at least {min_examples} each{_told_moved(moved)}"
            )
    return ClientData(
        name=dataset.name,
        features=model_inputs(dataset, dataset.train.features),
        labels=labels,
        members=members_of(owners, len(called)),
        test_features=model_inputs(dataset, dataset.test.features),
        test_labels=dataset.test.labels,
        num_classes=dataset.num_classes,
        names=called if names is None else tuple(names),
        provenance=dataset.provenance,
        split=told,
    )


def _told_moved(moved: int) -> str:
    return f" ({moved:,} examples moved for that)" if moved else ""


def _size(num_clients: int | None, graph: SocialGraph | None, names: Sequence[str] | None) -> int:
    """The number of clients that all who say one agree on."""
    if graph is not None:
        _require_size(num_clients, graph.num_clients, "clients in the graph")
        return graph.num_clients
    if num_clients is None:
        if names is None:
            raise BadInput("num_clients is missing: give it, or a graph, or names.")
        return require_count(len(names), "the number of names")
    return require_count(num_clients, "num_clients")


def _require_size(num_clients: int | None, size: int, what: str) -> None:
    if num_clients is not None and num_clients != size:
        raise BadInput(f"num_clients={num_clients} does not fit: there are {size:,} {what}. Leave it out.")


def _owners_by_user(dataset: Dataset, graph: SocialGraph | None) -> tuple[Owners, tuple[str, ...]]:
    """The owner of each row, and the users' names in order of first appearance, or the graph's."""
    if dataset.users is None:
        raise BadInput(f"{dataset.name} does not say whose its examples are. Use iid, dirichlet or community.")
    if graph is None:
        called = tuple(dict.fromkeys(dataset.users))
    else:
        called = tuple(graph.name(i) for i in range(graph.num_clients))
    place = {name: i for i, name in enumerate(called)}
    strangers = [user for user in dict.fromkeys(dataset.users) if user not in place]
    if strangers:
        raise BadInput(
            f"{len(strangers):,} users of {dataset.name} are not in the graph: {joined_names(strangers)}. "
            "Leave their examples out, or add them to the graph."
        )
    return np.array([place[user] for user in dataset.users], dtype=np.int64), called


def _require_min(owners: Owners, called: tuple[str, ...], min_examples: int) -> None:
    sizes = np.bincount(owners, minlength=len(called))
    few = np.flatnonzero(sizes < min_examples)
    if len(few):
        raise BadInput(
            f"user {called[few[0]]!r} has {sizes[few[0]]} examples, min_examples is {min_examples} "
            f"({len(few):,} such of {len(called):,}). Leave such users out, or lower min_examples."
        )


def _as_inputs(values: Any, what: str) -> Inputs:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.dtype == np.uint8:
        raise BadInput(f"{what} of {array.dtype} are no model inputs: standardise them and give float32.")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        return array.astype(np.float32, copy=False)


def _as_rows(rows: Any, client: int) -> Rows:
    array = np.asarray(rows)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadInput(f"members of client {client} must be row numbers, got {array.dtype} of shape {array.shape}.")
    return array.astype(np.int64)


def _require_inputs(features: Inputs, labels: Labels, part: str) -> None:
    if features.dtype != np.float32 or features.ndim not in (2, 4):
        raise BadInput(
            f"{part}features must be float32 [n, C, H, W] or [n, d], got {features.dtype} of shape {features.shape}."
        )
    if labels.dtype != np.int64 or labels.shape != features.shape[:1] or len(labels) == 0:
        raise BadInput(
            f"{len(features):,} {part}examples have labels of {labels.dtype} {labels.shape}; give one int64 each."
        )
    if labels.min() < 0:
        raise BadInput(f"{part}label {int(labels.min())} is out of range: classes are counted from 0.")
    require_finite(features, f"{part}features")


def _require_names(names: tuple[str, ...], num_clients: int) -> None:
    if num_clients == 0:
        raise BadInput("there are no clients: members is empty.")
    if len(names) != num_clients:
        raise BadInput(f"{len(names):,} names do not fit {num_clients:,} clients; give one each.")
    if len(set(names)) < len(names):
        again, times = Counter(names).most_common(1)[0]
        raise BadInput(f"{times} clients are called {again!r}; names must differ.")


def _require_disjoint(members: tuple[Rows, ...], names: tuple[str, ...], num_rows: int) -> None:
    owners = np.full(num_rows, -1, dtype=np.int64)
    for client, rows in enumerate(members):
        if len(rows) == 0:
            raise BadInput(f"client {names[client]!r} has no examples. Give it some, or leave it out.")
        if rows.min() < 0 or rows.max() >= num_rows:
            wrong = int(rows[(rows < 0) | (rows >= num_rows)][0])
            raise BadInput(f"client {names[client]!r} has row {wrong}, which is none of 0 to {num_rows - 1}.")
        taken = owners[rows] >= 0
        if taken.any():
            row = int(rows[taken][0])
            raise BadInput(f"row {row} is {names[client]!r}'s and {names[owners[row]]!r}'s; give it to one of them.")
        owners[rows] = client
        if len(np.unique(rows)) < len(rows):
            raise BadInput(f"client {names[client]!r} has a row twice. Give each row once.")
