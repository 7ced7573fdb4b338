"""The page in a real browser: levers, clients, runs and files, from the keyboard, on a phone and on a projector."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest
from pytest import approx

from mppfl.experiment import read_experiment
from mppfl.explorer import (
    COMPARISON_CHARTS,
    FAMILY_NAMES,
    PARTICIPATION_WORDS,
    ROUND_CHARTS,
    RUN_CHARTS,
    SHOWN,
    RunReader,
    client_facts,
    client_view,
    ledger_rows,
    node_paint,
    to_link,
    what_if,
)
from mppfl.game import MECHANISMS
from mppfl.text import number
from tests.explorer.browser import number_after
from tests.explorer.chosen import altered, choose

pytestmark = pytest.mark.xdist_group("browser")


def require_shown(page, world, choices):
    """The page's link says the choices; header, panel of the client and drawing say what a second solution says."""
    assert page.choices == choices
    scene = world.scene(choices)
    graph, at, said = scene.solution.game.graph, scene.round_index - 1, page.text("#summary")
    assert said.startswith(f"{graph.num_clients:,} clients, {graph.num_edges:,} edges")
    assert f"{choices.view.mechanism}, round {scene.round_index} of {choices.game.num_rounds}" in said
    assert number_after("reward rate", said) == number(scene.solution.plan.reward_rates[at])
    assert number_after("server cost", said) == number(scene.solution.outcome.server_costs[at])
    client, facts = graph.index(choices.view.client), page.facts()
    assert facts == {name: number(value) for name, value in client_facts(scene, client).items()}
    values, words = scene.coloured_by(choices.view.colour)
    colours, _ = node_paint(values, dark=False, diverging=choices.view.colour == "utility")
    assert page.drawn("cy.nodes().map((each) => each.data('paint'))") == colours
    assert page.text("#legend").startswith(words)


@pytest.mark.parametrize(
    ("move", "name", "value", "start"),
    [
        ("slide", "externality_strength", 0.12, {}),
        ("slide", "max_hops", 2, {}),
        ("slide", "hop_decay", 0.5, {}),
        ("slide", "accuracy_weight", 0.8, {}),
        ("slide", "num_rounds", 12, {}),
        ("slide", "round_shown", 7, {}),
        ("enter", "num_clients", 31, {}),
        ("enter", "seed", 3, {}),
        ("enter", "budget_min", 2.0, {}),
        ("enter", "budget_max", 1.5, {}),
        ("enter", "budget_max", None, {"budget_max": 0.7}),
        ("enter", "payment_limit", 5.0, {"mechanism": "budget_limited", "participation": "voluntary"}),
        *(("tick", "colour", colour, {"round_shown": 5}) for colour in ("own_risk", "external_risk", "utility")),
    ],
)
def test_a_lever_moves_what_is_shown(page, world, move, name, value, start):
    start = choose(client="3", **start)
    page.link(to_link(start))
    before = page.text("#summary"), page.facts(), page.text("#legend")
    getattr(page, move)(name, "" if value is None else value)
    require_shown(page, world, altered(start, **{name: value}))
    assert (page.text("#summary"), page.facts(), page.text("#legend")) != before


def test_selects_move_the_game(page, world):
    chosen = choose(client="3", participation="voluntary")  # a payment limit of 1 cannot keep everybody
    page.link("?client=3&participation=voluntary")
    assert page.page.title() == "mppfl explorer"
    for name, value, words in (
        *(("mechanism", name, MECHANISMS[name].title) for name in (*SHOWN[1:], SHOWN[0])),
        ("participation", "rational", PARTICIPATION_WORDS["rational"]),
        ("against", "nothing", "than nothing"),
        ("family", "barabasi_albert", FAMILY_NAMES["barabasi_albert"]),
        ("preset", "benign", "benign"),
        ("mechanism", "dp_fedavg", MECHANISMS["dp_fedavg"].title),
        ("fixed_budget", "mean", "the mean"),
    ):
        before = page.text("#summary")
        page.select(name, words)
        chosen = altered(chosen, **{name: value})
        mechanism = chosen.view.mechanism
        chosen = altered(chosen, payment_limit=1.0 if mechanism == "budget_limited" else None)
        if name == "preset":  # the levers stay where they are
            chosen = altered(chosen, hop_decay=0.9)
        require_shown(page, world, chosen)
        assert page.text("#summary") != before or name == "participation"  # nobody gains by leaving
        assert page.page.is_visible("#lever-payment_limit") == (mechanism == "budget_limited")
        assert page.page.is_visible("#lever-fixed_budget") == (mechanism == "dp_fedavg")
        assert page.page.is_visible("#lever-against") == (chosen.game.participation == "rational")


