"""docs/reproduction.md and its charts are what the committed files make of them; the page is whole."""

import re
from pathlib import Path

import numpy as np
import pytest
from reproduction.claims import CLAIMS
from reproduction.document import HEADINGS, chart_files, document_text, make_document, make_page, page_text
from reproduction.figure_files import read_figure
from reproduction.game_figures import FIGURES
from reproduction.premise import premise_section, premise_tested

from mppfl.errors import BadFile
from tests.experiment.test_report import Page, require_self_contained

ROOT = Path(__file__).parents[2]
FILES, DOCS = ROOT / "reproduction" / "results", ROOT / "docs"


@pytest.fixture(scope="module")
def text():
    return document_text(FILES)


def test_the_committed_document_and_charts_are_those_that_the_committed_files_make(tmp_path, text):
    path = make_document(FILES, tmp_path)
    assert path.read_text("utf-8") == text
    written = {file.relative_to(tmp_path): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for name, content in written.items():
        assert (DOCS / name).read_bytes() == content, f"{name}: run: make docs"
    shown = set(re.findall(r"\]\((images/paper/[\w-]+\.svg)\)", text))
    assert {path.name, *shown} == set(map(str, written))
    assert {Path(image).stem for image in shown} == set(chart_files(FILES))
    assert {"fig-curves-fashion-mnist", "fig-curves-cifar-10", *FIGURES} <= set(chart_files(FILES))


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


def test_without_files_the_document_says_what_is_missing(tmp_path):
    text = document_text(tmp_path)
    for name in FIGURES:
        assert f"Not made yet: `python -m reproduction {name}`." in text
    assert "Nothing is measured yet" in text
    assert "images/paper" not in text
    assert "took" not in text.split("## How to make this again")[1]


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    path = make_page(FILES, tmp_path / "page.html")
    text = path.read_text("utf-8")
    assert text == page_text(FILES)
    page = Page(text)
    require_self_contained(page)
    assert not re.search(r"https?://|@import|url\(|<script|<img", text)
    assert sum(tag == "figure" for tag, _ in page.tags) == len(chart_files(FILES))
    for words in (*HEADINGS.values(), *(claim.text for claim in CLAIMS)):
        assert words in page.text


def test_without_a_record_the_premise_says_how_to_make_one_and_another_file_is_named(tmp_path):
    assert premise_section(tmp_path) == "Not measured yet: `python benchmarks/leakage.py`."
    (tmp_path / "2026-01-01-leakage.json").write_text("[]")
    with pytest.raises(BadFile, match=r"leakage\.json: no record of benchmarks/leakage\.py"):
        premise_tested(tmp_path)
