"""Every training example has one owner, every client enough examples, and one stream gives one division."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

import mppfl
from mppfl.data import Dataset, Examples, client_data, load_dataset, split_dataset
from mppfl.errors import BadInput


def dataset(labels, users=None):
    """Flat examples whose one feature is their row, so that it can be told who got which."""
    labels = np.asarray(labels, dtype=np.int64)
    train = Examples(np.arange(len(labels), dtype=np.float32)[:, None], labels)
    test = Examples(train.features[:2], labels[:2])
    classes = tuple(map(str, range(int(labels.max()) + 1)))
    return Dataset("rows", train, test, classes, "drawn", (0.0,), (1.0,), users)


def balanced(num_rows):
    return dataset(np.arange(num_rows) % 10)


def two_circles():
    """Two groups of ten in which everyone knows everyone, joined by one edge."""
    options = {"sizes": [10, 10], "within": 1.0, "between": 0.01}
    return mppfl.random_graph("stochastic_block", 20, rng=np.random.default_rng(0), **options)


def is_a_partition(data):
    rows = np.sort(np.concatenate(data.members))
    return np.array_equal(rows, np.arange(len(data.labels)))


@st.composite
def divisions(draw):
    how = draw(st.sampled_from(["iid", "dirichlet", "community"]))
    num_clients, min_examples = draw(st.integers(2 if how == "community" else 1, 12)), draw(st.integers(1, 6))
    num_rows = max(num_clients * min_examples + draw(st.integers(0, 200)), 2)
    labels = draw(st.lists(st.integers(0, draw(st.integers(0, 9))), min_size=num_rows, max_size=num_rows))
    options = {"min_examples": min_examples, "concentration": draw(st.sampled_from([1e-8, 0.01, 0.3, 1.0, 1e5]))}
    if how == "iid":
        options["uneven"] = draw(st.sampled_from([0.0, 0.5, 3.0, 10.0]))
    if how == "community":
        rng = np.random.default_rng(draw(st.integers(0, 1000)))
        options["graph"] = mppfl.random_graph("erdos_renyi", num_clients, rng=rng)
    return dataset(labels), how, num_clients, options, draw(st.integers(0, 2**32))


@given(divisions())
@settings(max_examples=150, deadline=None)
def test_every_example_has_one_owner_every_client_enough_and_one_stream_gives_one_division(division):
    data, how, num_clients, options, seed = division
    once, again = (split_dataset(data, how, num_clients, rng=np.random.default_rng(seed), **options) for _ in range(2))
    assert is_a_partition(once)
    assert once.num_clients == num_clients == len(once.names)
    assert once.num_examples.min() >= options["min_examples"]
    assert once.num_examples.sum() == len(data.train)
    assert once.split == again.split
    assert all(np.array_equal(one, other) for one, other in zip(once.members, again.members, strict=True))


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60))
def test_a_natural_split_gives_everyone_their_own(owners):
    users = tuple(f"user {number}" for number in owners)
    data = dataset([0] * len(users), users=users)
    clients = split_dataset(data, "natural", rng=np.random.default_rng(0), min_examples=1)
    assert is_a_partition(clients)
    assert clients.names == tuple(dict.fromkeys(users))
    for name, rows in zip(clients.names, clients.members, strict=True):
        assert all(users[row] == name for row in rows)


# ---- each way of dividing ---------------------------------------------------------------------------------------


def test_iid_sizes_are_equal_up_to_one_or_lognormal_and_rows_sorted_by_class_are_shuffled():
    even = split_dataset(balanced(103), "iid", 10, rng=np.random.default_rng(0))
    assert sorted(even.num_examples) == [10] * 7 + [11] * 3
    assert even.split == "IID, equal sizes"
    uneven = split_dataset(balanced(200_000), "iid", 500, rng=np.random.default_rng(0), uneven=0.7, min_examples=1)
    assert np.log(uneven.num_examples).std() == approx(0.7, abs=0.1)  # standard error 0.022
    assert uneven.split == "IID, lognormal(0.7) sizes"
    mixed = split_dataset(dataset(np.repeat(np.arange(10), 100)), "iid", 5, rng=np.random.default_rng(0))
    # 200 of 1,000 rows: 20 of each class on average, standard deviation 3.8; outside 2 to 38 once in a million.
    assert all(2 <= count <= 38 for client in range(5) for count in np.bincount(mixed.of(client)[1], minlength=10))


@pytest.mark.parametrize("concentration", [0.5, 5.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(concentration):
    # A share of Dirichlet(β) over N clients has mean 1/N and variance (1/N)(1 - 1/N) / (Nβ + 1).
    data, options, shares = dataset(np.arange(4_000) % 2), {"concentration": concentration, "min_examples": 1}, []
    for seed in range(200):
        clients = split_dataset(data, "dirichlet", 4, rng=np.random.default_rng(seed), **options)
        shares += [(clients.of(client)[1] == 0).sum() / 2_000 for client in range(4)]
    assert np.mean(shares) == approx(0.25)
    assert np.var(shares) == approx(0.25 * 0.75 / (4 * concentration + 1), rel=0.3)


def test_examples_are_moved_where_no_draw_gives_everyone_enough_and_that_is_told():
    found = split_dataset(balanced(1000), "dirichlet", 100, rng=np.random.default_rng(0), concentration=0.01)
    assert (found.num_examples == 10).all()  # there are no more than that
    assert "at least 10 each" in found.split
    assert "examples moved for that" in found.split
    found = split_dataset(balanced(10_000), "dirichlet", 10, rng=np.random.default_rng(0), concentration=1.0)
    assert found.split == "Dirichlet(1) over labels, at least 10 each"
    assert len(set(found.num_examples)) > 5  # sizes differ


def test_members_of_a_community_prefer_the_same_labels():
    graph = two_circles()
    data = split_dataset(balanced(20_000), "community", graph=graph, rng=np.random.default_rng(0), concentration=0.3)
    counts = np.array([np.bincount(data.of(client)[1], minlength=10) for client in range(20)])
    shares = counts / data.num_examples[:, None]
    apart = np.abs(shares[:, None] - shares[None]).sum(axis=2) / 2  # total variation between two clients
    same = np.arange(20)[:, None] // 10 == np.arange(20)[None] // 10
    assert apart[same].max() < 0.15
    assert apart[~same].min() > 0.4
    assert data.split.startswith("2 communities, each with label preferences from Dirichlet(0.3)")
    assert data.names == tuple(graph.name(i) for i in range(20))


def test_a_natural_split_follows_the_graph_where_there_is_one():
    graph = mppfl.graph_from_edges(np.array([0, 1]), np.array([1, 0]), names=["bob", "ann"])
    data = dataset([0, 1, 0, 1], users=("ann", "bob", "ann", "ann"))
    found = split_dataset(data, "natural", graph=graph, rng=np.random.default_rng(0), min_examples=1)
    assert found.names == ("bob", "ann")
    assert [rows.tolist() for rows in found.members] == [[1], [0, 2, 3]]
    stranger = dataclasses.replace(data, users=("ann", "bob", "eve", "ann"))
    with pytest.raises(BadInput, match="1 users of rows are not in the graph: 'eve'"):
        split_dataset(stranger, "natural", graph=graph, rng=np.random.default_rng(0), min_examples=1)


def test_clients_have_what_they_own_and_cannot_change_it():
    data = split_dataset(load_dataset("digits"), "dirichlet", 7, rng=np.random.default_rng(0), names=list("abcdefg"))
    assert (data.input_shape, data.names) == ((1, 8, 8), tuple("abcdefg"))
    assert data.of(3)[0].shape == (data.num_examples[3], 1, 8, 8)
    arrays = data.features, data.labels, data.test_features, data.test_labels, *data.members
    assert not any(array.flags.writeable for array in arrays)


TWO = ("ann",) * 99 + ("bob",)


@pytest.mark.parametrize(
    ("how", "num_clients", "options", "words"),
    [
        ("iid", 11, {}, "100 training examples are too few for 11 clients with at least 10 each. Take at most 10"),
        ("dirichlet", 11, {}, "too few for 11 clients"),
        ("sorted", 5, {}, "how='sorted' must be"),
        ("iid", None, {}, "num_clients is missing"),
        ("iid", 5, {"min_examples": 0}, "min_examples=0"),
        ("iid", 5, {"uneven": -1}, "uneven=-1 must lie in"),
        ("dirichlet", 5, {"uneven": 1}, "uneven=1 is for how"),
        ("dirichlet", 5, {"concentration": 0}, "concentration=0 must lie in"),
        ("dirichlet", 5, {"names": ["a", "b"]}, "2 names do not fit 5 clients"),
        ("dirichlet", 2, {"names": ["a", "a"]}, "2 clients are called 'a'"),
        ("community", 5, {}, "needs the graph"),
        ("community", 7, {"graph": two_circles()}, "num_clients=7 does not fit: there are 20 clients in the graph"),
        ("natural", None, {}, "rows does not say whose its examples are"),
        ("natural", None, {"users": TWO}, "user 'bob' has 1 examples, min_examples is 10 (1 such of 2)"),
        ("natural", 3, {"users": TWO, "min_examples": 1}, "num_clients=3 does not fit: there are 2 users"),
    ],
)
def test_what_cannot_be_divided_is_refused(how, num_clients, options, words):
    data = dataclasses.replace(balanced(100), users=options.pop("users", None))
    with pytest.raises(BadInput) as caught:
        split_dataset(data, how, num_clients, rng=np.random.default_rng(0), **options)
    assert words in str(caught.value)


# ---- a user's own arrays ----------------------------------------------------------------------------------------


def test_own_arrays_are_split_without_a_file():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (50, 4, 4), dtype=np.uint8), np.arange(50) % 2
    data = split_dataset(((X, y), (X[:7], y[:7])), "iid", 3, rng=rng)
    assert is_a_partition(data)
    assert (data.num_clients, data.input_shape, data.provenance) == (3, (1, 4, 4), "given as arrays")
    assert data.test_features[:, 0] == approx(X[:7] / 127.5 - 1, abs=1e-6)


def test_of_own_arrays_without_a_test_part_every_fifth_example_of_a_class_is_held_out():
    X, y = np.arange(40, dtype=np.float32)[:, None], np.repeat([0, 1, 2], [20, 17, 3])
    data = split_dataset((X, y), "dirichlet", 2, rng=np.random.default_rng(0))
    assert data.test_features[:, 0].tolist() == [4, 9, 14, 19, 24, 29, 34]
    assert data.num_examples.sum() == 33
    assert "every fifth example of each class held out for testing" in data.provenance
    lines = repr(data).splitlines()
    assert lines[0] == "ClientData: own data, 2 clients, 33 training and 7 test examples, 3 classes"
    assert len(lines) <= 12


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (np.zeros((5, 3)), "ndarray is no data set. Give load_dataset(...), (X, y) or ((X, y), (X2, y2))."),
        ((np.zeros((5, 3)),), "tuple of 1 is no data set"),
        ((np.zeros((4, 3)), np.zeros(4, int)), "no class has five examples to hold one out for testing"),
        (((np.zeros((5, 3)),), (np.zeros((5, 3)), np.zeros(5, int))), "(X, y) has 1 arrays; give two"),
        (((np.zeros((5, 3)), np.zeros(5, int)), (np.zeros((2, 4)), np.zeros(2, int))), "test examples have shape (4,)"),
    ],
)
def test_own_arrays_of_wrong_shape_are_refused_in_one_line(arrays, words):
    with pytest.raises(BadInput) as caught:
        split_dataset(arrays, "iid", 1, rng=np.random.default_rng(0), min_examples=1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


OWN = {
    "features": np.zeros((5, 3)),
    "labels": [0, 1, 2, 1, 0],
    "members": [[0, 3], [1]],
    "test_features": np.zeros((2, 3)),
    "test_labels": [0, 3],
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": np.zeros((5, 3), np.uint8)}, "features of uint8 are no model inputs"),
        ({"features": np.zeros(5)}, "float32 [n, C, H, W] or [n, d], got float32 of shape (5,)"),
        ({"features": np.full((5, 3), np.inf)}, "features of example 0 hold NaN or an infinity"),
        ({"test_features": np.zeros((2, 4))}, "test features have shape (4,), the others (3,)"),
        ({"labels": [0, 1]}, "5 examples have labels of int64 (2,)"),
        ({"labels": [0, 1, -2, 1, 0]}, "label -2 of example 2"),
        ({"num_classes": 3}, "test label 3 of example 1 is out of range 0 to 2"),
        ({"members": []}, "no clients"),
        ({"members": [[0], []]}, "members of client 1 must be row numbers"),
        ({"members": [[0], np.zeros(0, int)]}, "client '1' has no examples"),
        ({"members": [[0], [5]]}, "client '1' has row 5, which is none of 0 to 4"),
        ({"members": [[0, 1], [2, 1]]}, "row 1 is '1''s and '0''s"),
        ({"members": [[0, 0], [1]]}, "client '0' has a row twice"),
        ({"names": ["ann"]}, "1 names do not fit 2 clients"),
    ],
)
def test_own_arrays_become_client_data_or_are_refused(changes, words):
    data = client_data(**OWN, names=["ann", "bob"])
    assert (data.num_clients, data.num_classes, data.input_shape, data.features.dtype) == (2, 4, (3,), np.float32)
    assert (data.num_examples.tolist(), data.of(0)[1].tolist()) == ([2, 1], [0, 1])
    with pytest.raises(BadInput) as caught:
        client_data(**{**OWN, **changes})
    assert words in str(caught.value)


def test_clients_may_overlap_if_that_is_said():
    shared = client_data(**{**OWN, "members": [[0, 1], [2, 1]]}, overlapping=True)
    assert [rows.tolist() for rows in shared.members] == [[0, 1], [2, 1]]