def test_one_button_takes_over_the_constants_of_the_costs(page, world):
    page.link("?client=3&preset=benign&externality_strength=0.2&max_hops=3")
    with page.change():
        page.page.click("#constants")
    require_shown(page, world, choose(client="3", preset="benign"))


def test_every_chart_has_units_and_a_name_that_can_be_heard(page):
    page.link("?num_clients=12&num_rounds=5&client=3&tab=rounds&runs=done/mppfl")
    for tab, keys in (("rounds", ROUND_CHARTS), ("comparison", COMPARISON_CHARTS), ("run", RUN_CHARTS)):
        if tab != "rounds":
            page.tick("tab", tab)
        figures = [page.figure(key) for key in keys]
        assert all("(" in figure["x"] and "(" in figure["y"] for figure in figures)
        titles = [re.sub("<[^>]*>", "", figure["title"]) for figure in figures]
        charts = page.page.locator(f"#panel-{tab}").get_by_role("img")
        named = [text for text in charts.evaluate_all("(all) => all.map((each) => each.ariaLabel)") if text]
        assert [text.startswith(title) for text, title in zip(named, titles, strict=True)] == [True] * len(keys)
    assert {row[1] for row in page.rows("#comparison-table table")} == {"common", "own"}
    assert re.search(
        r"Test accuracy\. accuracy \(% of test data\) against round \(number\): done/mppfl from [\d.]+ to", named[0]
    )


def test_a_click_on_a_node_chooses_it_and_the_walks_that_expose_it_are_drawn_over_the_network(page, world):
    page.link("?num_clients=30")
    assert page.page.locator("#client-panel h3").count() == 0
    with page.change():
        page.click_node("12")
    assert page.choices.view.client == page.page.input_value("#lever-client") == "12"
    require_shown(page, world, choose(num_clients=30, client="12"))
    page.enter("client", "4")
    assert page.drawn("cy.nodes('.chosen').map((each) => each.data('name'))") == ["4"]
    scene = world.scene(choose(num_clients=30, client="4"))
    view = client_view(scene, 4)
    names = page.drawn("cy.edges('.walk').map((each) => [each.source().data('name'), each.target().data('name')])")
    steps = {step for walk in view.walks for step in zip(walk.clients, walk.clients[1:], strict=False)}
    assert {(int(source), int(target)) for source, target in names} == steps
    assert len(names) == len(steps)
    exposing = set(page.drawn("cy.nodes('.source').map((each) => each.data('name'))"))
    assert exposing == {scene.names[source] for source in view.sources}
    page.enter("client", "")
    assert page.drawn("cy.edges('.walk').length + cy.nodes('.chosen, .source').length") == 0


def test_what_if_another_moves_who_is_not_the_client_itself(page, world):
    page.link("?num_clients=30&client=4")
    page.enter("other", "9")
    page.tick("event", "doubles")
    scene = world.scene(choose(num_clients=30, client="4", other="9", event="doubles"))
    after, _ = what_if(scene, 4, 9, "doubles")
    lines = {line[0]: line[1:] for line in page.rows("#what-if table")}
    assert lines["external risk (ρ)"][:2] == [number(figures["external_risk"][4]) for figures in (scene.figures, after)]
    assert lines["external risk (ρ)"][2].startswith("+")
    assert lines["all: welfare (money)"][1] == number((after["payment"] - after["privacy_cost"]).sum())


