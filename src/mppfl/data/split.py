"""ClientData: which client learns from which examples; split_dataset divides a data set among clients."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mppfl.arrays import require_count, require_number
from mppfl.data.dataset import (
    Dataset,
    Examples,
    Inputs,
    Labels,
    as_features,
    as_labels,
    model_inputs,
    own_dataset,
    require_finite,
    require_labels_below,
    unchangeable,
)
from mppfl.errors import BadInput
from mppfl.network import SocialGraph, communities_of
from mppfl.text import joined_names

Owners = NDArray[np.int64]
REDRAWS = 10  # of a division by labels, before examples are moved instead


How = Literal["iid", "dirichlet", "community", "natural"]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class ClientData:
    """What every client learns from: one table of examples, and which rows belong to which client.

    Made by `split_dataset`, or by `client_data` from model inputs that are already divided.

    Args:
        name: Name of the data set.
        features: Model inputs, float32 [n, C, H, W] or [n, d].
        labels: int64 [n], classes counted from 0.
        members: Rows of each client: at least one, none of another client's unless they overlap. Sizes may differ.
        test_features: Model inputs of the test part.
        test_labels: Labels of the test part.
        num_classes: Number of classes.
        names: Names of the clients.
        provenance: Where the examples come from.
        split: How they were divided.
        overlapping: Whether a row may be several clients', each of whom has a copy: a guarantee hides one of these.

    Example:
        >>> import numpy as np
        >>> X, y = np.random.default_rng(0).random((100, 5)), np.arange(100) % 2
        >>> split_dataset((X, y), "iid", 4, rng=np.random.default_rng(0))
        ClientData: own data, 4 clients, 80 training and 20 test examples, 2 classes
          inputs       (5,) float32
          clients      '0', '1', '2', '3' with 20 to 20 examples each
          split        IID, equal sizes
          provenance   given as arrays, every fifth example of each class held out for testing
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
    overlapping: bool = False

    def __post_init__(self) -> None:
        for part, prefix, whose in (("", "", "training"), ("test ", "test_", "test")):
            features = _as_inputs(getattr(self, f"{prefix}features"), part)
            labels = as_labels(getattr(self, f"{prefix}labels"))
            if len(labels) != len(features) or len(labels) == 0:
                have = f"{len(features):,} {part}examples have labels of {labels.dtype} {labels.shape}"
                raise BadInput(f"{have}; give one int64 each.")
            require_labels_below(labels, self.num_classes, whose)
            object.__setattr__(self, f"{prefix}features", unchangeable(features))
            object.__setattr__(self, f"{prefix}labels", unchangeable(labels))
        if self.features.shape[1:] != self.test_features.shape[1:]:
            raise BadInput(
                f"test features have shape {self.test_features.shape[1:]}, the others {self.features.shape[1:]}."
            )
        _require_names(self.names, len(self.members))
        object.__setattr__(self, "members", _divided(self.members, self.names, len(self.labels), self.overlapping))

    def __repr__(self) -> str:
        sizes = self.num_examples
        return (
            f"ClientData: {self.name}, {self.num_clients:,} clients, {sizes.sum():,} training and "
            f"{len(self.test_labels):,} test examples, {self.num_classes} classes\n"
            f"  inputs       {self.input_shape} {self.features.dtype}\n"
            f"  clients      {joined_names(self.names)} with {sizes.min():,} to {sizes.max():,} examples each\n"
            f"  split        {self.split}\n"
            f"  provenance   {self.provenance}"
        )

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
        """Hash of what clients learn from: shapes and every bit of examples, labels and members."""
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
    overlapping: bool = False,
) -> ClientData:
    """A user's own arrays as ClientData, or an error that says what does not fit.

    Features are what the model takes, already standardised: [n, C, H, W] or [n, d]. `members` has the rows of each
    client; rows that nobody has are left unused, and of `overlapping` clients each has a copy of its own. Without
    `num_classes` the largest label decides.

    Example:
        >>> import numpy as np
        >>> x, y = np.zeros((4, 3)), np.array([0, 1, 0, 1])
        >>> client_data(x, y, [[0, 1], [2, 3]], x, y).num_clients
        2
    """
    labels, test_labels = as_labels(labels), as_labels(test_labels)
    if num_classes is None:
        num_classes = 1 + max(int(part.max(initial=0)) for part in (labels, test_labels))
    return ClientData(
        name=name,
        features=features,
        labels=labels,
        members=tuple(members),
        test_features=test_features,
        test_labels=test_labels,
        num_classes=require_count(num_classes, "num_classes"),
        names=tuple(map(str, range(len(members)))) if names is None else tuple(names),
        provenance=provenance,
        split=split,
        overlapping=overlapping,
    )


