"""The report: one page that is whole, safe, small, and says what must be said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from mppfl.charts import MECHANISM_SLOTS
from mppfl.errors import BadInput, MppflError
from mppfl.experiment.report import report_page, write_report
from mppfl.privacy import Protection
from mppfl.privacy.ledger import SIMULATION
from tests.experiment.runs import CASES, STRANGE, make_run

VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """Reads a page and keeps what it asks for; complains about tags that do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), f"<{tag}> has an attribute twice"
        assert not [name for name in values if name.startswith("on")]
        self.tags.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def values(self, *names):
        return [values[name] for _, values in self.tags for name in names if name in values]


def data_of(text):
    """The figures that a page carries for its script, as strict JSON."""
    return json.loads(re.search(r'(?s)id="data">(.*?)</script>', text)[1], parse_constant=pytest.fail)


def require_self_contained(page):
    """It loads nothing, its links lead somewhere, and every picture has its words."""
    assert all(load.startswith(("#", "data:,")) for load in page.values("src", "href", "action", "data", "srcset"))
    ids = page.values("id")
    assert len(set(ids)) == len(ids)
    assert {goal[1:] for goal in page.values("href") if goal.startswith("#")} <= set(ids)
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes.get("aria-hidden") or (attributes["role"] == "img" and attributes["aria-label"])


def page_of(*runs):
    text = report_page(runs)
    page = Page(text)
    require_self_contained(page)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|//[a-z]+\.", text)
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert "NaN" not in text
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r"(?s)<pre.*?</pre>|<script.*?</script>|>\s*nan\s*<", "", text))
    assert data_of(text)
    return page


@pytest.mark.parametrize("case", [c for c in CASES if c != "strange names"], ids=str)
def test_every_kind_of_run_makes_a_whole_page(case):
    assert "Privacy accounts" in page_of(make_run(**CASES[case])).text


def test_several_runs_stand_side_by_side():
    noiseless = make_run("noiseless", noiseless=True)
    page = page_of(make_run("mppfl", seed=1), make_run("dp_fedavg", seed=1, absent=True), noiseless)
    assert page.text.count("20 clients learn digits") == 2  # title and heading
    assert re.search(r"(mppfl|fixed) learns best: \d", page.text)
    for words in ("noiseless reaches", "No noise, no protection.", "1 of 20 never participated", "1 of 20 refused"):
        assert words in page.text
    page = page_of(make_run("same", num_clients=3, num_rounds=4), make_run("same", num_clients=7, num_rounds=9))
    assert all(words in page.text for words in ("2 trainings side by side", "same (1)", "same (2)"))
    page = page_of(make_run("same"), make_run("same", unit="client"))
    assert all(f"same, local {words}" in page.text for words in ("record gradient", "client update"))


def test_names_of_clients_and_runs_cannot_become_markup():
    names = [*STRANGE, "</script><img src=x onerror=alert(1)>", "{{ 7*7 }}", "--><b>", "</title>", "'; alert(1)//"]
    config = {"data": {"name": "<i>digits</i>"}, "training": {"model": "</pre><script>x</script>"}}
    run = make_run("<b>run</b>", names=names, config=config, notes=("<u>note</u>",), absent=True)
    text = report_page([run, make_run("other", names=names)])
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("img", "u")]
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert "<script>alert(1)" not in text
    assert all(words in page.text for words in ("{{ 7*7 }}", "<script>alert(1)</script>", "<b>run</b>"))


def test_simulated_noise_and_what_is_protected_from_whom_are_said_aloud():
    simulated = page_of(make_run())
    assert simulated.text.count(SIMULATION) == 2
    assert "local record gradient protects one record of a client (replace one)" in simulated.text
    protected = page_of(make_run(unit="client", noise="gaussian"))
    assert "simulation" not in protected.text
    assert Protection(unit="client").guarantee in protected.text
    assert "local client update protects all of a client's data" in protected.text


def test_six_hundred_clients_are_drawn_in_part_and_the_page_says_so():
    page = page_of(make_run(num_clients=600, num_rounds=160, isolated=20))
    assert "300 of 600 clients are drawn" in page.text
    assert "of 600 clients; clients.csv has all." in page.text
    assert "mean over up to 2 rounds" in page.text
    assert sum(tag == "circle" for tag, _ in page.tags) <= 300 + 60


def test_a_page_is_small_the_same_every_time_and_names_no_folder_of_whoever_trained(tmp_path):
    runs = [make_run(f"run {i}", num_rounds=60, seed=i) for i in range(5)]
    path = write_report(runs, tmp_path / "deep" / "report.html")
    assert path.stat().st_size < 2_000_000
    text = path.read_text(encoding="utf-8")
    assert report_page(runs) == text
    assert "somebody" not in text
    assert "…/data" in text


def test_what_cannot_be_drawn_is_said():
    run = make_run(num_rounds=5)
    rounds = run.history.rounds | {"accuracy": np.full(5, np.nan), "loss": np.full(5, np.nan)}
    page = page_of(replace(run, history=replace(run.history, rounds=rounds)))
    assert "never evaluated" in page.text
    assert "Nothing to draw" in page.text
    assert "Infinite, so not drawn: noiseless" in page_of(make_run(), make_run("noiseless", noiseless=True)).text


def test_bad_targets_and_empty_reports_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="at least one run"):
        write_report([], tmp_path / "x.html")
    with pytest.raises(MppflError, match="could not be written"):
        write_report([make_run(num_clients=3)], tmp_path / "file" / "x.html")


def test_budgets_are_those_that_were_spent_and_equal_curves_are_told():
    run = make_run()
    spent, part = (run.history.clients[name][-1] for name in ("spent", "participating"))
    curve = data_of(report_page([run]))["charts"]["budgets"]["series"][0]["y"]
    assert curve[-1] == pytest.approx(np.median(spent[part.astype(bool)]), rel=1e-3)
    assert "These lie on one another:" in page_of(run, run).text


def test_a_mechanism_has_one_colour_on_every_page():
    assert len(set(MECHANISM_SLOTS.values())) == len(MECHANISM_SLOTS)
    for beside in ([], [make_run("mppfl")]):
        text = report_page([*beside, make_run("dp_fedavg")])
        curve = re.search(r"<title>dp_fedavg</title><path class=\"curve\" style=\"stroke:var\(--c(\d)\)", text)
        assert int(curve[1]) == MECHANISM_SLOTS["dp_fedavg"]
