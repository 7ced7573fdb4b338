"""A server and a Chromium that visits it: what the tests, the benchmark and the picture of the explorer share."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mppfl.explorer import Choices, from_link

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from mppfl.explorer import Site

PATIENCE = 120_000  # ms; nothing on the page takes so long, even on a machine that is very busy
DRAWING = """() => {
  const holder = [...document.querySelectorAll("#graph, #graph div")].find((each) => each._cyreg);
  return holder ? holder._cyreg.cy : null;
}"""
# The page forbids eval, and with it Playwright's wait_for_function: it is a loop of frames that waits instead.
UNTIL = """async (patience) => {
  const end = performance.now() + patience;
  while (performance.now() < end) {
    const found = (CONDITION)();
    if (found) return found;
    await new Promise(requestAnimationFrame);
  }
  return null;
}"""
SETTLED = """() => {
  const {asked, answered} = document.body.dataset;
  const painted = document.getElementById("panel-network")?.hidden || answered === asked;
  return Number(asked || 0) > BEFORE && painted && !document.querySelector("._dash-loading-callback");
}"""


def find_chromium() -> str | None:
    """The browser to drive: MPPFL_CHROMIUM, or one on the path."""
    listed = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return os.environ.get("MPPFL_CHROMIUM") or next((each for each in listed if each), None)


@contextmanager
def serving(site: Site) -> Iterator[str]:
    """Serves a site from a thread of this process, and tells its address."""
    from mppfl.explorer import AccessControl, bind, make_app

    server = bind(make_app(site, AccessControl()), "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.effective_port}/"
    finally:
        server.close()
        thread.join(10)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """One window on the page.

    faults   what the browser complained of, and every request to another host
    """

    page: Page
    address: str
    faults: list[str] = field(default_factory=list)
    _links: int = 0

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda said: self.faults.append(f"console: {said.text}") if said.type == "error" else 0)
        self.page.on("pageerror", lambda error: self.faults.append(f"page: {error}"))
        self.page.on("request", lambda asked: self._check(asked.url))

    def _check(self, url: str) -> None:
        if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != urlsplit(self.address).netloc:
            self.faults.append(f"request to another host: {url}")

    # ---- coming, and waiting ----

    def open(self, query: str = "") -> None:
        """Loads the page and waits until its answer is there."""
        self.page.goto(self.address + query)
        self.settle(0)

    def link(self, query: str) -> None:
        """Follows a link without loading the page again, as a step back in the browser's history does."""
        self._links += 1
        with self.change():
            self.page.evaluate(
                "(to) => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }",
                f"{query or '?'}{'&' * self._links}",  # which says nothing, and makes it another link
            )

    @contextmanager
    def change(self) -> Iterator[None]:
        """Around an action that moves a lever: ends when what follows from it is on the page."""
        before = self.page.evaluate("Number(document.body.dataset.asked || 0)")
        yield
        self.settle(before)

    def settle(self, before: int) -> None:
        self.until(SETTLED.replace("BEFORE", str(before)))

    def until(self, condition: str) -> Any:
        """Waits, frame by frame, until the function returns something true, and returns it."""
        found = self.page.evaluate(UNTIL.replace("CONDITION", condition), PATIENCE)
        assert found, f"not within {PATIENCE / 1000:g} s: {condition}"
        return found

    # ---- levers ----

    @property
    def choices(self) -> Choices:
        """What is chosen, by the page's own link."""
        return from_link(urlsplit(self.page.url).query)

    def slide(self, name: str, value: float) -> None:
        with self.change():
            self.page.fill(f"#lever-{name}", f"{value:g}")

    def enter(self, name: str, value: object) -> None:
        with self.change():
            self.page.fill(f"#lever-{name}", str(value))
            self.page.press(f"#lever-{name}", "Enter")

    def select(self, name: str, words: str) -> None:
        with self.change():
            self.page.click(f"button#lever-{name}")
            self.page.click(f".dash-dropdown-content >> text={words}")

    def tick(self, name: str, value: str) -> None:
        """One of several buttons: a tab, a colour, an event, a run."""
        with self.change():
            self.page.click(f'#lever-{name} label:has(input[value="{value}"])')

    # ---- what is to be seen ----

    def drawn(self, expression: str) -> Any:
        """The value of an expression in `cy`, Cytoscape's handle on the drawing."""
        return self.page.evaluate(f"() => {{ const cy = ({DRAWING})(); return {expression}; }}")

    def click_node(self, name: str) -> None:
        spot = self.drawn(f"cy.nodes().filter((each) => each.data('name') === {name!r})[0].renderedPosition()")
        frame = self.page.locator(".graph-frame").bounding_box()
        assert frame is not None
        self.page.mouse.click(frame["x"] + spot["x"], frame["y"] + spot["y"])

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def facts(self) -> dict[str, str]:
        """The panel of the chosen client."""
        lines = self.page.locator("#client-panel dl")
        names, values = lines.locator("dt").all_inner_texts(), lines.locator("dd").all_inner_texts()
        return dict(zip(names, values, strict=True))

    def rows(self, selector: str) -> list[list[str]]:
        """The body of a table, cell by cell."""
        return self.page.locator(selector).evaluate(
            "(table) => [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
        )

    def figure(self, key: str) -> dict[str, Any]:
        """A chart as it is drawn: the names of its axes, and its traces."""
        drawn = f"""() => {{
          const chart = document.querySelector("#chart-{key}.js-plotly-plot");
          if (!chart || !chart.querySelector(".xtitle")) return null;
          const kept = ({{name, type, x, y}}) => ({{name, type, x: x && Array.from(x), y: y && Array.from(y)}});
          return {{x: chart.querySelector(".xtitle").textContent, y: chart.querySelector(".ytitle").textContent,
                   title: chart.layout.title.text, traces: chart.data.map(kept)}};
        }}"""
        return dict(self.until(drawn))

    def close(self) -> None:
        self.page.context.close()


def visit(browser: Browser, address: str, *, width: int = 1400, height: int = 950, **options: Any) -> Visit:
    """A new window with nothing kept from others."""
    context: BrowserContext = browser.new_context(viewport={"width": width, "height": height}, **options)
    return Visit(context.new_page(), address)


def number_after(words: str, text: str) -> str:
    """The number that follows some words of a text."""
    found = re.search(rf"{re.escape(words)} ([−\d.,e+-]*\d)", text)
    assert found is not None, f"no number after {words!r} in {text!r}"
    return found[1]
