"""Pages, README and examples agree with the code: equations, names, printed figures, links; what they show runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
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
PAGES = [page for page in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md") if page.exists()]

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def ran(*line: object, silent: bool = False) -> str:
    """What Python prints for a command line that must succeed, and say nothing else where it is `silent`."""
    command = [sys.executable, *map(str, line)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not (silent and done.stderr)
    return done.stdout


# ---- equations --------------------------------------------------------------------------------------------------


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


def test_equations_are_numbered_once_each_without_a_gap_and_each_is_cited_by_a_docstring():
    assert sorted(map(int, re.findall(r"\\tag\{(\d+)\}", MODEL))) == list(range(1, len(EQUATIONS) + 1))
    cited = set().union(*map(numbers_cited, docstrings()))
    assert set(EQUATIONS) <= cited, f"nothing in the code cites {sorted(set(EQUATIONS) - cited)}"


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
    named = [resolve(name) for name in re.findall(r"`((?:mppfl|reproduction)(?:\.\w+)+)", text)]
    assert any(number in numbers_cited(thing.__doc__ or "") for thing in named), f"none of {named} cites eq. {number}"


def test_every_dotted_name_in_the_model_can_be_imported():
    for name in set(re.findall(r"`((?:mppfl|reproduction)(?:\.\w+)+)", MODEL)):
        assert resolve(name) is not None, name


# ---- corrections ------------------------------------------------------------------------------------------------


def printed_block(script: Path) -> str:
    """The fenced block that follows the script's command line in docs/corrections.md."""
    command = f"`python -m examples.corrections.{script.stem}`"
    assert CORRECTIONS.count(command) == 1, f"docs/corrections.md must show {command} once"
    return re.search(r"```text\n(.*?)```", CORRECTIONS.split(command)[1], flags=re.DOTALL).group(1)


def nearly_equal(shown: str, printed: str) -> bool:
    """Equal to three significant digits, or to one unit of the last digit shown."""
    mantissa, _, exponent = shown.partition("e")
    last_place = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) if "." in shown or exponent else 0.0
    return abs(float(shown) - float(printed)) <= max(5e-3 * abs(float(shown)), last_place) * (1 + 1e-9)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_what_the_corrections_show(script):
    printed = ran("-X", "utf8", "-W", "error", "-m", f"examples.corrections.{script.stem}").splitlines()
    shown = printed_block(script).splitlines()
    assert len(shown) == len(printed)
    for before, now in zip(shown, printed, strict=True):
        assert NUMBER.sub("#", before).split() == NUMBER.sub("#", now).split()
        for one, other in zip(NUMBER.findall(before), NUMBER.findall(now), strict=True):
            assert nearly_equal(one, other), f"shown {before!r}, printed {now!r}"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60


# ---- examples and README ------------------------------------------------------------------------------------------


def test_every_example_is_listed_here():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_is_short_and_prints_what_its_first_line_promises(name):
    path, (words, most_lines) = ROOT / "examples" / f"{name}.py", EXAMPLES[name]
    assert words in ran(path, silent=True)
    assert len(path.read_text().splitlines()) <= most_lines


def test_the_ten_lines_of_the_readme_run_and_its_commands_are_in_the_makefile():
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert "leader_regret" in ran("-c", block)
    assert len(block.strip().splitlines()) <= 12
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_tables_are_made_from_the_files_in_the_repository():
    sys.path.insert(0, str(ROOT / "docs"))
    from make_results import PAGES, TABLES, with_tables

    texts = [page.read_text() for page in PAGES]
    for text in texts:
        assert with_tables(text) == text, "run: python docs/make_results.py --tables"
    assert all(any(f"<!-- {name} -->" in text for text in texts) for name in TABLES)


# ---- links ------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        where, _, anchor = link.partition("#")
        target = (page.parent / where) if where else page
        assert target.exists(), f"{page.name} edges to {link}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} edges to {link}, but there is no such heading"
