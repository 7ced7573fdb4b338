"""One direction, from network over game, privacy and so on to apps (`ORDER`); nothing heavy before its time."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import mppfl

ORDER = ("network", "game", "privacy", "data", "learning", "results", "recommender", "apps")
FOR_ALL = {"mppfl.errors", "mppfl.arrays"}
SOURCE = Path(mppfl.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


def dotted(path):
    """The module's name, as mppfl.game.solve."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Every name that a module imports, wherever the import stands, with what follows `from ... import`."""
    package = dotted(path).split(".") if path.name == "__init__.py" else dotted(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def ours(name):
    """The module of ours that a dotted name lies in, or None."""
    parts = name.split(".")
    if parts[0] != "mppfl":
        return None
    while parts:
        at = SOURCE.parent.joinpath(*parts)
        if at.with_suffix(".py").exists() or (at / "__init__.py").exists():
            return ".".join(parts)
        parts.pop()
    return None


def folder(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else None


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_module_imports_only_from_folders_to_its_left(path):
    here = folder(dotted(path))
    for module in filter(None, map(ours, imported(path))):
        if dotted(path) == "mppfl":
            assert folder(module) != "apps"  # the public names are no doors
        elif here is None:
            assert module in FOR_ALL
        elif module not in FOR_ALL:
            assert folder(module) is not None, f"{dotted(path)} imports {module}: import it from where it lives"
            assert ORDER.index(folder(module)) <= ORDER.index(here), f"{dotted(path)} imports {module}, to its right"


def test_every_folder_has_its_place_in_the_order():
    folders = {path.parent.relative_to(SOURCE).parts[0] for path in MODULES if path.parent != SOURCE}
    assert folders <= set(ORDER)


def test_no_module_is_called_utils():
    assert not [path for path in MODULES if "util" in path.stem or "helper" in path.stem]


def test_every_module_says_what_lives_in_it():
    assert all(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES)


def test_the_game_knows_torch_only_in_files_named_for_a_device():
    left = [p for p in MODULES if folder(dotted(p)) in ("network", "game", None) and not p.stem.startswith("device")]
    assert not [dotted(p) for p in left if any(n.split(".")[0] == "torch" for n in imported(p))]


# ---- what is imported when --------------------------------------------------------------------------------------

GUARD = """
import json, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} was imported, and must not be")

FORBIDDEN = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Refused())
code = 0
try:
    if len(sys.argv) == 1:
        import mppfl
    else:
        from mppfl.cli.main import main
        main()
except SystemExit as end:
    code = end.code or 0
print(json.dumps({"code": code, "found": sorted(FORBIDDEN & set(sys.modules))}), file=sys.stderr)
"""
HEAVY = ("torch", "numba", "matplotlib", "networkx")


def guarded(forbidden, *arguments):
    """Runs `mppfl ...` (or only `import mppfl`) where the forbidden modules cannot be imported."""
    line = [sys.executable, "-c", GUARD, ",".join(forbidden), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def test_importing_the_package_imports_nothing_heavy():
    _, end = guarded([*HEAVY, "numpy", "scipy", "typer"])
    assert end == {"code": 0, "found": []}


def test_solving_a_small_game_imports_nothing_heavier_than_scipy(tmp_path):
    links, clients = tmp_path / "links.csv", tmp_path / "clients.csv"
    links.write_text("ann,bob\nbob,cat\ncat,ann\n")
    clients.write_text("name,quadratic_cost,linear_cost,noise_harm\nann,1,0,1\nbob,1,0,1\ncat,1,0,1\n")
    stdout, end = guarded(HEAVY, "solve", "--graph", links, "--clients", clients, "--rounds", 60, "--json")
    assert end == {"code": 0, "found": []}
    assert json.loads(stdout)["num_clients"] == 3


def test_solve_never_imports_torch_even_where_it_needs_compiled_code():
    stdout, end = guarded(["torch"], "solve", "--num-clients", 700, "--rounds", 2, "--json", "--no-budgets")
    assert end == {"code": 0, "found": []}
    assert json.loads(stdout)["num_clients"] == 700


@pytest.mark.parametrize("command", ["solve", "compare", "risk", "graph"])
def test_help_is_quick_because_not_even_numpy_is_imported(command):
    stdout, end = guarded([*HEAVY, "numpy", "scipy"], command, "--help")
    assert end == {"code": 0, "found": []}
    assert "Usage: mppfl" in stdout or "Usage: -c" in stdout
