"""docs/reproduction.md and its charts are what the committed files make of them; the page is whole."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from reproduction.charts import as_file, chart
from reproduction.claims import CLAIMS, TITLES
from reproduction.document import (
    HEADINGS,
    chart_files,
    document_text,
    make_document,
    make_page,
    page_text,
)
from reproduction.figure_files import read_figure, write_figure
from reproduction.game_figures import FIGURES
from reproduction.theorems import STATEMENTS

from tests.experiment.test_report import Page

ROOT = Path(__file__).parents[2]
FILES, DOCS = ROOT / "reproduction" / "results", ROOT / "docs"


def test_the_committed_document_is_made_from_the_committed_files():
    assert (DOCS / "reproduction.md").read_text("utf-8") == document_text(FILES), "run: make docs"


@pytest.mark.parametrize("name", FIGURES)
def test_the_committed_charts_are_made_from_the_committed_files(name):
    committed = DOCS / "images" / "paper" / f"{name}.svg"
    assert committed.read_text("utf-8") == as_file(chart(read_figure(FILES, name))), "run: make docs"


def test_the_document_has_every_claim_and_every_statement_with_its_verdict():
    text = document_text(FILES)
    for each in CLAIMS:
        row = next(line for line in text.splitlines() if line.startswith(f"| {each.text} |"))
        assert re.search(r"[✓◐✗] \*\*(reproduced|under a stated condition|not reproduced)\*\*", row)
    for each in STATEMENTS:
        assert f"| {each.text} |".replace("|D_i|", "\\|D_i\\|") in text
    assert "{{" not in text
    assert "Traceback" not in text


def test_what_is_said_of_welfare_at_mppfls_rates_is_what_the_file_says():
    figure = read_figure(FILES, "fig-welfare")

    def welfare(mechanism):  # [data sets, seeds]
        return figure.values(mechanism, "welfare", convention="common")

    assert (welfare("random") < 0).all()
    assert ((welfare("fixed_mean") < 0).mean(axis=1) >= 0.9).all()
    kept = welfare("social_agnostic") / welfare("mppfl")
    assert (kept > 0).all()
    assert np.abs(np.median(kept, axis=1) - 2 / 3).max() < 0.05
    assert (welfare("fixed_min") > 0).all()
    short = welfare("sarda_like") / welfare("mppfl")
    assert (short < 0).all()
    assert np.median(short, axis=1).min() > -0.05


def test_another_number_in_a_file_makes_another_document_and_chart(tmp_path):
    shutil.copytree(FILES, tmp_path / "files")
    before = document_text(tmp_path / "files"), chart_files(tmp_path / "files")["fig-cost"]
    figure = read_figure(FILES, "fig-cost")
    for strand in figure.strands:
        if strand.mechanism == "mppfl":
            strand.values[:] = 1.0
    write_figure(tmp_path / "files", figure)
    after = document_text(tmp_path / "files"), chart_files(tmp_path / "files")["fig-cost"]
    assert before[1] != after[1]
    row = "| MPPFL has the lowest server cost on all data sets | Section 5.2, Figure 3 | ✓ **reproduced** |"
    assert row in after[0]
    assert row not in before[0]


def test_without_files_the_document_says_what_is_missing(tmp_path):
    text = document_text(tmp_path)
    for name in FIGURES:
        assert f"Not made yet: `python -m reproduction {name}`." in text
    assert "Nothing is measured yet" in text
    assert "images/paper" not in text
    assert "took" not in text.split("## How to make this again")[1]


def test_document_and_charts_are_written_together(tmp_path):
    path = make_document(FILES, tmp_path)
    assert path.read_text("utf-8") == document_text(FILES)
    shown = re.findall(r"\]\((images/paper/[\w-]+\.svg)\)", path.read_text("utf-8"))
    assert {Path(image).stem for image in shown} == set(chart_files(FILES))
    assert all((tmp_path / image).is_file() for image in shown)


@pytest.mark.parametrize("name", FIGURES)
def test_a_chart_is_a_picture_of_its_own_with_named_axes_a_legend_and_finite_numbers(name):
    text = chart_files(FILES)[name]
    root = ET.fromstring(text)
    words = " ".join(filter(None, (node.text for node in root.iter("{http://www.w3.org/2000/svg}text"))))
    assert root.get("aria-label")
    assert not re.search(r"\bnan\b|\binf\b", text)
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"url\(|href|@import|<script", text)
    if name == "fig-phi":
        assert "sweep of Algorithm 1" in words
        assert all(f"round t = {t}" in words for t in (1, 10, 20, 40, 60))
    else:
        assert "money" in words
        assert all(title in words for title in TITLES.values())
        assert all(title in words for title in ("common reward", "own reward"))


def test_a_bar_is_as_long_as_its_median(tmp_path):
    figure = read_figure(FILES, "fig-cost")
    for strand in figure.strands:
        strand.values[:] = 100.0 if strand.mechanism == "mppfl" else 50.0
    bars = re.findall(r'<rect class="bar" style="fill:var\(--c(\d)\)"[^>]* height="([\d.]+)"><title>', chart(figure))
    heights = {slot: {height for each, height in bars if each == slot} for slot, _ in bars}
    assert {len(found) for found in heights.values()} == {1}
    (ours,), (random,) = heights["0"], heights["6"]
    assert float(ours) == pytest.approx(2 * float(random), abs=0.2)


def test_a_gap_in_a_trace_is_left_out_of_its_curve():
    figure = read_figure(FILES, "fig-phi")
    for strand in figure.strands:
        if strand.convention == "literal":
            strand.values[10:] = np.nan
            strand.values[10:, 1:] = 1.0  # a percentile of nothing would be no number
    assert not re.search(r"\bnan\b", chart(figure))


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    path = make_page(FILES, tmp_path / "page.html")
    text = path.read_text("utf-8")
    assert text == page_text(FILES)
    page = Page(text)
    assert all(load.startswith(("#", "data:,")) for load in page.loads)
    assert not re.search(r"https?://|@import|url\(|<script|<img", text)
    assert len(set(page.ids)) == len(page.ids)
    assert set(page.goals) <= set(page.ids)
    for tag, found in page.tags:
        if tag == "svg":
            assert found.get("aria-hidden") or (found["role"] == "img" and found["aria-label"])
    assert sum(tag == "figure" for tag, _ in page.tags) == len(chart_files(FILES))
    for heading in HEADINGS.values():
        assert heading in page.text
    for each in CLAIMS:
        assert each.text in page.text