def test_communities_are_opened_by_a_click_and_left_by_the_trail(page, site):
    page.link(to_link(site.start))
    assert page.text("#summary").startswith("3,000 clients")
    picture = site.world.picture(site.start)
    assert picture.labels
    sizes = page.drawn("cy.nodes().map((each) => each.data('size'))")
    assert sum(sizes) == 3000
    assert sizes == picture.sizes.tolist()
    label, community = page.drawn("[cy.nodes()[0].data('name'), cy.nodes()[0].data('community')]")
    with page.change():
        page.click_node(label)
    assert page.choices.view.opened == (community,)
    assert page.drawn("cy.nodes().length") == sizes[0]
    assert page.drawn("cy.nodes().every((each) => each.data('size') === 1)")
    inside = page.drawn("cy.nodes()[3].data('name')")
    with page.change():
        page.click_node(inside)
    assert page.choices.view.client == inside
    assert page.text("#client-panel h3").startswith(f"Client {inside}, round 1")
    with page.change():
        page.page.click("#trail button:has-text('all 3,000 clients')")
    assert page.choices.view.opened == ()
    assert page.drawn("cy.nodes().length") == len(sizes)
    assert page.drawn("cy.nodes('.chosen').map((each) => each.data('name'))") == [label]
    assert page.page.locator("#trail button").count() == 0


# ---- runs and files -----------------------------------------------------------------------------------------------


def test_finished_runs_lie_over_each_other(page, runs_folder):
    page.link("?tab=run&runs=done/mppfl&runs=done/dp_fedavg")
    page.page.wait_for_selector("#run-status li >> nth=1")
    guarantee = "ρ-zCDP for all data of a client, against everybody who sees its update"
    assert page.page.locator("#run-status li").all_inner_texts() == [
        f"done/mppfl: mppfl, finished, 4 rounds; {guarantee}",
        f"done/dp_fedavg: dp_fedavg, finished, 4 rounds; {guarantee}",
    ]
    traces = page.figure("accuracy")["traces"]
    assert [trace["name"] for trace in traces] == ["done/mppfl", "done/dp_fedavg"]
    run = RunReader(runs_folder).read("done/mppfl")
    accuracy = 100 * run.rounds["accuracy"]
    assert traces[0]["y"] == approx(accuracy[~np.isnan(accuracy)].tolist())
    shown = page.rows("#ledger table >> nth=0")
    assert [line[:3] for line in shown] == [row[:3] for row in ledger_rows(run)]
    assert "simulation: seeded noise protects no one" in page.text("#run-status")
    page.tick("runs", "done/dp_fedavg")
    page.until("() => document.querySelectorAll('#run-status li').length === 1")
    assert page.choices.view.runs == ("done/mppfl",)


def test_the_tab_shows_its_runs_whenever_and_wherever_it_is_opened(page, new_page):
    page.link("?tab=run&runs=done/mppfl")
    page.page.wait_for_selector("#run-status li")
    other = new_page()
    other.open("?num_clients=20&runs=done/mppfl")
    other.tick("tab", "run")
    other.page.wait_for_selector("#run-status li")
    assert other.page.locator("#ledger table").count() == 1


def test_a_training_is_followed_while_it_runs(page, runs_folder, command):
    page.link("?tab=run&runs=done/mppfl")
    settings = ("game.num_rounds=400", 'mechanisms=["mppfl"]', "output.checkpoint_every=1", "training.local_epochs=1")
    options = [part for each in settings for part in ("--set", each)]
    log = (runs_folder.parent / "train.txt").open("wb")
    training = subprocess.Popen(
        [command, "train", "examples/demo.toml", *options, "--output", runs_folder / "live"], stdout=log, stderr=log
    )
    try:
        page.page.wait_for_selector('#lever-runs input[value="live/mppfl"]')
        page.tick("runs", "live/mppfl")
        page.page.wait_for_selector("#run-status li:has-text('live/mppfl')")
        seen = _standing(page, more_than=[0, 0, 0.0])
        _standing(page, more_than=seen)  # the curve, the account and what is said of them go on, without a click
    finally:
        training.kill()
        training.wait(10)
        log.close()


