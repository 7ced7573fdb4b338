"""How quickly the explorer answers, in a real browser: every lever, the first picture, and a million clients.

python benchmarks/explorer.py                    all three parts, some five minutes
python benchmarks/explorer.py --parts levers     only one: levers, drawing or million

levers   200 clients of the paper's random network: from the input event to the frame with the answer in it, on the tabs
         of network, rounds and comparison. Every move is to a game that the server has not solved before. Of the charts
         of a tab those in sight are drawn first; a line each for those and for all.
drawing  2,000 clients with hubs: from navigation in an empty browser to the painted network, and then a lever.
million  1,000,000 clients with 5,000,000 edges: from the start of `mppfl explore --graph` to its communities drawn, and
         to them coloured once the game is solved.

Times are the browser's own clock for levers and drawing; the bars, for medians, are 200 ms, 3 s and 20 s.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))  # what drives the browser lives with the tests

from tests.explorer.browser import Visit, chromium, visit

from mppfl.explorer import COMPARISON_CHARTS, PARTICIPATION_WORDS, ROUND_CHARTS, SHOWN
from mppfl.game import MECHANISMS
from mppfl.network import random_graph, write_edges
from record import circumstances, write_record

TURNS = 7
WARM_UP = 8.0  # seconds in which the server loads compiled code beside its first page
LEVER_BAR, DRAWING_BAR, MILLION_BAR = 0.2, 3.0, 20.0  # seconds

# In the page: times a move up to the frame that shows its answer; `marks` are what the page says of itself by then.
TIMED = """async ([selector, value, marks]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const asked = () => Number(document.body.dataset.asked || 0);
  await new Promise((done) => setTimeout(done, 400));  // what the move before left to do is done
  const element = document.querySelector(selector), before = asked(), times = [];
  const began = performance.now();
  if (value === null) element.click();
  else {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(element, value);
    element.dispatchEvent(new Event("input", {bubbles: true}));
    if (element.type === "number") element.dispatchEvent(new FocusEvent("focusout", {bubbles: true}));
  }
  for (const mark of marks) {
    while (asked() === before || document.body.dataset[mark] !== String(asked())) {
      if (performance.now() - began > 20000) return null;
      await frame();
    }
    await frame();
    times.push((performance.now() - began) / 1000);
  }
  return times;
}"""
MARKS = {
    "network": {"network": "answered"},
    "rounds": {"rounds in sight": "plotted", "all of rounds": "allPlotted"},
    "comparison": {"comparison in sight": "plotted", "all of comparison": "allPlotted"},
}
LAST_CHART = {"rounds": ROUND_CHARTS[-1], "comparison": COMPARISON_CHARTS[-1]}
PAINTED = """async () => {
  while (!document.body.dataset.answered || document.body.dataset.answered !== document.body.dataset.asked)
    await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() / 1000;
}"""


def timed(page: Visit, selector: str, value: str | None = None, marks: Sequence[str] = ("answered",)) -> list[float]:
    """Seconds from an input event, or a click where there is no value, to each mark of the answer."""
    taken = page.page.evaluate(TIMED, [selector, value, list(marks)])
    if taken is None:
        raise RuntimeError(f"no answer to {selector} = {value}")
    return [float(each) for each in taken]


def chosen(page: Visit, name: str, words: str, marks: Sequence[str]) -> list[float]:
    """Seconds from the click on an option of a select to each mark of the answer."""
    page.page.click(f"button#lever-{name}")
    option = page.page.locator(
        f".dash-dropdown-content label:has-text({words!r}), .dash-dropdown-content >> text={words}"
    )
    option.first.evaluate("(each) => each.setAttribute('data-benchmark', 'here')")
    taken = timed(page, "[data-benchmark]", None, marks)
    page.page.evaluate(
        "document.querySelectorAll('[data-benchmark]').forEach((each) => each.removeAttribute('data-benchmark'))"
    )
    return taken


def levers(page: Visit, start: str, marks: Sequence[str]) -> Iterator[tuple[str, list[list[float]]]]:
    """Every lever, and what each of its moves took up to each mark."""
    fresh = count()

    def new_game() -> None:
        """Another α, not timed, so that the move that follows has not been solved before."""
        timed(page, "#lever-externality_strength", f"{0.005 * (12 + next(fresh) % 38):.3f}", marks)

    def slider(name: str, values: list[float]) -> list[list[float]]:
        return [timed(page, f"#lever-{name}", f"{value:g}", marks) for value in values[:TURNS]]

    def select(name: str, words: list[str]) -> list[list[float]]:
        taken = []
        for turn in range(TURNS):
            new_game()
            taken.append(chosen(page, name, words[turn % len(words)], marks))
        return taken

    yield "α", slider("externality_strength", [0.26, 0.265, 0.27, 0.275, 0.28, 0.285, 0.29])
    yield "K", slider("max_hops", [1, 2, 3, 4, 6, 7, 8])
    yield "λ", slider("hop_decay", [0.1, 0.2, 0.3, 0.4, 0.55, 0.65, 0.75])
    yield "τ", slider("accuracy_weight", [0.1, 0.2, 0.3, 0.4, 0.55, 0.65, 0.75])
    yield "rounds", slider("num_rounds", [50, 70, 90, 110, 130, 150, 60])
    yield "round shown", slider("round_shown", [5, 10, 15, 20, 25, 30, 1])
    yield "least budget", slider("budget_min", [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0])
    yield "largest budget", slider("budget_max", [2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6])
    page.edge(start)
    yield "preset", select("preset", ["benign", "paper-like"])
    page.edge(start)
    yield "mechanism", select("mechanism", [MECHANISMS[name].title for name in (*SHOWN[1:], SHOWN[0])])
    page.edge(start)
    yield (
        "participation",
        select("participation", [*list(PARTICIPATION_WORDS.values())[1:], PARTICIPATION_WORDS["everyone"]]),
    )
    page.edge(start)
    if "answered" in marks:
        colours = ("own_risk", "external_risk", "utility", "budget")
        clicks = [f'#lever-colour label:has(input[value="{colours[turn % 4]}"]) input' for turn in range(TURNS)]
        yield "colour", [timed(page, each) for each in clicks]
    yield "seed (another network)", slider("seed", [1, 2, 3, 4, 5, 6, 7])


@contextmanager
def explorer(*options: str | Path) -> Iterator[str]:
    """`mppfl explore` as a program of its own, as users have it; tells its address."""
    command = [Path(sys.executable).with_name("mppfl"), "explore", "--no-browser", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield re.search(r"http://\S+/", server.stdout.readline())[0]
        finally:
            server.terminate()


def lever_part(browser) -> list[dict]:
    lines = []
    with explorer() as address:
        time.sleep(WARM_UP)
        for tab, marks in MARKS.items():
            page = visit(browser, address)
            start = f"?num_clients=200&client=3&tab={tab}"
            page.open(start)
            if tab in LAST_CHART:
                page.figure(LAST_CHART[tab])
            for name, moves in levers(page, start, tuple(marks.values())):
                for which, taken in zip(marks, zip(*moves, strict=True), strict=True):
                    lines.append(line("200 clients", f"{name}, {which}", list(taken), LEVER_BAR))
            page.close()
    return lines


def drawing_part(browser) -> list[dict]:
    """A network never drawn before each time; the browser keeps nothing from the time before."""
    opened, moved = [], []
    with explorer() as address:
        time.sleep(WARM_UP)
        warm = visit(browser, address)
        warm.open("?family=barabasi_albert&num_clients=200")  # compiles what is compiled once
        warm.close()
        for seed in range(3):
            page = visit(browser, address)
            page.page.goto(f"{address}?family=barabasi_albert&num_clients=2000&seed={seed}", wait_until="commit")
            page.page.wait_for_selector("body[data-asked]")
            opened.append(page.page.evaluate(PAINTED))
            if seed == 2:
                moved = [
                    timed(page, "#lever-externality_strength", f"{value:g}")[0]
                    for value in np.linspace(0.1, 0.13, TURNS)
                ]
            page.close()
    return [
        line("2,000 clients", "navigation to painted", opened, DRAWING_BAR),
        line("2,000 clients", "α, network", moved, DRAWING_BAR),
    ]


def million_part(browser, options: argparse.Namespace) -> list[dict]:
    """One start: until the address is printed, when the file has been read, and until the picture is painted."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.million or Path(folder) / "million.csv"
        if not path.exists():
            graph = random_graph("skewed", 1_000_000, num_edges=5_000_000, rng=np.random.default_rng(0))
            write_edges(graph, path)
        began = time.perf_counter()
        with explorer("--graph", path) as address:
            printed = time.perf_counter() - began
            page = visit(browser, address)
            page.page.set_default_timeout(300_000)
            page.page.goto(page.address)
            page.page.wait_for_selector("body[data-drawn]:not([data-drawn='0'])")
            drawn = time.perf_counter() - began
            page.page.wait_for_selector("body[data-answered]")
            painted = time.perf_counter() - began
            nodes = page.drawn("cy.nodes().length")
            page.close()
    return [
        line("1,000,000 clients", "start to address printed", [printed], None),
        line("1,000,000 clients", f"start to {nodes} communities drawn", [drawn], MILLION_BAR),
        line("1,000,000 clients", "start to them coloured, game solved", [painted], None),
    ]


