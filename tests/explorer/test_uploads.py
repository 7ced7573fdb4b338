"""Files from the browser: named by what they hold, kept in one folder, and gone when the server ends."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from mppfl.errors import BadFile, BadInput
from mppfl.explorer import Site, Uploads, World, check, shown


def sent(text):
    """What the browser makes of a file."""
    return "data:text/csv;base64," + base64.b64encode(text.encode()).decode()


@pytest.fixture
def uploads():
    made = Uploads(0.001)
    yield made
    made.close()


@pytest.mark.parametrize(
    "name",
    ["friends.csv", "../../friends.csv", "/etc/cron.d/friends.csv", "..\\friends.csv", "a\x00b.csv", "C:\\x.csv"],
)
def test_a_file_stays_in_the_folder_whatever_it_is_called(uploads, name):
    folder = Path(uploads._folder.name)
    key, path = uploads.keep(sent("ann,bob\n"), name)
    assert path.parent == folder
    assert path.name == f"{key}.csv"
    assert [each.name for each in folder.iterdir()] == [path.name]
    assert path.read_text() == "ann,bob\n"


def test_the_same_file_has_the_same_key_and_another_has_another(uploads):
    first, again, other = (uploads.keep(sent(text), "x.csv")[0] for text in ("a,b\n", "a,b\n", "a,c\n"))
    assert first == again != other
    assert first != uploads.keep(sent("a,b\n"), "x.tsv")[0]


def test_the_folder_goes_when_the_server_ends():
    uploads = Uploads()
    _, path = uploads.keep(sent("ann,bob\n"), "friends.csv")
    assert path.exists()
    uploads.close()
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("contents", "name", "said"),
    [
        (sent("a,b\n" * 300), "big.csv", r"big.csv: 0.0 MB is more than 0.001 MB. Open it with --graph, or raise"),
        (sent("a,b\n"), "friends.exe", "friends.exe: not an edge list by its name. Send one of .csv"),
        (sent("a,b\n"), "csv", "csv: not an edge list by its name"),
        ("data:text/csv;base64,%%%", "x.csv", "x.csv: arrived damaged. Send it again."),
        ("nothing", "x.exe", "x.exe: not an edge list"),
    ],
)
def test_what_is_no_edge_list_is_refused_in_one_line(uploads, contents, name, said):
    with pytest.raises(BadInput, match=said) as refused:
        uploads.keep(contents, name)
    assert "\n" not in str(refused.value)
    assert list(Path(uploads._folder.name).iterdir()) == []


def test_a_bad_line_is_told_by_the_name_the_user_knows(uploads):
    _, path = uploads.keep(sent("ann,bob\nbob,cem,heavy\n"), "my friends.csv")
    with pytest.raises(BadFile, match=r"^my friends\.csv, line 2") as wrong:
        check(path, "my friends.csv", undirected=False)
    assert str(path.parent) not in str(wrong.value)


def test_a_long_name_is_cut():
    assert shown("x" * 200) == "x" * 57 + "…"
    assert shown("../..//") == "the file"


def test_a_request_that_is_too_large_is_not_read():
    from mppfl.explorer import Door, make_app

    site = Site(World(), Uploads(0.01))
    visitor = make_app(site, Door()).server.test_client()
    answer = visitor.post(
        "/_dash-update-component", data=b"x" * (site.uploads.request_limit + 1), content_type="application/json"
    )
    assert answer.status_code == 413
    assert answer.get_data(as_text=True) == "More than 0.01 MB. Open the file with --graph, or raise --upload-limit.\n"
    site.uploads.close()
