"""The pages: they agree with the code, link to what is there, build into a site, and what they show runs."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import make_results  # noqa: E402
from make_reference import DESIGN, PAGE, reference, with_tree  # noqa: E402
from make_tutorial import BLOCK, COMMAND, PAGES, followed  # noqa: E402

MODEL, CORRECTIONS = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("model.md", "corrections.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = {  # what each prints, and the lines that it may take
    "two_friends": ("a third of the rate", 50),
    "clients_decide": ("nobody moves after", 50),
    "own_mechanism": ("steady", 29),
    "own_graph": ("key player", 50),
    "own_model_and_data": ("engine loop", 50),
    "sound_privacy": ("would pass its cap and opts out", 50),
}
SCRIPTS = sorted((ROOT / "examples" / "corrections").glob("*.py"))
WRITTEN = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
DOTTED = re.compile(r"`((?:mppfl|reproduction)(?:\.\w+)+)")
HASH = re.compile(r"\b[0-9a-f]{64}\b")
NOISY = re.compile(r"\d+(?:\.\d+)? %")  # an accuracy after fresh noise
SAME_EVERYWHERE = ("graph", "solve", "compare", "risk", "calibrate")  # commands without fresh noise
SAME_BUT_FOR_NOISE = ("train", "ledger")  # prices and accounts are known before any noise is drawn
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("source", "srcset")}
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//")
NAMED_ONLY = {"canonical", "next", "prev", "edit"}  # kinds of <link> that load nothing


def ran(*line: object, silent: bool = False) -> str:
    """What Python prints for a command line that must succeed, and say nothing else where it is `silent`."""
    command = [sys.executable, *map(str, line)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not (silent and done.stderr)
    return done.stdout


def is_near(shown: str, now: str, share: float, least: float) -> bool:
    """Equal to a share of the number shown, or to `least`."""
    return abs(float(shown) - float(now)) <= max(share * abs(float(shown)), least)


def last_place(shown: str) -> float:
    """One unit of the last digit shown."""
    mantissa, _, exponent = shown.partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def numbers_cited(text: str) -> set[int]:
    """Every n in "eq. n", "eqs. n, m" and the like."""
    lists = re.findall(r"\beqs?\.\s*(\d+(?:(?:,| and| to|–|-)\s*\d+)*)", text)
    return {int(n) for numbers in lists for n in re.findall(r"\d+", numbers)}


def docstrings() -> list[str]:
    """Docstrings of all functions and classes of the package and of the reproduction."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    paths = [*(ROOT / "src" / "mppfl").rglob("*.py"), *(ROOT / "reproduction").glob("*.py")]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    return [ast.get_docstring(node) or "" for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]


def resolve(name: str) -> Any:
    """The module, function, class, method or constant that a dotted name stands for."""
    parts = name.split(".")
    thing: Any = import_module(parts[0])
    for depth, part in enumerate(parts[1:], start=2):
        try:
            thing = getattr(thing, part)
        except AttributeError:
            thing = import_module(".".join(parts[:depth]))
    return thing


def text_after_equations() -> dict[int, str]:
    """What follows each numbered equation, up to the next one or the next heading."""
    pieces = re.split(r"\\tag\{(\d+)\} \$\$", MODEL)
    return {int(n): re.split(r"\n#+ |\n\$\$ ", text)[0] for n, text in zip(pieces[1::2], pieces[2::2], strict=True)}


EQUATIONS = text_after_equations()


def test_equations_are_numbered_without_a_gap_and_each_is_cited_by_a_docstring_and_names_what_can_be_imported():
    assert sorted(map(int, re.findall(r"\\tag\{(\d+)\}", MODEL))) == list(range(1, len(EQUATIONS) + 1))
    cited = set().union(*map(numbers_cited, docstrings()))
    assert set(EQUATIONS) <= cited, f"nothing in the code cites {sorted(set(EQUATIONS) - cited)}"
    for name in set(DOTTED.findall(MODEL)):
        assert resolve(name) is not None, name


def test_every_equation_and_section_that_the_code_cites_exists():
    sections = set(re.findall(r"^## (\d+)\. ", MODEL, flags=re.MULTILINE))
    for path in (ROOT / "src" / "mppfl").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        unknown = numbers_cited(text) - set(EQUATIONS)
        assert not unknown, f"{path.relative_to(ROOT)} cites equations {sorted(unknown)}, which docs/model.md lacks"
        assert set(re.findall(r"\bmodel(?:\.md)?, section (\d+)", text)) <= sections, path


