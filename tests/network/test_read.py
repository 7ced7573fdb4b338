"""Reading and writing graphs: golden files, refusals, random and damaged files, all routes to one graph."""

import csv
import gzip
import io
import os
import re
from contextlib import suppress
from functools import partial

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mppfl.errors import BadFile, BadGraph, BadInput, MppflError
from mppfl.network import SocialGraph, graph_from_edges, read_graph, write_edges, write_graphml
from tests.homes import home

AS_GIVEN = {"normalisation": "none", "isolated": "keep", "self_loops": "drop"}
HUGE = "9" * 25


def edges_of(graph):
    """{(source, target): weight as given}."""
    arcs = graph.edges().tocoo()
    ends = zip(arcs.col.tolist(), arcs.row.tolist(), arcs.data.tolist(), strict=True)
    return {(graph.name(source), graph.name(target)): weight for source, target, weight in ends}


@pytest.fixture
def file(tmp_path):
    """Writes text or bytes to a file and returns its path."""

    def written(content, name="edges.txt"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder for property tests, which may not ask for a fresh one each time."""
    return tmp_path_factory.mktemp("graphs")


def refusal(content, scratch):
    """The graph, or the error that refuses it, whose message must be one line."""
    path = scratch / "any.txt"
    path.write_bytes(content)
    try:
        return read_graph(path, **AS_GIVEN)
    except MppflError as refused:
        error = refused
    assert len(str(error).splitlines()) == 1
    return error


GOLDEN = {("a", "b"): 2, ("b", "a"): 1, ("a", "c"): 0.5}  # b is exposed by a with weight 2


@pytest.mark.parametrize(
    ("text", "undirected", "edges"),
    [
        ("a b 2\nb   a\t1\n  a c 5e-1  ", False, GOLDEN),  # without a last line end
        ("# \udce9\na,b,2\nb,a,1\na,c,0.5\n", False, GOLDEN),  # a comment in another encoding
        ("giver,taker,how much\na,b,2\nb,a,1\na,c,0.5\n", False, GOLDEN),  # a header of unknown words
        ("a,b,2\nb,c,3\n", True, {("a", "b"): 2, ("b", "a"): 2, ("b", "c"): 3, ("c", "b"): 3}),
        ("node1,node2\nnode2,node1\n", False, {("node1", "node2"): 1, ("node2", "node1"): 1}),  # numbered: no header
        ("source,target,weight\nsource,b,2\nb,source,3\n", False, {("source", "b"): 2, ("b", "source"): 3}),
    ],
)
def test_the_target_of_a_line_is_exposed_by_its_source_however_that_is_written(text, undirected, edges, file):
    content = text.encode(errors="surrogateescape")
    for path in (file(content), file(gzip.compress(content), "whatever.dat")):
        graph = read_graph(path, undirected=undirected, **AS_GIVEN)
        assert edges_of(graph) == edges
        assert all(graph.influence[graph.index(to), graph.index(by)] == weight for (by, to), weight in edges.items())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("10 9\n-3 10\n100 9", ("-3", "9", "10", "100")),  # integers in numerical order, others as they appear
        ("10 9\n9 x\n1 9", ("10", "9", "x", "1")),
        (f"{HUGE} 9\n9 {HUGE}\n2 9", ("2", "9", HUGE)),
        ("7 8\n07 8\n8 7", ("07", "7", "8")),  # equal as numbers, not as text
        ("Jo Smith\tDoe, Al", ("Jo Smith", "Doe, Al")),
        ('"#hash",%percent', ("#hash", "%percent")),
        ('5" pipe,b', ('5" pipe', "b")),
    ],
)
def test_names_may_be_anything_that_can_be_quoted_and_integers_come_in_order(text, names, file):
    assert read_graph(file(text + "\n"), **AS_GIVEN).names == names


@pytest.mark.parametrize(
    "header",
    ["source,target", "from,to", "src,dst", "node1,node2", "node_1,node_2", "user_id,friend_id", "userID,friendID",
     "FromNodeId,ToNodeId", "id_1,id_2", "Source Node,Target Node", "follower,followee", "truster,trustee",
     "userA,userB"],
)  # fmt: skip
def test_a_first_line_of_column_words_is_a_header(header, file):
    for edges in ("1,2\n2,1\n", "ann,bob\nbob,ann\n"):
        assert read_graph(file(f"{header}\n{edges}")).num_clients == 2


REFUSED = {
    "three fields below two": ("a,b\nc,d,1\n", "line 2, 'c,d,1': 3 fields where line 1 has 2"),
    "four fields": ("1 2 3 4\n", "line 1, '1 2 3 4': 4 fields where 2 or 3 are needed"),
    "an empty name": ("a,b\n,c\n", "line 2, ',c': a name is empty"),
    "a word for a weight": ("a,b,1\nb,a,heavy\n", "line 2, 'b,a,heavy': weight 'heavy' is not a positive number"),
    "no number for the first weight": ("a,b,NA\nc,d,1\n", "line 1, 'a,b,NA': weight 'NA' is not a positive number"),
    "too large": ("1,2,1\n2,1,1e999\n", "line 2, '2,1,1e999': weight '1e999' is not a positive number"),
    "NaN": ("1 2 1\n2 1 nan\n", "line 2, '2 1 nan': weight 'nan' is not a positive number"),
    "a decimal comma": ("1;2;1\n2;1;0,5\n", "line 2, '2;1;0,5': weight '0,5' is not a positive number such as 0.5"),
    "an underscore": ("1,2,1\n2,1,1_0\n", "weight '1_0' is not a positive number"),
    "digits of another script": ("a,b,1\nb,a,٣\n", "weight '٣' is not a positive number"),
    "a comment behind an edge": ("1 2\n2 1 # back\n", "line 2, '2 1 # back': 4 fields where line 1 has 2"),
    "text behind a quote": ('a,b\n"b"x,a\n', "a double quote is left open or stands beside text"),
    "columns the other way": ("target,source\n1,2\n2,1\n", "columns must be source, target"),
    "a time for a weight": ("source,target,timestamp\n1,2,1300\n2,1,1301\n", "columns must be source, target"),
    "an index column": (",source,target\n0,1,2\n1,2,1\n", "columns must be source, target"),
    "an unknown header": ("x,y\n1,2\n2,1\n", "line 1, 'x,y': looks like a header of unknown words"),
    "a header or an edge": ("from,to\nto,from\n", "line 1, 'from,to': may be a header or an edge"),
    "only a header": ("source,target\n", "line 1, 'source,target': is a header, and no edge follows it"),
    "nothing": ("", "holds no edges: it is empty or has only comments"),
    "NUL": ("1,2\n2,\0\n", r"line 2, '2,\x00': holds the control character '\x00'"),
    "old Macintosh line ends": ("a,b\rb,a\r", r"holds the control character '\r'"),
    "invalid UTF-8": (b"a,b\nb,\xff\n", "line 2, 'b,\ufffd': not valid UTF-8. Save the file as UTF-8 text."),
    "a long line": ("a,b\n" + "x" * 5_000 + "\n", f"line 2, '{'x' * 57}...': 1 field where line 1 has 2"),
    "a truncated gzip": (gzip.compress(b"1,2\n2,1\n" * 500)[:-20], "is a gzip file that ends too early"),
    "a self-loop": ("a,b\nb,b\n", "friends.csv: client 'b' is connected to itself (1 self-loops)"),
    "an edge with two weights": ("a,b,1\na,b,2\n", "friends.csv: the edge from 'a' to 'b' is given twice"),
    "a damaged gzip": (gzip.compress(b"1,2\n2,1\n")[:-8] + b"\1" * 8, "is a damaged gzip file"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_bad_line_is_refused_with_its_file_number_text_and_remedy(content, message, file):
    path = file(content, "friends.csv")
    with pytest.raises((BadFile, BadGraph), match=re.escape(message)) as error:
        read_graph(path, isolated="keep")
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).startswith(str(path))
    assert str(error.value).endswith(".")


def test_what_is_no_readable_file_is_refused_with_its_path(tmp_path, file, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, "is a directory"),
        (str(tmp_path / "nobody.csv"), r"nobody\.csv does not exist\. Check the path\."),
        (tmp_path / "a\nb.csv", "does not exist"),
        ("a\0b", "NUL character"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
        (tmp_path / "pipe", "is not a regular file"),
    ):
        with pytest.raises(BadFile, match=message) as error:
            read_graph(path)
        assert len(str(error.value).splitlines()) == 1
    for nothing in (None, 3, [[0, 1], [1, 0]], b"edges.txt"):
        with pytest.raises(BadInput, match=f"cannot be read from {type(nothing).__name__}"):
            read_graph(nothing)
    path = file("a,b\nb,a\n")
    monkeypatch.setattr(home(read_graph), "open", partial(refuse, PermissionError(13, "denied")), raising=False)
    with pytest.raises(BadFile, match=r"may not be read\. Check its permissions\."):
        read_graph(path)


def refuse(error, *_, **__):
    raise error


# Files drawn at random


names = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=6).map(lambda name: "n" + name)
whole_numbers = st.integers(0, 10**20).map(str) | st.integers(0, 30).map(str)
weights = st.floats(1e-12, 1e12, allow_subnormal=False) | st.integers(1, 9).map(float)


@st.composite
def edge_tables(draw):
    """{(source, target): weight}, without self-loops."""
    kind = draw(st.sampled_from([names, whole_numbers]))
    clients = draw(st.lists(kind, min_size=2, max_size=7, unique=True))
    ends = st.tuples(st.sampled_from(clients), st.sampled_from(clients)).filter(lambda edge: edge[0] != edge[1])
    return draw(st.dictionaries(ends, weights, min_size=1, max_size=12))


@st.composite
def files(draw):
    """An edge table and one of the many ways to write it."""
    table, separator = draw(edge_tables()), draw(st.sampled_from([",", ";", "\t", " "]))
    line_end, has_weights = draw(st.sampled_from(["\n", "\r\n"])), draw(st.booleans())
    table = table if has_weights else dict.fromkeys(table, 1.0)
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator=line_end, quoting=csv.QUOTE_NONNUMERIC)
    if draw(st.booleans()):
        out.write(separator.join(["source", "target", "weight"][: 2 + has_weights]) + line_end)
    for ends, weight in table.items():
        if draw(st.integers(0, 5)) == 0:
            out.write(draw(st.sampled_from(["", "  ", "# note", "% " + separator])) + line_end)
        if ends[0].isdecimal():
            out.write(separator.join([*ends] + [repr(weight)] * has_weights) + line_end)
        else:
            writer.writerow([*ends] + [weight] * has_weights)
    return table, (draw(st.sampled_from(["", "\ufeff"])) + out.getvalue()).encode()


@settings(max_examples=150, deadline=None)
@given(file=files(), zipped=st.booleans(), block=st.sampled_from([5, 64, 2**20]))
def test_every_well_written_file_is_read_as_it_was_meant(file, zipped, block, scratch):
    table, content = file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home(read_graph), "_BLOCK_BYTES", block)
        graph = refusal(gzip.compress(content) if zipped else content, scratch)
    assert isinstance(graph, SocialGraph), graph
    assert edges_of(graph) == table
    appear = dict.fromkeys(name for edge in table for name in edge)
    assert list(graph.names) == (sorted(appear, key=int) if all(map(str.isdecimal, appear)) else list(appear))


def read_plainly(text):
    """The edges of an edge list, as the csv module sees them; an AssertionError where it is not plainly right."""
    lines = [line for line in (line.strip(" \t\r") for line in text.split("\n")) if line]
    separator = next(s for s in ("\t", ";", ",", " ") if s == " " or len(row_of(lines[0], s)) > 1)
    rows = [row_of(line, separator) for line in lines]
    assert {len(row) for row in rows} in ({2}, {3})
    words = [re.sub(r"\W|_|\d+$", "", field.casefold()) for field in rows[0]]
    if words == ["source", "target"] or (len(words) == 3 and not NUMBER.fullmatch(rows[0][2])):
        rows = rows[1:]
    table = {}
    for *ends, weight in (row if len(row) == 3 else [*row, "1"] for row in rows):
        assert all(ends)
        assert 0 < float(weight) < np.inf
        assert table.setdefault(tuple(ends), float(weight)) == float(weight)
    return {edge: weight for edge, weight in table.items() if edge[0] != edge[1]}


NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf|infinity", re.ASCII | re.IGNORECASE)


def row_of(line, separator):
    """The fields of a line; none where the csv module objects to it."""
    line = line.replace("\t", " ") if separator == " " else line
    with suppress(csv.Error):
        (row,) = csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True)
        return [field.strip(" \t") for field in row]
    return []


@st.composite
def damaged(draw, contents):
    """Well-made content with a few bytes changed, cut out, put in or cut off."""
    content = bytearray(draw(contents))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["change", "cut out", "put in", "cut off"])):
            case "change":
                content[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut out":
                del content[place : place + draw(st.integers(1, 4))]
            case "put in":
                content[place:place] = draw(st.sampled_from([b"nan", *(bytes([byte]) for byte in b'\n, \t"\0\xc3#7')]))
            case "cut off":
                del content[place:]
    return bytes(content)


TEXTS = st.text(alphabet=list('ab01.5e-+,;\t "#%\n\r_ñ'), max_size=50).map(str.encode)
PIECES = ["0", "1", "7", "12", "07", ",", ",", " ", "\t", ";", "\n", "\n", "\r\n", ".5", "e3", "-", "+", "\x0b", "\r"]
NUMBERS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join).map(str.encode)
WRITTEN = files().map(lambda file: file[1])


@settings(max_examples=1000, deadline=None)
@given(
    content=st.binary(max_size=60) | TEXTS | NUMBERS | damaged(WRITTEN) | damaged(WRITTEN.map(gzip.compress)),
    block=st.sampled_from([1, 4, 2**20]),
)
@example(content=b"\x1f\x8b", block=4)
@example(content=b"1\t2\t\n3\t4\n", block=4)
@example(content=b"1,2\n\n \n3,4 \n", block=4)
@example(content=b"a,b,e\n1,0,5\n", block=4)
@example(content=b'"a" b,1\n1,a\n', block=4)
@example(content=b"1 2" + b" " * 5000 + b"3 4\n", block=1)
@example(content=b"1,2,0.5 \n2,1,\t3\n", block=4)
def test_any_file_is_read_as_line_by_line_and_by_the_csv_module_or_refused_in_one_line(content, block, scratch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home(read_graph), "_BLOCK_BYTES", block)
        graph = refusal(content, scratch)
        patch.setattr(np, "loadtxt", partial(refuse, ValueError()))
        line_by_line = refusal(content, scratch)
    if isinstance(line_by_line, MppflError):
        assert str(graph) == str(line_by_line)
        return
    assert (graph.names, edges_of(graph)) == (line_by_line.names, edges_of(line_by_line))
    assert isinstance(graph, SocialGraph)
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    content = content.removeprefix("\ufeff".encode())
    lines = [line for line in content.split(b"\n") if line.strip(b" \t\r")[:1] not in (b"#", b"%")]
    text = b"\n".join(lines).decode()  # comments may be in any encoding
    assume(not re.search(r'"[ \t]|[ \t]"', text))  # csv.reader does not tell blanks within quotes from those around
    assert edges_of(graph) == read_plainly(text)


# Round trips, and routes that must agree


def graph_of(table, **options):
    clients = list(dict.fromkeys(name for edge in table for name in edge))
    sources, targets = np.array([[clients.index(name) for name in edge] for edge in table]).T
    weights = np.array(list(table.values()))
    return graph_from_edges(sources, targets, weights, names=clients, isolated="keep", **options)


@settings(max_examples=100, deadline=None)
@given(table=edge_tables(), undirected=st.booleans())
@example(table={('a "quoted", name', "#b"): 0.1, ("#b", " c "): 1e-300, ("%", ";\t"): 1.0}, undirected=False)
@example(table={("a", "<&'\">"): 0.1 + 0.2, ("<&'\">", "a"): 1.0}, undirected=False)
def test_what_is_written_is_read_back_and_all_routes_lead_to_one_graph(table, undirected, scratch):
    if undirected:
        table = dict.fromkeys(table, 2.0)  # one weight, so that both directions agree
    graph = graph_of(table, normalisation="none")
    expected = table | ({(b, a): weight for (a, b), weight in table.items()} if undirected else {})
    endings = ("csv", "csv.gz", "graphml", "graphml.gz", "xml", "npz", "npz.gz")
    paths = listed, listed_gz, graphml, graphml_gz, xml, npz, npz_gz = [scratch / f"edges.{end}" for end in endings]
    for write, written in ((write_edges, paths[:2]), (write_graphml, paths[2:4])):
        for path in written:
            write(graph, path)
    xml.write_bytes(graphml.read_bytes())
    matrix = graph.edges()
    sp.save_npz(npz, sp.coo_array(matrix))
    npz_gz.write_bytes(gzip.compress(npz.read_bytes()))
    assert all((path.read_bytes()[:2] == b"\x1f\x8b") == (path.suffix == ".gz") for path in paths)
    for source in (listed, str(listed), listed_gz, graphml, graphml_gz, xml, nx.read_graphml(graphml)):
        again = read_graph(source, undirected=undirected, **AS_GIVEN)
        assert edges_of(again) == expected
        assert set(again.names) == set(graph.names)
        assert again.names == graph.names or source in (listed, str(listed), listed_gz)
    matrices = matrix.toarray(), sp.csr_matrix(matrix), sp.coo_array(matrix), sp.csc_array(matrix)
    for source in (npz, npz_gz, *matrices):
        edges = edges_of(read_graph(source, undirected=undirected, **AS_GIVEN))
        assert {(graph.name(int(a)), graph.name(int(b))): weight for (a, b), weight in edges.items()} == expected


def test_written_edges_look_like_this_and_keep_the_order_of_clients_where_they_can(tmp_path):
    path = tmp_path / "edges.csv"
    for normalisation in ("row", "none", "symmetric"):
        write_edges(graph_of({("a", "b, c"): 0.1, ("b, c", "a"): 2.0}, normalisation=normalisation), path)
        assert path.read_text() == 'source,target,weight\na,"b, c",0.1\n"b, c",a,2.0\n'
    kept = graph_of({("Zoe", "Bob"): 1.0, ("Bob", "Zoe"): 2.0, ("Amy", "Zoe"): 1.0, ("Bob", "Amy"): 3.0})
    assert write_edges(kept, path)
    assert read_graph(path).names == kept.names == ("Zoe", "Bob", "Amy")
    ends = np.array([0, 2, 1, 3])
    lost = graph_from_edges(ends, ends[[1, 0, 3, 2]], np.ones(4), names=["Zoe", "Bob", "Amy", "Dan"])
    assert not write_edges(lost, path)  # Zoe and Amy, Bob and Dan: whoever comes second, Bob does not
    assert read_graph(path).names == ("Zoe", "Amy", "Bob", "Dan")


def test_networkx_edges_point_at_whom_they_expose_and_nodes_without_edges_are_clients_too(tmp_path):
    graph = nx.DiGraph([("b", "a"), ("a", "b", {"weight": 2})])
    assert edges_of(read_graph(graph)) == {("a", "b"): 2.0, ("b", "a"): 1.0}
    undirected = nx.Graph([(1, 2, {"weight": np.float32(0.5)})])
    assert edges_of(read_graph(undirected)) == {("1", "2"): 0.5, ("2", "1"): 0.5}
    assert read_graph(nx.MultiGraph([("a", "b"), ("a", "b")])).num_edges == 2  # parallel edges that agree count once
    graph = nx.path_graph(3, create_using=nx.DiGraph)
    graph.add_node("lonely")
    kept = read_graph(graph, isolated="keep")
    assert kept.names == ("0", "1", "2", "lonely")
    write_graphml(kept, tmp_path / "kept.graphml")
    again = read_graph(tmp_path / "kept.graphml", isolated="keep")
    assert (again.names, edges_of(again)) == (kept.names, edges_of(kept))
    with pytest.raises(BadGraph, match=r"client 'lonely' has no edges \(1 such\).*Use write_graphml"):
        write_edges(kept, tmp_path / "kept.csv")
    assert not (tmp_path / "kept.csv").exists()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        *[
            (nx.DiGraph([("b", "a", {}), ("a", "b", {"weight": weight})]), "the edge from 'a' to 'b' has weight")
            for weight in (0, -1, float("nan"), float("inf"), 10**400, "two", "nan", None, True, [1], 1j)
        ],
        (nx.Graph([(1, "1")]), "two clients are called '1'"),
        (nx.empty_graph(3), "no edges"),
        (nx.MultiGraph([("a", "b", {"weight": 1}), ("a", "b", {"weight": 2})]), "given twice, with weights 1 and 2"),
    ],
)
def test_networkx_graphs_that_make_no_network_are_refused(graph, message):
    with pytest.raises(BadGraph, match=message) as error:
        read_graph(graph)
    assert len(str(error.value).splitlines()) == 1


GRAPHML = b"""<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="w" for="edge" attr.name="weight" attr.type="double"/>
<graph edgedefault="directed"><node id="a"/><node id="b"/>
<edge source="a" target="b"><data key="w">0.5</data></edge><edge source="b" target="a"/>
</graph></graphml>
"""


def test_graphml_is_known_by_what_it_holds(file):
    for name in ("edges.graphml", "edges.xml", "edges.txt"):
        assert edges_of(read_graph(file(GRAPHML, name))) == {("a", "b"): 0.5, ("b", "a"): 1.0}
    untyped = GRAPHML.replace(b' attr.type="double"', b' attr.type="string"')
    assert edges_of(read_graph(file(untyped))) == {("a", "b"): 0.5, ("b", "a"): 1.0}
    undirected = GRAPHML.replace(b'"directed"', b'"undirected"').replace(b'<edge source="b" target="a"/>', b"")
    assert edges_of(read_graph(file(undirected))) == {("a", "b"): 0.5, ("b", "a"): 0.5}


def npz_bytes(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


NPZ = {"format": np.array("csr"), "shape": (2, 2), "data": np.ones(2), "indptr": [0, 1, 2], "_is_array": True}
COO = {"format": np.array("coo"), "shape": (2, 2), "data": np.ones(2), "row": [0, 1], "col": [1, 0], "_is_array": True}


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (GRAPHML[:-30], "x.graphml", "is not valid GraphML"),
        (b"<?xml version='1.0'?><html/>", "x.html", "is not valid GraphML"),
        (b"", "x.xml", "is not valid GraphML"),
        (GRAPHML.replace(b"0.5", b"half"), "x.graphml", "is not valid GraphML"),
        (gzip.compress(GRAPHML * 9)[:-30], "x.graphml", "ends too early"),
        (b"a,b\nb,a\n", "x.npz", "holds no sparse matrix"),
        (b"PK\x03\x04", "x.txt", "holds no sparse matrix"),
        (npz_bytes(**NPZ, indices=[1, 10**6]), "x.npz", "holds no sparse matrix"),
        (npz_bytes(edges=np.ones((2, 2))), "x.npz", "holds no sparse matrix"),
    ],
)
def test_what_only_looks_like_graphml_or_npz_is_refused(content, name, message, file):
    assert read_graph(file(npz_bytes(**NPZ, indices=[1, 0]), "whole.npz")).num_edges == 2
    with pytest.raises(BadFile, match=message) as error:
        read_graph(file(content, name))
    assert len(str(error.value).splitlines()) == 1


@settings(max_examples=150, deadline=None)
@given(content=damaged(st.sampled_from([GRAPHML, npz_bytes(**NPZ, indices=[1, 0]), npz_bytes(**COO)])))
def test_damaged_graphml_and_npz_are_read_or_refused_in_one_line(content, scratch):
    assert isinstance(refusal(content, scratch), SocialGraph | MppflError)


@pytest.mark.parametrize("name", ["", "two\nlines", "nul\0", "half \ud800"])
def test_names_that_a_file_cannot_hold_are_refused(name, tmp_path):
    graph = graph_of({("a", name): 1.0, (name, "a"): 1.0})
    writers = {"an edge list": write_edges} | ({"XML": write_graphml} if name in ("nul\0", "half \ud800") else {})
    for form, write in writers.items():
        with pytest.raises(BadInput, match=f"cannot be named in {form}"):
            write(graph, tmp_path / "edges")
    assert not list(tmp_path.iterdir())
