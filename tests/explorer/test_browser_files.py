"""Files in a real browser: what can be taken from the page, and what can be given to it."""

from __future__ import annotations

import csv
import io
import json
from urllib.parse import urlsplit

import pytest
from pytest import approx

from mppfl.explorer import Choices

pytestmark = pytest.mark.xdist_group("browser")

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
TYPES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "json": "application/json",
}


def links_of(page, words):
    """Where the links of one group of downloads lead, by the kind of file."""
    found = page.page.locator(f"#downloads-{words} a").evaluate_all(
        "(links) => links.map((each) => [each.textContent.toLowerCase(), each.getAttribute('href')])"
    )
    return dict(found)


def fetch(page, address, href):
    answer = page.page.request.get(address.rstrip("/") + href)
    assert answer.ok, answer.text()
    assert answer.headers["content-disposition"].startswith('attachment; filename="mppfl-')
    return answer


def test_figures_come_as_files_for_papers_and_tables(page, address):
    page.link("?clients=23&client=3&alpha=0.1&tab=rounds")
    for words in ("picture", "server-cost"):
        links = links_of(page, words)
        for kind, start in MAGIC.items():
            answer = fetch(page, address, links[kind])
            assert answer.headers["content-type"].startswith(TYPES[kind])
            assert answer.body().startswith(start)
    for kind in ("csv", "json"):
        answer = fetch(page, address, links_of(page, "server-cost")[kind])
        assert answer.headers["content-type"].startswith(TYPES[kind])


def test_data_are_those_on_the_page(page, address, world):
    page.link("?clients=23&alpha=0.1")
    links, scene = links_of(page, "everything"), world.scene(Choices(num_clients=23, externality_strength=0.1))
    rows = list(csv.DictReader(io.StringIO(fetch(page, address, links["csv"]).text())))
    assert [row["name"] for row in rows] == list(scene.names)
    assert [float(row["budget"]) for row in rows] == approx(scene.budgets)
    said = json.loads(fetch(page, address, links["json"]).text())
    assert said["server_cost"] == approx(scene.solution.outcome.server_costs[0])
    assert [client["utility"] for client in said["clients"]] == approx(scene.utilities)


def test_the_experiment_file_makes_the_same_game_on_the_command_line(page, world, mppfl, tmp_path):
    page.link("?clients=15&alpha=0.1&hops=3&rounds=7&round=7&leader=anticipating&most=1.5&seed=4")
    with page.page.expect_download() as loading:
        page.page.click("a.button:has-text('TOML')")
    assert loading.value.suggested_filename == "mppfl-experiment.toml"
    loading.value.save_as(tmp_path / "mine.toml")
    scene = world.scene(page.choices)
    again = mppfl("solve", "--experiment", tmp_path / "mine.toml", "--json").json
    assert [each["server_cost"] for each in again["rounds"]] == approx(scene.solution.outcome.server_costs, rel=1e-12)
    assert list(again["rounds"][6]["budgets"].values()) == approx(scene.budgets, rel=1e-12)


# ---- uploads -----------------------------------------------------------------------------------------------------


def upload(page, name, text):
    page.page.set_input_files("#upload input", {"name": name, "mimeType": "text/csv", "buffer": text.encode()})


def test_an_edge_list_is_opened_and_read_both_ways_when_asked(page):
    page.link("?clients=20")
    with page.change():
        upload(page, "friends.csv", "ann,bob\nbob,cem\ncem,ann\nann,dot\n")
    assert page.text("#upload-answer") == "friends.csv: 4 clients, 4 links"
    assert page.choices.network.startswith("upload-")
    assert page.text("#summary").startswith("4 clients, 4 links")
    assert sorted(page.drawn("cy.nodes().map((each) => each.data('name'))")) == ["ann", "bob", "cem", "dot"]
    assert not page.page.is_visible("#random-levers")
    with page.change():
        page.page.click("#lever-undirected label")
    assert page.choices.undirected
    assert page.text("#summary").startswith("4 clients, 8 links")
    page.enter("client", "dot")
    assert page.text("#client-panel h3") == "Client dot, round 1"
    page.enter("client", "")
    page.select("network", "drawn at random")
    assert page.choices.network == "random"


def test_an_upload_is_still_there_when_the_page_is_loaded_again_and_for_who_gets_its_link(page, new_page, address):
    page.link("?clients=20")
    with page.change():
        upload(page, "three.csv", "ann,bob\nbob,cem\ncem,ann\n")
    query, words = urlsplit(page.page.url).query, "three.csv: 3 clients, 3 links"
    page.open(f"?{query}")
    assert page.text("#summary").startswith("3 clients, 3 links")
    assert page.text("button#lever-network") == words
    other = new_page()
    other.open(f"?{query}")
    assert other.text("#summary").startswith("3 clients, 3 links")
    assert other.choices.network == page.choices.network
    assert other.text("#alert") == ""
    other.open("?clients=20")
    other.page.click("button#lever-network")
    assert words not in other.text(".dash-dropdown-content")  # it is its sender's, and theirs who have the link


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("broken.csv", "ann,bob\nbob,cem,heavy\n", "broken.csv, line 2"),
        ("friends.exe", "ann,bob\n", "friends.exe: not an edge list by its name"),
        ("large.csv", "ann,bob\n" * 10_000, "large.csv: 0.1 MB is more than 0.05 MB"),
        ("empty.csv", "", "empty.csv"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_one_line(page, name, text, said):
    page.link("?clients=20")
    upload(page, name, text)
    page.page.wait_for_selector(f".levers .wrong:has-text('{said}')")
    shown = page.page.locator(".levers .wrong:visible").all_inner_texts()
    assert "\n" not in "".join(shown)
    assert "mppfl-uploads" not in "".join(shown)
    assert page.choices.network == "random"


def test_a_name_that_looks_like_a_path_is_only_a_name(page, site):
    page.link("?clients=20")
    with page.change():
        upload(page, "..\\..\\there.csv", "eva,fay\nfay,eva\n")
    assert page.text("#upload-answer") == "there.csv: 2 clients, 2 links"
    kept = site.world.source(page.choices)
    assert kept.name == f"{page.choices.network}.csv"