def split_dataset(
    dataset: Dataset | tuple[Any, Any],
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
    """The training examples divided among clients, each used once.

    iid        in random order; sizes equal up to one, or lognormal with standard deviation `uneven` of their logarithm
    dirichlet  each class in proportions drawn from Dirichlet(concentration): the smaller, the fewer labels per client
    community  members of one community of `graph` prefer the same labels: preferences ~ Dirichlet(concentration)
    natural    by the data set's users; with `graph`, its clients must be the users, by name

    Where the draw leaves a client with too few examples it is repeated, and at last examples are moved from the
    largest clients (ClientData.split says how many).

    Args:
        dataset: From load_dataset; or own arrays, either (X, y), of which every fifth example of each class is held out
            for testing, or ((X, y), (X_test, y_test)). X is [n, H, W, C], [n, H, W] or [n, d], y whole numbers from 0.
            Bytes are standardised to -1 to 1, other numbers left as they are.
        how: "iid", "dirichlet", "community" or "natural".
        num_clients: Number of clients; by default that of `graph` or `names`.
        rng: Source of randomness.
        concentration: Of the Dirichlet distribution.
        min_examples: Every client has at least this many.
        graph: The social graph whose clients these are, in its order.
        names: Names of the clients.
        uneven: Spread of sizes of an "iid" split.

    Returns:
        The examples of every client as model inputs, and the test part.

    Raises:
        BadInput: Too few examples, arrays of wrong shape, or arguments that do not fit together.

    Example:
        >>> import numpy as np
        >>> X, y = np.random.default_rng(0).random((100, 5)), np.arange(100) % 2
        >>> split_dataset((X, y), "dirichlet", 4, rng=np.random.default_rng(0)).num_clients
        4
    """
    dataset = dataset if isinstance(dataset, Dataset) else _dataset_of_arrays(dataset)
    min_examples = require_count(min_examples, "min_examples")
    concentration = require_number(concentration, "concentration", 0.0, 1e6)
    uneven = require_number(uneven, "uneven", 0.0, 10.0, open_ends=False)
    if how not in get_args(How):
        raise BadInput(f'how={how!r} must be "iid", "dirichlet", "community" or "natural".')
    if uneven and how != "iid":
        raise BadInput(f'uneven={uneven:g} is for how="iid" only: a {how} split has sizes of its own. Leave it out.')
    clients = None if graph is None else tuple(graph.name(i) for i in range(graph.num_clients))
    if how == "natural":
        owners, clients = _owners_by_user(dataset, clients, min_examples)
        _require_size(num_clients, len(clients), "users")
        description = "natural, by user"
    else:
        clients = clients or tuple(map(str, range(_size(num_clients, names))))
        _require_size(num_clients, len(clients), "clients in the graph")
        owners, description = _drawn_owners(
            dataset.train.labels, how, len(clients), rng, concentration, min_examples, graph, uneven
        )
    return ClientData(
        name=dataset.name,
        features=model_inputs(dataset, dataset.train.features),
        labels=dataset.train.labels,
        members=_members_of(owners, len(clients)),
        test_features=model_inputs(dataset, dataset.test.features),
        test_labels=dataset.test.labels,
        num_classes=dataset.num_classes,
        names=clients if names is None else tuple(names),
        provenance=dataset.provenance,
        split=description,
    )


def _dataset_of_arrays(arrays: Any) -> Dataset:
    """Own arrays (X, y) or ((X, y), (X_test, y_test)) as a data set."""
    if not isinstance(arrays, (tuple, list)) or len(arrays) != 2:
        count = f" of {len(arrays)}" if isinstance(arrays, (tuple, list)) else ""
        raise BadInput(
            f"{type(arrays).__name__}{count} is no data set. Give load_dataset(...), (X, y) or ((X, y), (X2, y2))."
        )
    train, test = arrays
    if isinstance(train, tuple) and isinstance(test, tuple):
        for part, pair in (("(X, y)", train), ("(X_test, y_test)", test)):
            if len(pair) != 2:
                raise BadInput(f"{part} has {len(pair)} arrays; give two, features and labels.")
        return own_dataset("own data", train, test, "given as arrays")
    given = Examples(as_features(train), test)
    is_test = np.zeros(len(given), dtype=bool)
    for rows in _rows_of_classes(given.labels):
        is_test[rows[4::5]] = True
    if not is_test.any():
        raise BadInput("no class has five examples to hold one out for testing. Give ((X, y), (X_test, y_test)).")
    train, test = ((given.features[rows], given.labels[rows]) for rows in (~is_test, is_test))
    return own_dataset(
        "own data", train, test, "given as arrays, every fifth example of each class held out for testing"
    )


def _size(num_clients: int | None, names: Sequence[str] | None) -> int:
    """The number of clients where no graph has it."""
    if num_clients is None and names is None:
        raise BadInput("num_clients is missing: give it, or a graph, or names.")
    return require_count(len(names or ()) if num_clients is None else num_clients, "num_clients")


def _require_size(num_clients: int | None, size: int, what: str) -> None:
    if num_clients is not None and num_clients != size:
        raise BadInput(f"num_clients={num_clients} does not fit: there are {size:,} {what}. Leave it out.")


def _owners_by_user(
    dataset: Dataset, clients: tuple[str, ...] | None, min_examples: int
) -> tuple[Owners, tuple[str, ...]]:
    """The owner of each row, and the clients: those of the graph, or the users in order of first appearance."""
    if dataset.users is None:
        raise BadInput(f"{dataset.name} does not say whose its examples are. Use iid, dirichlet or community.")
    users = tuple(dict.fromkeys(dataset.users))
    clients = users if clients is None else clients
    position = {name: i for i, name in enumerate(clients)}
    strangers = [user for user in users if user not in position]
    if strangers:
        raise BadInput(
            f"{len(strangers):,} users of {dataset.name} are not in the graph: {joined_names(strangers)}. "
            "Leave their examples out, or add them to the graph."
        )
    owners = np.array([position[user] for user in dataset.users], dtype=np.int64)
    sizes = np.bincount(owners, minlength=len(clients))
    few = np.flatnonzero(sizes < min_examples)
    if len(few):
        raise BadInput(
            f"user {clients[few[0]]!r} has {sizes[few[0]]} examples, min_examples is {min_examples} "
            f"({len(few):,} such of {len(clients):,}). Leave such users out, or lower min_examples."
        )
    return owners, clients


def _as_inputs(values: Any, part: str) -> Inputs:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.dtype == np.uint8:
        raise BadInput(f"{part}features of {array.dtype} are no model inputs: standardise them and give float32.")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        features: Inputs = array.astype(np.float32, copy=False)
    if features.ndim not in (2, 4):
        raise BadInput(f"{part}features must be float32 [n, C, H, W] or [n, d], got float32 of shape {features.shape}.")
    require_finite(features, f"{part}features")
    return features


def _require_names(names: tuple[str, ...], num_clients: int) -> None:
    if num_clients == 0:
        raise BadInput("there are no clients: members is empty.")
    if len(names) != num_clients:
        raise BadInput(f"{len(names):,} names do not fit {num_clients:,} clients; give one each.")
    if len(set(names)) < len(names):
        again, times = Counter(names).most_common(1)[0]
        raise BadInput(f"{times} clients are called {again!r}; names must differ.")


def _divided(members: Sequence[Any], names: tuple[str, ...], num_rows: int, overlapping: bool) -> tuple[Rows, ...]:
    """The rows of each client, none of them another's unless they overlap."""
    owners = np.full(num_rows, -1, dtype=np.int64)
    divided = []
    for client, of_client in enumerate(members):
        rows = np.asarray(of_client)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise BadInput(f"members of client {client} must be row numbers, got {rows.dtype} of shape {rows.shape}.")
        if len(rows) == 0:
            raise BadInput(f"client {names[client]!r} has no examples. Give it some, or leave it out.")
        wrong = rows[(rows < 0) | (rows >= num_rows)]
        if len(wrong):
            raise BadInput(f"client {names[client]!r} has row {wrong[0]}, which is none of 0 to {num_rows - 1}.")
        taken = rows[owners[rows] >= 0]
        if len(taken) and not overlapping:
            other = names[owners[taken[0]]]
            raise BadInput(
                f"row {taken[0]} is {names[client]!r}'s and {other!r}'s; give it to one of them, or say overlapping."
            )
        owners[rows] = client
        if len(np.unique(rows)) < len(rows):
            raise BadInput(f"client {names[client]!r} has a row twice. Give each row once.")
        divided.append(unchangeable(rows.astype(np.int64, copy=False)))
    return tuple(divided)


# ---- the owner of every row, int64 [n], so that no example is used twice or left out ------------------------------


def _drawn_owners(
    labels: Labels,
    how: How,
    num_clients: int,
    rng: np.random.Generator,
    concentration: float,
    min_examples: int,
    graph: SocialGraph | None,
    uneven: float,
) -> tuple[Owners, str]:
    """The owner of each row, and how it was drawn, for people.

    Draws up to REDRAWS times; if none gives everyone `min_examples`, takes the draw that lacks the fewest, lowers the
    largest clients to a common size, and gives what they lose, chosen at random, to those who have too few.
    """
    if len(labels) < num_clients * min_examples:
        raise BadInput(
            f"{len(labels):,} training examples are too few for {num_clients:,} clients with at least "
            f"{min_examples:,} each. Take at most {len(labels) // min_examples:,} clients, or lower min_examples."
        )
    if how == "iid":
        sizes = f"lognormal({uneven:g})" if uneven else "equal"
        return _iid_owners(len(labels), num_clients, rng, min_examples, uneven), f"IID, {sizes} sizes"
    if how == "dirichlet":
        rule = f"Dirichlet({concentration:g}) over labels"
        draw = partial(_dirichlet_owners, labels, num_clients, rng, concentration)
    else:
        if graph is None:
            raise BadInput('how="community" needs the graph whose communities it is about.')
        communities = communities_of(graph, rng)
        rule = f"{communities.max() + 1} communities, each with label preferences from Dirichlet({concentration:g})"
        draw = partial(_community_owners, labels, communities, rng, concentration)
    fewest, owners = len(labels) + 1, np.empty(0, dtype=np.int64)
    for _ in range(REDRAWS):
        drawn = draw()
        missing = int(np.maximum(min_examples - np.bincount(drawn, minlength=num_clients), 0).sum())
        if missing < fewest:
            fewest, owners = missing, drawn
        if missing == 0:
            return owners, f"{rule}, at least {min_examples} each"
    moved = f"({fewest:,} examples moved for that)"
    return _evened(owners, num_clients, rng, min_examples), f"{rule}, at least {min_examples} each {moved}"


def _iid_owners(num_rows: int, num_clients: int, rng: np.random.Generator, min_examples: int, uneven: float) -> Owners:
    """Rows in random order; sizes equal up to one, or `min_examples` and a share in proportion to exp(uneven · normal).

    Shares are rounded so that all rows are used: the largest remainders up.
    """
    weights, least = np.ones(num_clients), 0
    if uneven:
        exponents = uneven * rng.standard_normal(num_clients)
        weights, least = np.exp(exponents - exponents.max()), min_examples  # at most 1: no weight overflows
    exact = (num_rows - num_clients * least) * (weights / weights.sum())
    whole = np.floor(exact)
    sizes = least + whole.astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")
    sizes[order[: num_rows - int(sizes.sum())]] += 1
    owners = np.repeat(np.arange(num_clients), sizes)
    rng.shuffle(owners)
    return owners


def _dirichlet_owners(labels: Labels, num_clients: int, rng: np.random.Generator, concentration: float) -> Owners:
    """Each class is divided among all clients in proportions drawn from a symmetric Dirichlet distribution."""
    owners = np.empty(len(labels), dtype=np.int64)
    for rows in _rows_of_classes(labels):
        shares = rng.dirichlet(np.full(num_clients, concentration))
        ends = np.floor(np.cumsum(shares) * len(rows) + 1e-9).astype(np.int64)
        ends[-1] = len(rows)  # the shares sum to 1 but for rounding
        owners[rng.permutation(rows)] = np.repeat(np.arange(num_clients), np.diff(ends, prepend=0))
    return owners


def _community_owners(labels: Labels, communities: Rows, rng: np.random.Generator, concentration: float) -> Owners:
    """Clients of one community prefer the same labels. `communities` has one entry per client.

    Each community c draws its preferences q_c over the classes from a symmetric Dirichlet distribution. Every example
    of class k then goes to client i with probability q_c(i),k / Σ_j q_c(j),k, independently of the others: members of
    a community differ by chance only. A class that nobody prefers at all goes to everyone alike.
    """
    preferences = rng.dirichlet(np.full(int(labels.max()) + 1, concentration), size=int(communities.max()) + 1)
    owners = np.empty(len(labels), dtype=np.int64)
    for rows in _rows_of_classes(labels):
        liking = preferences[communities, labels[rows[0]]]
        chances = liking / liking.sum() if liking.sum() > 0 else np.full(len(communities), 1.0 / len(communities))
        owners[rows] = rng.choice(len(communities), size=len(rows), p=chances)
    return owners


def _members_of(owners: Owners, num_clients: int) -> tuple[Rows, ...]:
    """The rows of each client, in rising order."""
    in_order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=num_clients))
    return tuple(np.split(in_order, ends[:-1]))


def _rows_of_classes(labels: Labels) -> list[Rows]:
    """The rows of each class that occurs."""
    return [rows for rows in _members_of(labels, int(labels.max()) + 1) if len(rows)]


def _evened(owners: Owners, num_clients: int, rng: np.random.Generator, min_examples: int) -> Owners:
    """The same owners, except that the largest clients have given what the smallest lacked."""
    sizes = np.bincount(owners, minlength=num_clients)
    lacking = np.maximum(min_examples - sizes, 0)
    needed = int(lacking.sum())
    low, high = min_examples, int(sizes.max())  # at `low` the larger clients can give enough, at `high` nothing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= needed else (low, middle)
    giving = np.maximum(sizes - low, 0)
    spare = int(giving.sum()) - needed  # less than one a giver
    giving[rng.permutation(np.flatnonzero(giving))[:spare]] -= 1
    members = _members_of(owners, num_clients)
    given = [rng.choice(members[client], giving[client], replace=False) for client in np.flatnonzero(giving)]
    evened = owners.copy()
    evened[rng.permutation(np.concatenate(given))] = np.repeat(np.arange(num_clients), lacking)
    return evened
