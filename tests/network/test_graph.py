"""SocialGraph: normalisation, recovery of the edges as given, isolated clients, refusals, description."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytest import approx

from mppfl.errors import BadGraph, BadInput, UnknownClient
from mppfl.network import graph_from_edges, graph_from_matrix

NO_WEIGHTS = [0.0, -1.0, np.nan, np.inf]

# 0 is exposed by 1 (weight 1) and 2 (weight 3); 1 by 0 (2); 2 by 0 (1).
THREE = np.array([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


def weight_matrices(max_side=6):
    """Square matrices with a zero diagonal and at least one edge in every row."""
    weights = st.floats(1e-3, 1e3).map(lambda w: float(f"{w:.6g}"))

    def with_full_rows(matrix):
        size = len(matrix)
        np.fill_diagonal(matrix, 0.0)
        for row in np.flatnonzero(matrix.sum(axis=1) == 0):
            matrix[row, (row + 1) % size] = 1.0
        return matrix

    sides = st.integers(2, max_side)
    return sides.flatmap(lambda n: arrays(float, (n, n), elements=st.just(0.0) | weights)).map(with_full_rows)


@given(weight_matrices(), st.sampled_from(["row", "none", "symmetric"]))
def test_edges_are_recovered_as_they_were_given_and_one_by_one_make_the_same_graph(matrix, normalisation):
    graph = graph_from_matrix(matrix, normalisation=normalisation)
    assert graph.strengths == approx(matrix.sum(axis=1))
    assert (graph.edges().toarray() == matrix).all()  # to the last bit: weights of up to 15 digits
    if normalisation == "row":
        assert graph.influence.sum(axis=1) == approx(np.ones(len(matrix)))
    targets, sources = np.nonzero(matrix)
    ends = sources, targets, matrix[targets, sources]
    by_edges = graph_from_edges(*ends, num_clients=len(matrix), normalisation=normalisation)
    assert (by_edges.influence.toarray() == graph.influence.toarray()).all()


# 0 exposes 1 (weight 1) and 2 (3), and nobody exposes 0; 2 also exposes 1 (weight 4).
EXPOSER = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 4.0], [3.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("matrix", "normalisation", "strengths", "influence"),
    [
        (THREE, "row", [4, 2, 1], [[0, 0.25, 0.75], [1, 0, 0], [1, 0, 0]]),  # by the weights to which one is exposed
        (THREE, "none", [4, 2, 1], THREE),
        # By the roots of both strengths; that of an isolated exposer is the sum of its edges.
        (THREE, "symmetric", [4, 2, 1], [[0, 8**-0.5, 1.5], [2 / 8**0.5, 0, 0], [0.5, 0, 0]]),
        (EXPOSER, "symmetric", [4, 5, 3], [[0, 0, 0], [20**-0.5, 0, 4 / 15**0.5], [3 / 12**0.5, 0, 0]]),
    ],
)
def test_weights_are_normalised_as_asked_for(matrix, normalisation, strengths, influence):
    graph = graph_from_matrix(matrix, normalisation=normalisation, isolated="keep")
    assert graph.influence.toarray() == approx(np.array(influence))
    assert graph.strengths == approx(strengths)
    assert (graph.edges().toarray() == matrix).all()


@given(weight_matrices(max_side=5), st.sampled_from(["row", "symmetric"]))
def test_the_unit_of_weights_does_not_matter_also_where_nobody_exposes_a_client(matrix, normalisation):
    matrix[0] = 0.0  # exposes others, exposed by nobody
    assume(matrix.any())
    options = {"normalisation": normalisation, "isolated": "keep"}
    one, other = (graph_from_matrix(unit * matrix, **options).influence.toarray() for unit in (1.0, 100.0))
    assert other == approx(one, rel=1e-12)


def test_weights_of_one_are_recovered_as_one():
    # 49 · (1 / 49) is 0.9999999999999999 in floating point; weights of one come back as one all the same.
    graph = graph_from_edges(np.arange(1, 50), np.zeros(49, dtype=int), isolated="keep")
    assert (graph.edges().data == 1.0).all()


def test_a_edge_says_that_the_target_is_exposed_by_the_source_and_may_run_both_ways():
    for kind in (int, float, np.uint64, np.int8):  # whole positions may have a point, or no sign
        graph = graph_from_edges(np.array([1], dtype=kind), np.array([0], dtype=kind), isolated="keep")
        assert graph.influence.toarray().tolist() == [[0, 1], [0, 0]]
    graph = graph_from_edges([0, 1], [1, 2], [2.0, 5.0], undirected=True, normalisation="none")
    assert graph.influence.toarray().tolist() == [[0, 2, 0], [2, 0, 5], [0, 5, 0]]


def test_the_matrix_of_the_caller_is_left_alone_and_a_graph_cannot_be_written():
    given_matrix = sp.csr_array(THREE)
    given_matrix.data[0] = 0.0  # a stored zero, which the graph has no use for
    graph = graph_from_matrix(given_matrix, normalisation="row")
    assert given_matrix.nnz == 4
    given_matrix.data[0] = 7.0  # still writable
    assert given_matrix.toarray()[0].tolist() == [0, 7, 3]
    for values in (graph.influence.data, graph.influence.indices, graph.strengths, graph.origin):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


# 0 <- 1 <- 2 <- 3, and 3 <- nobody: a chain that falls edge by edge; 4 and 5 know each other.
CHAIN = {"sources": [1, 2, 3, 4, 5], "targets": [0, 1, 2, 5, 4], "names": ["a", "b", "c", "d", "e", "f"]}


def test_isolated_clients_are_refused_kept_with_empty_rows_or_dropped_one_after_another():
    with pytest.raises(BadGraph, match=r"1 of 6 clients are isolated .*'d'.*isolated=\"keep\""):
        graph_from_edges(**CHAIN)
    with pytest.raises(BadGraph, match=r"7 of 8 clients are isolated .*: '0', '1', '2', '3', '4', \.\.\.\."):
        graph_from_edges([0], [7], num_clients=8)
    kept = graph_from_edges(**CHAIN, isolated="keep")
    assert (kept.isolated.tolist(), kept.origin.tolist()) == ([3], [0, 1, 2, 3, 4, 5])
    assert kept.influence.sum(axis=1) == approx([1, 1, 1, 0, 1, 1])
    graph = graph_from_edges(**CHAIN, isolated="drop")  # d goes, then c, then b, then a
    assert (graph.names, graph.origin.tolist()) == (("e", "f"), [4, 5])
    assert graph.influence.toarray().tolist() == [[0, 1], [1, 0]]
    assert repr(graph).splitlines()[2] == "  exposed by   1 to 1 clients each, 0 isolated, 4 dropped"
    unnamed = graph_from_edges([2, 1, 0], [1, 2, 2], num_clients=3, isolated="drop")
    assert (unnamed.names, unnamed.origin.tolist()) == (("1", "2"), [1, 2])
    with pytest.raises(BadGraph, match="every client became isolated"):
        graph_from_edges([0, 1], [1, 2], isolated="drop")


def test_edges_given_twice_count_once_and_self_loops_can_be_dropped():
    graph = graph_from_edges([0, 1, 0], [1, 0, 1], [2.0, 1.0, 2.0], normalisation="none")
    assert (graph.num_edges, graph.influence[1, 0]) == (2, 2.0)
    assert graph_from_edges([0, 1], [1, 0], [2.0, 2.0], undirected=True).num_edges == 2
    assert graph_from_edges([0, 1, 1], [1, 0, 1], self_loops="drop").num_edges == 2
    dropped = graph_from_matrix(THREE + np.diag([0.0, 4.0, 0.0]), self_loops="drop")
    assert dropped.influence.toarray() == approx(graph_from_matrix(THREE).influence.toarray())


TWO = [0, 1], [1, 0]
NO_EDGES = [
    (([0, 0], [1, 1], [2.0, 3.0]), {"names": ["x", "y"]}, "from 'x' to 'y' is given twice, with weights 2 and 3"),
    ((*TWO, [2.0, 3.0]), {"undirected": True}, "given twice, with weights"),  # the directions must agree
    (([0, 1, 1], [1, 0, 1]), {}, r"client '1' is connected to itself \(1 self-loops\)"),
    (([0, 1], [0, 1]), {"self_loops": "drop"}, "no edges"),
    (([], []), {}, "no edges"),
    *[((*TWO, [1.0, weight]), {}, "edge from '1' to '0' has weight") for weight in NO_WEIGHTS],
    *[((*TWO, w), {}, "must be positive numbers, one for each edge") for w in (["a", 1.0], [[1.0, 1.0]], 3.0)],
    (([0, 1], [1]), {}, "2 sources, 1 targets and 2 weights"),
    (([0, 5], [1, 0]), {"num_clients": 3}, "edge end 5 is not one of 3 clients"),
    (([0.9, 1.2], [1, 0]), {}, r"sources hold 0\.9 at position 0; each must be a whole number from 0"),
    *[(([0.0, end], [1, 0]), {}, f"sources hold {end} at position 1") for end in (np.nan, np.inf)],
    ((["0", "1"], [1, 0]), {}, "sources must be positions of clients, whole numbers from 0, not .*'0'"),
    (([[0, 1]], [1, 0]), {}, r"sources of shape \(1, 2\) must be positions"),
    (([[0], [1, 2]], [1, 0]), {}, "sources must be positions, one for each edge"),
]
NO_MATRIX = [
    *[(np.array([[0, 1, 3], [2, 0, x], [1, 0, 0]]), r"entry \(1, 2\) of the matrix is") for x in NO_WEIGHTS[1:]],
    (THREE + np.diag([0.0, 4.0, 0.0]), "client '1' is connected to itself"),
    (np.ones((2, 3)), "square matrix, got shape"),
    ([[0, 1], [1]], "square matrix, got rows of several lengths"),
    (np.zeros((0, 0)), "no clients"),
    (np.zeros((2, 2)), "no edges"),
    (sp.coo_array((2**40, 2**40)), "at most 2,147,483,647 clients"),
    (np.array([["0", "1"], ["1", "0"]]), "square matrix of real numbers, got <U1"),
    (np.array([[0, 1j], [1j, 0]]), "square matrix of real numbers, got complex128"),
    *[(np.array([[0, a, b], [1, 0, 0], [1, 0, 0]]), "too far apart") for a, b in ((1e308, 1e308), (1e-300, 1e300))],
]
NO_OPTIONS = [
    ({"normalisation": "rows"}, "normalisation='rows' must be"),
    ({"isolated": "hide"}, "isolated='hide' must be"),
    ({"self_loops": "keep"}, "self_loops='keep' must be"),
    ({"names": ["a"]}, "1 names for 3 clients"),
    ({"names": ["a", "b", "a"]}, "two clients are called 'a'"),
    ({"names": [1, 2, 3]}, r"names=\[1, 2, 3\] must be a list of strings"),
    ({"names": "abc"}, "names='abc' must be a list of strings"),
]


@pytest.mark.parametrize(
    ("make", "arguments", "options", "error", "why"),
    [
        *[(graph_from_edges, edges, options, BadGraph, why) for edges, options, why in NO_EDGES],
        *[(graph_from_matrix, (matrix,), {}, BadGraph, why) for matrix, why in NO_MATRIX],
        *[(graph_from_matrix, (THREE,), options, BadInput, why) for options, why in NO_OPTIONS],
    ],
)
def test_what_makes_no_network_and_options_that_do_not_exist_are_refused(make, arguments, options, error, why):
    with pytest.raises(error, match=why):
        make(*arguments, **options)


@pytest.mark.parametrize(
    ("names", "name", "says"),
    [
        (["alice", "bob", "carol"], "alcie", r"'alcie' is not in the network of 3 clients\. Did you mean 'alice'\?"),
        (["alice", "bob", "carol"], "zzz", "'zzz'.* Check the spelling"),
        (None, 2, r"client 2 is no name\. Give a string, for instance '2'"),
        (None, "3", "is not in the network"),
    ],
)
def test_clients_have_names_or_numbers_and_another_is_answered_with_the_nearest(names, name, says):
    graph = graph_from_matrix(THREE, names=names)
    last = names[2] if names else "2"
    assert (graph.index(last), graph.name(2)) == (2, last)
    with pytest.raises(UnknownClient, match=says):
        graph.index(name)


def test_description_of_a_triangle_with_a_tail_and_an_isolated_pair():
    # 0 -> 1 -> 2 -> 0 is a cycle, 2 also exposes 3, and 1 and 0 expose each other; 4 and 5 know only each other.
    # Edges (source, target): 01, 12, 20, 23, 10, 45, 54. Mutual: 01, 10, 45, 54.
    graph = graph_from_edges([0, 1, 2, 2, 1, 4, 5], [1, 2, 0, 3, 0, 5, 4], [1.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0])
    summary = graph.describe()
    assert (summary.num_clients, summary.num_edges) == (6, 7)
    assert (summary.exposed_by, summary.exposes) == ((1, approx(7 / 6), 2), (0, approx(7 / 6), 2))
    # 0 is exposed by 2 with 1 of 5; 0, 1 and 2 reach each other.
    shares = (summary.reciprocity, summary.smallest_influence, summary.strongly_connected_share)
    assert shares == approx((4 / 7, 1 / 5, 3 / 6))
    assert (summary.num_isolated, summary.num_isolated_pairs, summary.num_components) == (0, 1, 2)
    complete = np.ones((200, 200)) - np.eye(200)  # 39,800 edges: more than a small counter holds
    assert graph_from_matrix(complete).describe().reciprocity == 1.0


def test_isolated_pairs_are_exposed_by_each_other_alone():
    for sources, targets, counts in (  # of isolated clients, pairs, components
        ([0, 2, 3], [1, 3, 2], (1, 1, 2)),  # 0 exposes 1, and nobody exposes 0
        ([0, 1, 0], [1, 0, 2], (0, 1, 1)),  # exposed by each other alone, whomever they expose besides
        ([0, 1, 2], [1, 2, 0], (0, 0, 1)),
        ([0, 1, 1, 2], [1, 0, 2, 1], (0, 0, 1)),  # the two ends of a path
    ):
        summary = graph_from_edges(sources, targets, isolated="keep").describe()
        assert (summary.num_isolated, summary.num_isolated_pairs, summary.num_components) == counts