def line(what: str, which: str, taken: list[float], bar: float | None) -> dict:
    return {
        "what": what,
        "which": which,
        "median_s": round(statistics.median(taken), 4),
        "worst_s": round(max(taken), 4),
        "times_s": [round(each, 4) for each in taken],
        "bar_s": bar,
    }


def print_table(lines: list[dict]) -> None:
    print(f"{'':<18}{'':<38}{'median':>10}{'worst':>10}{'bar':>9}")
    for each in lines:
        bar = each["bar_s"]
        verdict = "" if bar is None else f"{bar * 1000:>6.0f} ms   {'reached' if each['median_s'] <= bar else 'missed'}"
        median, worst = (f"{each[name] * 1000:>7.0f} ms" for name in ("median_s", "worst_s"))
        print(f"{each['what']:<18}{each['which']:<38}{median}{worst}{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["levers", "drawing", "million"])
    parser.add_argument("--million", type=Path, help="where the edge list of a million clients is, or is to be kept")
    parser.add_argument("--records", type=Path, help="where the record goes; default: benchmarks/records")
    options = parser.parse_args()
    around = circumstances("dash", "dash-cytoscape", "plotly", "playwright", "numpy", "numba")
    parts: dict[str, Callable[..., list[dict]]] = {
        "levers": lever_part,
        "drawing": drawing_part,
        "million": lambda browser: million_part(browser, options),
    }
    with chromium() as browser:
        around["versions"]["chromium"] = browser.version
        lines = [each for name in options.parts for each in parts[name](browser)]
    print_table(lines)
    print(write_record("explorer", around | {"turns": TURNS, "lines": lines}, options.records))


if __name__ == "__main__":
    main()
