"""The explorer: what its server answers to the page's questions, asked over HTTP without a browser.

A case is a link, as readers send to each other. The page turns it into the state of its levers and asks for what is to
be seen of it; `Page` does the same. Of the answers only numbers and names are held: what curves, bars and tables show.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.contract.cases import write_lines, write_network
from tests.contract.doors import Golden, command, json_of

if importlib.util.find_spec("dash") is None or importlib.util.find_spec("waitress") is None:
    pytest.skip("the explorer is an extra: pip install 'mppfl[explore]'", allow_module_level=True)

DEADLINE = 300  # seconds, far more than anything here takes
ACCOUNTS = 1e-9  # ε is found by bisection
TRAINING = """
name = "watched"
seed = 3
mechanisms = ["mppfl", "dp_fedavg"]
[game]
num_clients = 4
num_rounds = 2
reward_rate = "common"
[training]
model = "softmax"
learning_rate = 0.1
local_epochs = 1
[protection]
unit = "client"
budget_unit = 0.01
[ledger]
cap = 0.5
"""


class Page:
    """Asks the server what the page asks it."""

    def __init__(self, address: str, file: Path) -> None:
        self.address, self.file = address, file
        self.callbacks = json.loads(self.get("_dash-dependencies"))

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=DEADLINE) as answer:
            return answer.read().decode("utf-8")

    def ask(self, first_output: str, **values: Any) -> dict[str, Any]:
        """What the callback answers whose first output is that component; `values` are those of its inputs, by id."""
        callback = next(each for each in self.callbacks if re.match(rf"\.*{first_output}\.\w+", each["output"]))
        outputs = [dict(zip(("id", "property"), each.rsplit("."), strict=True)) for each in _outputs(callback)]
        question = {
            "output": callback["output"],
            "outputs": outputs if callback["output"].startswith("..") else outputs[0],
            "inputs": [{**each, "value": _value(each, values)} for each in callback["inputs"]],
            "state": [{**each, "value": _value(each, values)} for each in callback["state"]],
            "changedPropIds": ["{id}.{property}".format(**callback["inputs"][0])],
        }
        asked = urllib.request.Request(
            f"{self.address}_dash-update-component", json.dumps(question).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=DEADLINE) as answer:
            found: dict[str, Any] = json.load(answer)["response"]
        return found

    def levers(self, link: str) -> dict[str, Any]:
        """The state of the levers that a link sets, as the page gathers it."""
        set_to = self.ask("lever-graph", url=link, **{"lever-graph.options": []})
        named = {name.removeprefix("lever-"): each for name, each in set_to.items() if name.startswith("lever-")}
        state = {name: each.get("value", each.get("data")) for name, each in named.items()}
        return {"sequence": 1, "dark": False, **state}

    def on_file(self, rest: str) -> str:
        """A link to the network of --graph, read as the page begins with it."""
        return f"?{urlencode({'graph': self.file, 'isolated': 'keep', 'self_loops': 'drop'})}{rest}"

    def see(self, link: str) -> dict[str, Any]:
        """The answer to a link: alert, summary, texts, colours and plots, as far as the tab has them."""
        given = {"state": self.levers(link), "picture-key": "key", "lever-round_shown": 60}
        return self.ask("answer", **given)["answer"]["data"]


def _outputs(callback: dict[str, Any]) -> list[str]:
    return callback["output"].strip(".").split("...")


def _value(part: dict[str, str], values: dict[str, Any]) -> Any:
    return values.get(f"{part['id']}.{part['property']}", values.get(part["id"]))


def _number_or_word(text: str) -> Any:
    try:
        return float(text.replace("−", "-").replace(",", "").removesuffix(" %"))
    except ValueError:
        return text


def cells(text: str) -> list[list[Any]]:
    """Rows of what stands in the tables and lists of a part of the page; headings are left out."""
    rows = re.findall(r"<(?:tr|dl)\b.*?</(?:tr|dl)>", text, re.DOTALL)
    found = ([unescape(cell) for cell in re.findall(r"<(?:td|dd)\b[^>]*>([^<]+)", row)] for row in rows)
    return [[_number_or_word(cell) for cell in row] for row in found if row]


def curves(answer: dict[str, Any]) -> dict[str, Any]:
    """By chart: x and y of every band, line, bar or cloud."""
    return {chart["key"]: [*_drawn(chart)] for chart in answer["plots"]["charts"]}


def _drawn(chart: dict[str, Any]) -> Iterator[list[Any]]:
    for line in chart["lines"]:
        if line["low"] is not None:
            band = [place for place in zip(line["x"], line["low"], line["high"], strict=True) if None not in place]
            there, back = [(x, high) for x, _, high in band], [(x, low) for x, low, _ in reversed(band)]
            yield [[x for x, _ in there + back], [y for _, y in there + back]]
        yield [line["x"], line["y"]]
    for bars in chart["bars"]:
        yield [bars["values"], [*range(len(chart["labels"]))]]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The explorer with a network of its own and a finished training, on a free port of this machine."""
    folder = tmp_path_factory.mktemp("explorer")
    links = write_network(folder / "friends.csv", 16)
    experiment = write_lines(folder / "watched.toml", [TRAINING])
    command("train", experiment, "--output", folder / "runs", "--quiet")
    line = [Path(sys.executable).with_name("mppfl"), "explore", "--graph", links, "--run", folder / "runs"]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            [*map(str, line), "--no-browser", "--host", "127.0.0.1", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        watchdog = threading.Timer(DEADLINE, server.kill)
        watchdog.start()
        told = server.stdout.readline()  # it listens before it says so
        watchdog.cancel()
        found = re.search(r"http://127\.0\.0\.1:\d+/", told)
        assert found, told + (folder / "errors").read_text()
        yield Page(found.group(), links)
        server.terminate()
        server.wait(DEADLINE)


# ---- views --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["budget", "external_risk", "utility"])
def test_the_network_view_colours_every_client(golden, page, colour):
    found = page.see(f"?num_clients=12&seed=3&num_rounds=5&round_shown=2&colour={colour}")
    assert not found["alert"]
    summary = [_number_or_word(each.strip(",:")) for each in found["summary"].split()]
    golden.check(
        {
            "summary": [each for each in summary if isinstance(each, float)],
            "colours": found["paint"]["colours"],
            "ticks": [float(each) for each in re.findall(r"left:([\d.]+)%", found["texts"]["legend"])],
        }
    )


def test_the_picture_shows_clients_where_they_were_and_their_links(golden, page):
    state = page.levers(page.on_file(""))
    elements = page.ask("picture", state=state, **{"picture-key": "key"})["picture"]["data"]["elements"]
    clients = [each for each in elements if "position" in each]
    lines = [each["data"] for each in elements if "position" not in each]
    golden.check(
        {
            "names": [each["data"]["name"] for each in clients],
            "edges": [[each["source"], each["target"], each["weight"]] for each in lines],
        }
    )
    places = [[each["position"]["x"], each["position"]["y"]] for each in clients]
    assert all(0 <= x <= 1000 and 0 <= y <= 700 for x, y in places)
    Golden(f"{golden.path.stem}-places").check(places, relative=1e-2)  # found step by step, told to a tenth


@pytest.mark.parametrize(
    "link",
    [
        "?num_clients=12&seed=3&num_rounds=5",
        "file&preset=benign&num_rounds=4&round_shown=4&mechanism=mppfl_exact&budget_min=0.01&budget_max=0.4&client=c7",
        "?family=barabasi_albert&num_clients=30&num_rounds=3&mechanism=sarda_like&max_hops=3",
        "?num_clients=10&externality_strength=0.2&num_rounds=3&mechanism=personalised&participation=rational&against=nothing",
    ],
    ids=["as_it_opens", "a_file_with_bounds", "one_hop_auction", "personal_prices_and_leaving"],
)
def test_the_rounds_view_plots_the_game(golden, page, link):
    link = page.on_file(link.removeprefix("file")) if link.startswith("file") else link
    found = page.see(f"{link}&tab=rounds")
    golden.check({"alert": found["alert"], "charts": curves(found)})


def test_the_comparison_view_shows_every_mechanism(golden, page):
    found = page.see("?num_clients=8&seed=1&num_rounds=3&fixed_budget=mean&tab=comparison")
    golden.check({"charts": curves(found), "table": cells(found["texts"]["comparison-table"])})


@pytest.mark.parametrize("event", ["leaves", "doubles"])
def test_the_client_panel_says_who_exposes_it_and_what_if_another_moves(golden, page, event):
    found = page.see(page.on_file(f"&num_rounds=6&round_shown=3&client=c5&other=c4&event={event}"))
    paint = found["paint"]
    golden.check(
        {
            "panel": cells(found["texts"]["client-panel"]),
            "what_if": cells(found["texts"]["what-if"]),
            "drawn": [paint["chosen"], paint["sources"], paint["walks"]],
        }
    )


def test_the_run_view_shows_accounts_and_curves_of_trainings(golden, page):
    listed = page.ask("run-answer", **{"lever-runs": [], "clock.disabled": False})["lever-runs"]["options"]
    found = page.ask("run-answer", **{"lever-runs": listed, "clock.disabled": False})["run-answer"]["data"]
    charts = curves(found)
    learned = {key: charts.pop(key) for key in list(charts) if key in ("accuracy", "loss")}
    assert learned
    assert all(len(x) == len(y) > 0 for traces in learned.values() for x, y in traces)
    golden.check({"runs": listed, "charts": charts, "accounts": cells(found["texts"]["ledger"])}, relative=ACCOUNTS)


LINK = "?num_clients=9&seed=2&num_rounds=4&round_shown=3&mechanism=mppfl_exact&budget_max=1.5&client=4"


def test_the_data_of_a_link_are_those_of_the_round_shown(golden, page):
    golden.check(json.loads(page.get(f"download/data.json{LINK}")))
    table = page.get(f"download/data.csv{LINK}").splitlines()
    assert len(table) == 10
    assert len(table[0].split(",")) == len(table[-1].split(","))


def test_the_experiment_file_of_a_link_is_solved_to_the_same_numbers(golden, page, tmp_path):
    text = page.get(f"download/experiment.toml{LINK}")
    file = write_lines(tmp_path / "taken.toml", [text])
    golden.check(tomllib.loads(text))
    solved, shown = json_of("solve", "--experiment", file), json.loads(page.get(f"download/data.json{LINK}"))
    assert solved["rounds"][2]["reward_rate"] == pytest.approx(shown["reward_rate"], rel=1e-12)
    assert list(solved["rounds"][2]["budgets"].values()) == pytest.approx(
        [each["budget"] for each in shown["clients"]], rel=1e-12
    )
