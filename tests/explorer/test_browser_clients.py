"""One client in a real browser: who exposes it, along which walks, what if another moves; and communities of many."""

from __future__ import annotations

import pytest

from mppfl.explorer import Choices, client_view, what_if
from mppfl.text import number

pytestmark = pytest.mark.xdist_group("browser")


def value(text):
    return float(text.replace("−", "-").replace(",", ""))


def test_a_click_on_a_node_chooses_it(page, world):
    page.link("?clients=30")
    assert page.page.locator("#client-panel h3").count() == 0
    with page.change():
        page.click_node("12")
    assert page.choices.client == "12"
    assert page.page.input_value("#lever-client") == "12"
    assert page.drawn("cy.nodes('.chosen').map((each) => each.data('name'))") == ["12"]
    view = client_view(world.scene(Choices(num_clients=30, client="12")), 12)
    assert page.facts()["loses through others (ρ)"] == number(view.through_others)
    page.enter("client", "7")
    assert page.drawn("cy.nodes('.chosen').map((each) => each.data('name'))") == ["7"]


def test_who_exposes_a_client_adds_up(page, world):
    page.link("?clients=30&client=4")
    view = client_view(world.scene(Choices(num_clients=30, client="4")), 4)
    hops, sources = page.rows("#client-panel table >> nth=0"), page.rows("#client-panel table >> nth=1")
    assert [line[1] for line in hops] == [number(amount) for amount in view.by_hop]
    assert sum(value(line[1]) for line in hops) == pytest.approx(view.standing.external_risk, rel=0.01)
    assert [line[:2] for line in sources] == [[row.name, str(row.hop)] for row in view.rows]
    left = value(page.text("#client-panel > p").rpartition(" ")[2])
    assert sum(value(line[2]) for line in sources) + left == pytest.approx(view.standing.external_risk, rel=0.01)


def test_the_walks_that_expose_a_client_are_drawn_over_the_network(page, world):
    page.link("?clients=30&client=4")
    view = client_view(world.scene(Choices(num_clients=30, client="4")), 4)
    names = page.drawn("cy.edges('.walk').map((each) => [each.source().data('name'), each.target().data('name')])")
    steps = {step for walk in view.walks for step in zip(walk.clients, walk.clients[1:], strict=False)}
    assert {(int(source), int(target)) for source, target in names} == steps
    assert len(names) == len(steps)
    exposing = set(page.drawn("cy.nodes('.source').map((each) => each.data('name'))"))
    assert exposing == {each.name for each in view.sources}
    page.enter("client", "")
    assert page.drawn("cy.edges('.walk').length + cy.nodes('.chosen, .source').length") == 0


@pytest.mark.parametrize("event", ["leaves", "doubles"])
def test_what_if_another_moves(page, world, event):
    page.link("?clients=30&client=4")
    page.enter("other", "9")
    if event != "leaves":
        page.tick("event", event)
    scene = world.scene(Choices(num_clients=30, client="4", other="9", event=event))
    found = what_if(scene, 4, 9, event)
    lines = {line[0]: line[1:] for line in page.rows("#what-if table")}
    for words, name in (
        ("budget (ρ)", "budget"),
        ("utility (money)", "utility"),
        ("external risk (ρ)", "external_risk"),
    ):
        assert lines[words][:2] == [number(getattr(found.before, name)), number(getattr(found.after, name))]
    assert lines["all: welfare (money)"][1] == number(found.everybody_after.welfare)
    assert lines["external risk (ρ)"][2].startswith("−" if event == "leaves" else "+")


def test_a_client_cannot_be_its_own_other(page):
    page.link("?clients=30&client=4")
    page.page.fill("#lever-other", "4")
    page.page.press("#lever-other", "Enter")
    page.page.wait_for_selector("#what-if:has-text('cannot be its own other')")


# ---- communities -------------------------------------------------------------------------------------------------


def test_communities_are_opened_by_a_click_and_left_by_the_trail(page, site):
    page.link("?network=file")
    assert page.text("#summary").startswith("3,000 clients")
    picture = site.picture(Choices(network="file"))
    assert picture.is_community
    sizes = page.drawn("cy.nodes().map((each) => each.data('size'))")
    assert sum(sizes) == 3000
    assert sizes == picture.sizes.tolist()
    label, community = page.drawn("[cy.nodes()[0].data('name'), cy.nodes()[0].data('community')]")
    with page.change():
        page.click_node(label)
    assert page.choices.opened == (community,)
    assert page.drawn("cy.nodes().length") == sizes[0]
    assert page.drawn("cy.nodes().every((each) => each.data('size') === 1)")
    inside = page.drawn("cy.nodes()[3].data('name')")
    with page.change():
        page.click_node(inside)
    assert page.choices.client == inside
    assert page.text("#client-panel h3").startswith(f"Client {inside}, round 1")
    with page.change():
        page.page.click("#trail button:has-text('all 3,000 clients')")
    assert page.choices.opened == ()
    assert page.drawn("cy.nodes().length") == len(sizes)
    assert page.drawn("cy.nodes('.chosen').map((each) => each.data('name'))") == [label]
    assert page.page.locator("#trail button").count() == 0
