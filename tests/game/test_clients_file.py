"""The clients file: what is read equals what stands there, and what cannot be read is refused in one line."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadFile, MppflError, UnknownClient
from mppfl.game import LARGEST, read_clients
from mppfl.network import graph_from_matrix

REQUIRED = ["name", "quadratic_cost", "linear_cost", "noise_harm"]
OPTIONAL = {"compute_cost": 0.0, "data_size": 1.0, "budget_min": 0.0, "budget_max": math.inf}
COLUMNS = [*REQUIRED, *OPTIONAL]
ABOVE_ZERO = ("quadratic_cost", "noise_harm", "data_size")
NAMES = ("ann", "bob", "Zoë", "7")


def ring(names):
    """A network of the named clients, each exposed by the one before."""
    return graph_from_matrix(np.roll(np.eye(len(names)), 1, axis=0), names=names)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("clients") / "people.csv"


def read(path, text, names=NAMES):
    path.write_bytes(text.encode("utf-8"))
    return read_clients(path, ring(names))


def test_blanks_comments_a_byte_order_mark_and_windows_line_ends_are_no_hindrance(path):
    text = (
        "\ufeff# who pays what\r\n\r\nname, quadratic_cost , linear_cost, noise_harm\r\n"
        ' "ann" , 1, 0, 1\r\n# bob is new\r\n,,,\r\nbob, 2e0 ,+0.5, 3.\r\n\r\n'
    )
    # A quoted field must end at its closing quote, so the blank after "ann" is refused; without quotes it is not.
    with pytest.raises(BadFile, match="line 4"):
        read(path, text, ("ann", "bob"))
    clients = read(path, text.replace('"ann" ', "ann "), ("ann", "bob"))
    assert clients.quadratic_cost.tolist() == [1.0, 2.0]
    assert clients.noise_harm.tolist() == [1.0, 3.0]


def test_a_client_may_be_called_like_a_comment_or_hold_commas_quotes_and_line_breaks(path):
    names = ("#1", "Smith, Ann", 'the "boss"', "two\nlines")
    rows = ["#1,1,0,1", '"Smith, Ann",2,0,1', '"the ""boss""",3,0,1', '"two\nlines",4,0,1', "#2,9,9,9"]
    clients = read(path, "\n".join([",".join(REQUIRED), *rows]), names)
    assert clients.quadratic_cost.tolist() == [1.0, 2.0, 3.0, 4.0]


def number(text):
    """The number that stands in a field, by itself and in ASCII; NaN if none does."""
    allowed = set("0123456789.eE+- \t\r\n\v\f") | set("infatyINFATY")
    try:
        return float(text) if set(text) <= allowed else math.nan
    except ValueError:
        return math.nan


def is_sound(entry):
    """Whether all numbers of a client can be."""
    finite = all(value == 0 or 1e-100 <= value <= 1e100 for column, value in entry.items() if column != "budget_max")
    positive = all(entry[column] > 0 for column in ABOVE_ZERO)
    in_order = 0 <= entry["budget_min"] <= entry["budget_max"]
    return finite and positive and in_order and entry["linear_cost"] >= 0 and entry["compute_cost"] >= 0


def judged(text):
    """{name: {column: value}} by a parse of its own, or None if the file is not a table of exactly these clients."""
    file = io.StringIO(text.removeprefix("\ufeff"), newline="")
    try:
        rows = [[field.strip() for field in row] for row in csv.reader(file, skipinitialspace=True, strict=True)]
    except csv.Error:
        return None
    header, *body = [row for row in rows if "".join(row) and not row[0].startswith("#")] or [[]]
    if len(set(header)) < len(header) or not set(REQUIRED) <= set(header) <= set(COLUMNS):
        return None
    if any(len(row) != len(header) for row in body) or len(body) != len(NAMES):
        return None
    table = {}
    for row in body:
        cells = dict(zip(header, row, strict=True))
        name = cells.pop("name")
        table[name] = {**OPTIONAL, **{column: number(cell) for column, cell in cells.items()}}
    return table if set(table) == set(NAMES) and all(map(is_sound, table.values())) else None