def _standing(page, more_than):
    """Rounds done, points of the curve and ρ spent by the first client of the ledger, once all are `more_than` that."""
    return page.until(
        f"""() => {{
          const live = (selector) => [...document.querySelectorAll(selector)].find(
            (each) => (each.caption || each).innerText.includes("live/mppfl"));
          const said = live("#run-status li"), account = live("#ledger table");
          const curve = document.querySelector("#chart-accuracy.js-plotly-plot");
          const line = curve && curve.data && curve.data.find(({{name}}) => name === "live/mppfl");
          const round = said && /round (\\d+) of 400/.exec(said.innerText);
          if (!round || !line || !account) return null;
          const now = [Number(round[1]), line.y.length, Number(account.tBodies[0].rows[0].cells[1].innerText)];
          return now.every((each, at) => each > {more_than}[at]) ? now : null;
        }}"""
    )


def test_the_experiment_file_is_loaded_by_a_click(page, tmp_path):
    page.link("?num_clients=15&externality_strength=0.1&num_rounds=7&mechanism=mppfl_exact&budget_max=1.5&seed=4")
    with page.page.expect_download() as loading:
        page.page.click("a.button:has-text('TOML')")
    assert loading.value.suggested_filename == "mppfl-experiment.toml"
    loading.value.save_as(tmp_path / "mine.toml")
    assert read_experiment(tmp_path / "mine.toml").game == page.choices.game


# ---- links -------------------------------------------------------------------------------------------------------


def test_a_link_brings_everything_back(page, new_page):
    page.link(
        "?num_clients=25&client=4&other=9&event=doubles&externality_strength=0.1&colour=utility&round_shown=3"
        "&mechanism=pigouvian&num_rounds=9"
    )
    chosen, said, facts, moved = page.choices, page.text("#summary"), page.facts(), page.rows("#what-if table")
    other = new_page()
    other.open(to_link(chosen))
    assert other.choices == chosen
    assert (other.text("#summary"), other.facts(), other.rows("#what-if table")) == (said, facts, moved)
    assert other.page.input_value("#lever-externality_strength") == "0.1"
    assert other.page.is_checked('#lever-colour input[value="utility"]')


def test_the_link_can_be_copied(new_page, address):
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.open("?num_clients=21")
    page.slide("max_hops", 3)
    page.page.click("#copy")
    page.page.wait_for_selector("#copy:has-text('Copied')")
    assert page.page.evaluate("navigator.clipboard.readText()") == f"{address}?num_clients=21&max_hops=3"


def test_a_link_that_cannot_be_is_told_in_one_line_and_the_page_works(new_page):
    page = new_page()
    page.open("?graph=upload-0123456789abcdef")
    assert "graph='upload-0123456789abcdef' is not here (any more)." in page.text("#alert")
    assert "\n" not in page.text("#alert")
    page.page.click("#lever-graph")
    page.page.keyboard.press("Escape")
    page.tick("colour", "utility")
    assert page.choices.view.colour == "utility"


def test_what_cannot_be_is_told_and_the_next_move_mends_it(page):
    page.link("?client=3")
    page.page.fill("#lever-client", "nobody")
    page.page.press("#lever-client", "Enter")
    page.page.wait_for_selector("#alert:has-text('nobody')")
    page.enter("client", "5")
    assert page.text("#alert") == ""
    assert page.text("#client-panel h3").startswith("Client 5")


# ---- for everybody -----------------------------------------------------------------------------------------------