@pytest.mark.parametrize("number", sorted(EQUATIONS))
def test_an_equation_says_who_computes_it_in_which_unit_and_when_it_holds(number):
    text = EQUATIONS[number]
    assert all(word in text for word in ("**Code**", "**Unit**", "**Holds**"))
    named = [resolve(name) for name in DOTTED.findall(text)]
    assert any(number in numbers_cited(thing.__doc__ or "") for thing in named), f"none of {named} cites eq. {number}"


def printed_block(script: Path) -> str:
    """The fenced block that follows the script's command line in docs/corrections.md."""
    command = f"`python -m examples.corrections.{script.stem}`"
    assert CORRECTIONS.count(command) == 1, f"docs/corrections.md must show {command} once"
    return re.search(r"```text\n(.*?)```", CORRECTIONS.split(command)[1], flags=re.DOTALL).group(1)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_what_the_corrections_show(script):
    printed = ran("-X", "utf8", "-W", "error", "-m", f"examples.corrections.{script.stem}").splitlines()
    shown = printed_block(script).splitlines()
    assert len(shown) == len(printed)
    for before, now in zip(shown, printed, strict=True):
        assert NUMBER.sub("#", before).split() == NUMBER.sub("#", now).split()
        for one, other in zip(NUMBER.findall(before), NUMBER.findall(now), strict=True):
            one_unit = last_place(one) if re.search(r"[.e]", one) else 0.0
            assert is_near(one, other, 5e-3, one_unit * (1 + 1e-9)), f"shown {before!r}, printed {now!r}"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
def test_an_example_runs_is_short_and_prints_what_its_first_line_promises(name):
    path, (words, most_lines) = ROOT / "examples" / f"{name}.py", EXAMPLES[name]
    assert words in ran(path, silent=True)
    assert len(path.read_text().splitlines()) <= most_lines


def test_the_ten_lines_of_the_readme_run_and_its_commands_are_in_the_makefile():
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    printed = ran("-c", block)
    assert "leader_regret" in printed
    learned, spent = map(float, printed.split()[-2:])
    assert learned > 0.7
    assert spent <= 2
    alone = ran("-c", block.replace('trust="secure_sum"', 'trust="local"').replace("discrete", "simulated"))
    assert float(alone.split()[-2]) < 0.65
    assert len(block.strip().splitlines()) <= 12
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_tables_are_made_from_the_files_in_the_repository():
    texts = [page.read_text() for page in make_results.PAGES]
    for text in texts:
        assert make_results.with_tables(text) == text, "run: python docs/make_results.py --tables"
    assert all(any(f"<!-- {name} -->" in text for text in texts) for name in make_results.TABLES)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        where, _, anchor = link.partition("#")
        target = (page.parent / where) if where else page
        assert target.exists(), f"{page.name} links to {link}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}, but there is no such heading"


class Page(HTMLParser):
    """One built page: what it loads, and the places in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        loaded = {("link", "href")} if given.get("rel") not in NAMED_ONLY else set()
        self.loads += [given[name] for kind, name in LOADED | loaded if kind == tag and name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for name in ("mkdocs", "material", "latex2mathml"):
        pytest.importorskip(name, reason=f"{name} is not installed; `make docs` installs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path.relative_to(site): Page(path) for path in site.rglob("*.html")}


def test_every_page_of_the_site_is_built_and_loads_nothing_from_another_host(site, pages):
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.with_suffix(".html") for path in written} <= set(pages)
    for path, page in pages.items():
        assert not [link for link in page.loads if ELSEWHERE.match(link)], path
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), style.name


def test_formulas_are_mathml_and_nothing_is_left_of_their_source(pages):
    model = pages[Path("model.html")]
    numbers = {int(place.removeprefix("eq-")) for place in model.places if re.fullmatch(r"eq-\d+", place)}
    assert numbers == set(EQUATIONS)
    for path, page in pages.items():
        assert "arithmatex" not in page.text, path
        for formula in re.findall(r"<math.*?</math>", page.text, flags=re.DOTALL):
            assert "\\" not in formula, f"{path}: {formula}"


def blocks(text: str) -> Iterator[tuple[str, str]]:
    return ((block["kind"], block["body"]) for block in BLOCK.finditer(text))


def words(line: str) -> list[str]:
    """A line without its numbers: columns may be wider, and a hash is another one every time."""
    return re.sub(r"─+", "─", NUMBER.sub("#", HASH.sub("HASH", line))).split()


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
            assert all(is_near(*pair, 0.02, max(last_place(pair[0]), 1e-6)) for pair in numbers), (
                f"{page.name}: {line!r}, now {again!r}"
            )


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