above_zero = st.floats(1 / LARGEST, LARGEST)
awkward = st.sampled_from(
    [
        *("", " ", "nan", "NaN", "inf", "-inf", "-1", "0", "-0", "1e-400", "1e400", "1_0", "１", "1,5", "0x1", "many"),
        *("#", "bob", "Ann", "Zoe\u0308", "é" * 500, "1e", "+1", ".5", "5."),
        *('"', '""', '"1"', '"1"0', '"\n', "\x00", "\r", "\t", ";"),
        *COLUMNS,
    ]
)
spelled = above_zero.map(repr) | st.sampled_from(["1", "+2.50", " 3 ", '"4"', ".5", "6.", "7E-1", "8e+2", "\t9"])


@st.composite
def sound_tables(draw):
    """Header and rows in any order, with any of the optional columns, and comments and blank lines between them."""
    header = draw(st.permutations([*REQUIRED, *draw(st.sets(st.sampled_from(list(OPTIONAL))))]))
    rows = []
    for name in draw(st.permutations(NAMES)):
        cells = {column: draw(spelled) for column in header} | {"name": name, "budget_min": "0"}
        rows.append([cells[column] for column in header])
    for _ in range(draw(st.integers(0, 2))):
        rows.insert(draw(st.integers(0, len(rows))), draw(st.sampled_from([[""], ["# ann", "9"], ["", " "]])))
    return [list(header), *rows]


@st.composite
def files(draw):
    """A sound file, as it is or after accidents: to cells, rows, columns, or single characters."""
    rows = draw(sound_tables())
    for accident in draw(st.lists(st.sampled_from(["cell", "drop", "double", "swap", "column"]), max_size=1)):
        k = draw(st.integers(0, len(rows) - 1))
        if accident == "cell":
            rows[k][draw(st.integers(0, len(rows[k]) - 1))] = draw(awkward | st.text(max_size=5))
        elif accident == "drop":
            del rows[k]
        elif accident == "double":
            rows.append(rows[k][:])
        elif accident == "swap":
            rows[0], rows[k] = rows[k], rows[0]
        elif accident == "column":
            at = draw(st.integers(0, 3))
            rows = [row[:at] + row[at + 1 :] for row in rows]
    text = draw(st.sampled_from(["\n", "\r\n"])).join(",".join(row) for row in rows)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
        text = text[:at] + draw(awkward | st.text(max_size=3)) + text[at + length :]
    return text.encode("utf-8", errors="replace").decode("utf-8")


@settings(max_examples=250, deadline=None)
@given(files())
def test_a_file_is_read_as_an_independent_parse_reads_it_or_refused_in_one_line(path, text):
    expected = judged(text)
    if expected is None:
        with pytest.raises(MppflError) as refusal:
            read(path, text)
        assert str(refusal.value).startswith("people.csv")
        assert str(refusal.value).isprintable()
    else:
        clients = read(path, text)
        for column in COLUMNS[1:]:
            assert getattr(clients, column).tolist() == [expected[name][column] for name in NAMES]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_whatever_are_refused_in_one_line(path, content):
    path.write_bytes(content)
    with pytest.raises((BadFile, UnknownClient)) as refusal:
        read_clients(path, ring(NAMES))
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('ann,"1\n2",0,1\n', "line 3: quadratic_cost of client 'ann' is '1\\n2'; it must be a number above 0"),
        ("ann,1,0,1\n\n# here\nbob,1,x,1\n", "line 5: linear_cost of client 'bob' is 'x'; it must be a number"),
        ("bob,1,0,1\nbob,1,0,1\n", "line 3: client 'bob' stands already on line 2. Keep one of them"),
        ("bob,1,0,1\nBob,1,0,1\n", "line 3: client 'Bob' is not in the network of 1,202 clients. Did you mean 'bob'"),
        (
            "ann,1,0,1\n",
            "1,201 of the network's 1,202 clients have no line: 'bob', 'c0', 'c1', 'c2', 'c3', .... Add them",
        ),
    ],
)
def test_a_refusal_names_file_line_client_column_and_value_and_only_some_of_many(path, text, message):
    with pytest.raises(MppflError) as refusal:
        read(path, f"{','.join(REQUIRED)}\n{text}", ["ann", "bob", *(f"c{i}" for i in range(1200))])
    assert str(refusal.value).startswith("people.csv")
    assert message in str(refusal.value)
