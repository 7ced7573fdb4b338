"""Downloads: every figure, the data and the experiment file of a link; what is not made here is refused in one line."""

from __future__ import annotations

import base64
import csv
import io
import json
import tomllib

import pytest
from pytest import approx

from mppfl.explorer import Choices


@pytest.fixture(scope="module")
def visitor(site):
    """Asks the server for files, without a browser."""
    from mppfl.explorer import Door, make_app

    return make_app(site, Door()).server.test_client()


@pytest.mark.parametrize("kind", ["csv", "json", "svg", "pdf", "png"])
@pytest.mark.parametrize("what", ["reward-rate", "budgets-sorted", "compared-welfare", "accuracy", "dp-epsilon"])
def test_every_figure_comes_as_every_kind(visitor, what, kind):
    answer = visitor.get(f"/download/{what}.{kind}?clients=8&rounds=3&run=done/mppfl")
    assert answer.status_code == 200
    assert answer.headers["Content-Disposition"] == f'attachment; filename="mppfl-{what}.{kind}"'
    assert answer.headers["Cache-Control"] == "no-store"
    start = {"csv": b"", "json": b"{", "svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG"}[kind]
    assert answer.data.startswith(start)
    if kind == "json":
        json.loads(answer.data)
    if kind == "csv":
        assert len({len(row) for row in csv.reader(io.StringIO(answer.get_data(as_text=True)))}) == 1


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_network_comes_as_a_picture_clients_and_communities_alike(visitor, kind):
    for query in ("?clients=8&client=3&colour=utility", "?network=file", "?network=file&opened=0"):
        assert len(visitor.get(f"/download/network.{kind}{query}").data) > 5_000


def test_data_are_the_round_shown(visitor, world):
    answer = visitor.get("/download/data.csv?clients=8&rounds=5&round=4")
    rows = list(csv.DictReader(io.StringIO(answer.get_data(as_text=True))))
    scene = world.scene(Choices(num_clients=8, num_rounds=5, round_shown=4))
    assert answer.mimetype == "text/csv"
    assert [float(row["spent_so_far"]) for row in rows] == approx(scene.so_far.spent)
    assert [float(row["payment"]) for row in rows] == approx(scene.prices * scene.budgets)


def test_the_experiment_file_names_the_file_of_the_network(visitor, large_network):
    table = tomllib.loads(visitor.get("/download/experiment.toml?network=file").get_data(as_text=True))
    assert table["network"]["source"] == str(large_network)


def test_the_experiment_file_of_an_upload_names_the_readers_own_file_and_is_called_what_it_says(tmp_path, mppfl):
    from mppfl.explorer import Site, Uploads, World, download

    site = Site(World(), Uploads())
    links = b"ann,bob\nbob,cem\ncem,ann\n"
    sent = "data:text/csv;base64," + base64.b64encode(links).decode()
    key, _ = site.upload(sent, "C:\\mine\\my friends.csv", undirected=False)
    file = download(site, "experiment", "toml", f"network={key}&rounds=3")
    data = json.loads(download(site, "data", "json", f"network={key}&rounds=3").content)
    site.uploads.close()  # as at the server's end
    assert tomllib.loads(file.content.decode())["network"]["source"] == "my friends.csv"
    assert file.content.startswith(b"# Put the file that `source` names beside this one.\n")
    assert f"# {data['commands'][0]}\n" in file.content.decode()
    assert data["commands"][0] == f"mppfl solve --experiment {file.name}"
    (tmp_path / file.name).write_bytes(file.content)
    (tmp_path / "my friends.csv").write_bytes(links)
    again = mppfl("solve", "--experiment", tmp_path / file.name, "--json").json
    assert list(again["rounds"][0]["budgets"].values()) == approx([each["budget"] for each in data["clients"]])


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_clients_name_is_no_formula(tmp_path, kind):
    from mppfl.cli import open_site
    from mppfl.explorer import download

    (tmp_path / "links.csv").write_text("$x^{$,bob\nbob,$x^{$\n")
    site = open_site(tmp_path / "links.csv", None, undirected=False, upload_megabytes=1)
    assert len(download(site, "network", kind, "network=file&rounds=3").content) > 1_000
    site.uploads.close()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/download/nothing.csv", "'nothing' is no figure of this page."),
        ("/download/data.exe", "'exe' is no kind of file made here."),
        ("/download/data.png", "'data' is no figure of this page."),
        ("/download/experiment.csv", "'experiment' is no figure of this page."),
        ("/download/reward-rate.toml", "'reward-rate.toml' is not made here."),
        ("/download/data.csv?alpha=much", "alpha='much' in the link must be a number."),
        ("/download/data.csv?network=upload-0123456789abcdef", "is not here (any more)."),
        ("/download/data.csv?network=/etc/passwd", "must be random, file, run or upload-"),
        ("/download/network.png?client=nobody", "nobody"),
        ("/download/accuracy.csv?run=../x", "../x"),
        ("/download/accuracy.csv?run=done/../done/mppfl", "is not one of those in the folder"),
        ("/download/accuracy.csv?run=/etc", "is not one of those in the folder"),
        ("/download/accuracy.csv?run=done/mppfl&run=done/mppfl", "each once"),
    ],
)
def test_what_is_not_made_here_is_refused_in_one_line(visitor, path, said):
    answer = visitor.get(path)
    text = answer.get_data(as_text=True)
    assert answer.status_code == 400
    assert answer.mimetype == "text/plain"
    assert said in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "path",
    ["/download/..%2f..%2fetc%2fpasswd.csv", "/download/../../etc/passwd.csv", "/download/%2e%2e%2fpasswd.csv",
     "/assets/..%2fserver.py", "/assets/../server.py"],
)  # fmt: skip
def test_no_path_leads_out_of_the_server(visitor, path):
    with visitor.get(path) as answer:
        assert answer.status_code == 404 or b"<title>mppfl explorer</title>" in answer.data  # the page itself
        assert b"root:" not in answer.data
        assert b"import annotations" not in answer.data


def test_without_runs_there_are_no_figures_of_them():
    from mppfl.explorer import Door, Site, Uploads, World, make_app

    site = Site(World(), Uploads())
    answer = make_app(site, Door()).server.test_client().get("/download/accuracy.csv?run=x")
    site.uploads.close()
    assert (answer.status_code, answer.get_data(as_text=True)) == (400, "'accuracy' is no figure of this page.\n")