def test_everything_is_reached_from_the_keyboard(new_page):
    page = new_page()
    page.open("?num_clients=20")
    reached = []
    for _ in range(60):
        page.page.keyboard.press("Tab")
        name = "(({id, className, type}) => id || className || type)(document.activeElement)"
        reached.append(page.page.evaluate(name))
    for wanted in (
        "skip", "copy", "theme-button", "lever-graph", "lever-family", "lever-num_clients", "lever-preset",
        "lever-externality_strength", "lever-max_hops", "lever-num_rounds", "lever-mechanism",
        "lever-budget_min", "lever-participation", "lever-round_shown", "graph-frame", "lever-client", "lever-other",
    ):  # fmt: skip
        assert any(wanted in each for each in reached), wanted
    page.page.focus("#lever-max_hops")
    with page.change():
        page.page.keyboard.press("ArrowLeft")
    assert page.choices.game.max_hops == 4
    page.page.focus("#lever-mechanism")
    page.page.keyboard.press("Enter")
    focused = "() => document.activeElement.closest('.dash-dropdown-content label')?.innerText.includes('{}')"
    page.until(focused.format("MPPFL"))
    page.page.keyboard.press("ArrowDown")
    page.until(focused.format("exact leader"))
    with page.change():
        page.page.keyboard.press("Enter")
    assert page.choices.view.mechanism == "mppfl_exact"
    page.page.focus(".graph-frame")
    before = page.drawn("[cy.zoom(), cy.pan().x]")
    page.page.keyboard.press("+")
    page.page.keyboard.press("ArrowLeft")
    after = page.drawn("[cy.zoom(), cy.pan().x]")
    assert after[0] > before[0]
    assert after[1] != before[1]
    page.page.focus('#lever-tab input[value="network"]')
    with page.change():
        page.page.keyboard.press("ArrowRight")
    assert page.choices.view.tab == "rounds"
    assert page.page.is_visible("#panel-rounds")
    assert not page.page.is_visible("#panel-network")


def test_the_theme_is_the_systems_until_chosen_and_then_stays(new_page):
    page = new_page(color_scheme="dark")
    page.open("?num_clients=20")
    theme = "document.documentElement.dataset.theme"
    assert page.page.evaluate(theme) == "dark"
    dark = page.drawn("cy.nodes()[0].data('paint')")
    with page.change():
        page.page.click("#theme-button")
    assert page.page.evaluate(theme) == "light"
    assert page.drawn("cy.nodes()[0].data('paint')") != dark
    page.page.reload()
    page.settle(0)
    assert page.page.evaluate(theme) == "light"


def tabs(page):
    """Opens one tab after the other, and tells which."""
    yield "network"
    for tab in ("rounds", "comparison", "run"):
        page.tick("tab", tab)
        page.page.wait_for_selector(f"#panel-{tab} .js-plotly-plot .xtitle")
        yield tab


STICKS_OUT = """() => [...document.querySelectorAll("#page *")].filter((each) => {
  const box = each.getBoundingClientRect();
  const inside = each.closest(".scroll, svg, canvas, .skip, .__________cytoscape_container");
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !inside;
}).map((each) => each.tagName + "#" + each.id + "." + each.className)"""


def test_nothing_sticks_out_of_a_phone(new_page):
    page = new_page(width=390, height=844, has_touch=True, is_mobile=True)
    page.open("?num_clients=20&client=3&other=5&runs=done/mppfl&runs=done/dp_fedavg")
    page.slide("max_hops", 2)
    page.select("mechanism", "Social-agnostic")
    assert page.choices.view.mechanism == "social_agnostic"
    for _ in tabs(page):
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.page.evaluate(STICKS_OUT) == []


OUTSIDE_CHARTS = {"exclude": [[".plot-container"], ["#graph"]]}  # inside a chart nothing is read: it has a text instead


def test_axe_finds_nothing_serious(new_page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = new_page(color_scheme="light", bypass_csp=True)  # the page itself would not let axe in
    page.open("?num_clients=20&num_rounds=5&client=3&other=5&runs=done/mppfl&runs=done/dp_fedavg")
    for tab in tabs(page):
        for theme in ("light", "dark"):
            if page.page.evaluate("document.documentElement.dataset.theme") != theme:
                with page.change():
                    page.page.click("#theme-button")
            only = {} if theme == "light" else {"runOnly": ["color-contrast"]}  # all that a theme changes
            found = axe.run(page.page, context=OUTSIDE_CHARTS, options=only).response["violations"]
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            assert [(tab, theme, each["id"], each["nodes"][0]["html"]) for each in serious] == []
