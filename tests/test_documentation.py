"""The documentation site: it builds, stays on its own host, links to what is there, and its commands and code run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from make_reference import DESIGN, PAGE, reference, with_tree  # noqa: E402
from make_tutorial import BLOCK, COMMAND, PAGES, followed  # noqa: E402

from tests.test_docs import NUMBER  # noqa: E402

HASH = re.compile(r"\b[0-9a-f]{64}\b")
NOISY = re.compile(r"\d+(?:\.\d+)? %")  # an accuracy after fresh noise
SAME_EVERYWHERE = ("graph", "solve", "compare", "risk", "calibrate")  # commands without fresh noise
SAME_BUT_FOR_NOISE = ("train", "ledger")  # prices and accounts are known before any noise is drawn
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("source", "srcset")}
NAMED_ONLY = {"canonical", "next", "prev", "edit"}  # kinds of <link> that load nothing


# ---- the built site -----------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """One built page: what it loads, where it leads, and the places in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.places: set[str] = set()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        self.loads += [given[name] for kind, name in LOADED if kind == tag and name in given]
        if tag == "link" and given.get("rel") not in NAMED_ONLY:
            self.loads.append(given["href"])
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for name in ("mkdocs", "material", "latex2mathml"):
        pytest.importorskip(name, reason=f"{name} is not installed; `make docs` installs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, encoding="utf-8", timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path.relative_to(site): Page(path) for path in site.rglob("*.html")}


def is_elsewhere(link: str) -> bool:
    return bool(re.match(r"(?:[a-z]+:)?//", link))


def test_every_page_of_the_site_is_built(pages):
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.with_suffix(".html") for path in written} <= set(pages)


def test_nothing_is_loaded_from_another_host(site, pages):
    for path, page in pages.items():
        assert not [link for link in page.loads if is_elsewhere(link)], path
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), style.name


def test_every_link_and_picture_leads_somewhere(site, pages):
    for path, page in pages.items():
        for link in [*page.leads, *page.loads]:
            if is_elsewhere(link) or re.match(r"(?:mailto|data|javascript):", link):
                continue
            where, place = urldefrag(link)
            absolute = path.name == "404.html" and where.startswith("/")  # it may be shown at any depth
            base = site if absolute else (site / path).parent
            target = (base / unquote(where).lstrip("/" if absolute else "")).resolve() if where else site / path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path} edges to {link}, which does not exist"
            if place and target.suffix == ".html":
                inside = pages[target.relative_to(site)].places
                assert unquote(place) in inside, f"{path} edges to {link}, but there is no such place"


def test_formulas_are_mathml_and_nothing_is_left_of_their_source(pages):
    model = pages[Path("model.html")]
    numbers = {int(place.removeprefix("eq-")) for place in model.places if re.fullmatch(r"eq-\d+", place)}
    tags = map(int, re.findall(r"\\tag\{(\d+)\}", (ROOT / "docs" / "model.md").read_text(encoding="utf-8")))
    assert numbers == set(tags)
    for path, page in pages.items():
        assert "arithmatex" not in page.text, path
        for formula in re.findall(r"<math.*?</math>", page.text, flags=re.DOTALL):
            assert "\\" not in formula, f"{path}: {formula}"


# ---- what the pages say is what happens -----------------------------------------------------------------------------


def blocks(text: str) -> Iterator[tuple[str, str]]:
    return ((block["kind"], block["body"]) for block in BLOCK.finditer(text))


def words(line: str) -> list[str]:
    """A line without its numbers: columns may be wider, and a hash is another one every time."""
    return re.sub(r"─+", "─", NUMBER.sub("#", HASH.sub("HASH", line))).split()


def is_near(one: str, other: str) -> bool:
    """Equal to 2 %, or to one unit of the last digit shown; what is next to nothing may differ."""
    mantissa, _, exponent = one.partition("e")
    last_place = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(one) - float(other)) <= max(0.02 * abs(float(one)), last_place, 1e-6)


def settled_numbers(line: str, command: str, kind: str) -> list[str]:
    """The numbers of a printed line that neither fresh noise nor the machine's speed may move."""
    if re.search(r"\d s$", line):  # seconds are the machine's
        return []
    if kind == "text" or command.startswith(tuple(f"$ mppfl {word}" for word in SAME_EVERYWHERE)):
        return NUMBER.findall(line)
    if not command.startswith(tuple(f"$ mppfl {word}" for word in SAME_BUT_FOR_NOISE)):
        return []
    numbers = NUMBER.findall(NOISY.sub("", HASH.sub("", line)))
    return numbers[:-1] if NOISY.search(line) else numbers  # a row of trainings ends with its seconds


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_can_be_followed_and_shows_what_is_printed(page):
    shown = page.read_text(encoding="utf-8")
    for (kind, before), (_, now) in zip(blocks(shown), blocks(followed(shown)), strict=True):
        remake = f"{page.name} shows something else: python docs/make_tutorial.py"
        assert [words(line) for line in before.splitlines()] == [words(line) for line in now.splitlines()], remake
        command = ""
        for line, again in zip(before.splitlines(), now.splitlines(), strict=True):
            command = line if line.startswith("$ ") else command
            numbers = zip(settled_numbers(line, command, kind), settled_numbers(again, command, kind), strict=True)
            assert all(is_near(*pair) for pair in numbers), f"{page.name}: {line!r}, now {again!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_that_are_only_shown_have_the_options_they_use(page):
    import typer.main

    from mppfl.cli import app

    for kind, body in blocks(page.read_text(encoding="utf-8")):
        lines = body.splitlines() if kind == "sh" else COMMAND.findall(body) if kind == "console" else []
        for line in lines:
            command, rest = typer.main.get_command(app), shlex.split(line.replace("\\\n", " "), comments=True)
            if not rest or rest.pop(0) != "mppfl":
                continue
            while hasattr(command, "commands") and rest and rest[0] in command.commands:
                command = command.commands[rest.pop(0)]
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
            assert not hasattr(command, "commands") or set(rest) <= known, f"{page.name}: no such command: {line}"
            used = {word.partition("=")[0] for word in rest if word.startswith("--")}
            assert used <= known, f"{page.name}: {line}"


def test_the_reference_and_the_tree_of_the_design_page_are_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python docs/make_reference.py"
    text = DESIGN.read_text(encoding="utf-8")
    assert text == with_tree(text), "run: python docs/make_reference.py"
