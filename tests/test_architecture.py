"""One direction of imports (`LEFT_OF`), folders as interfaces, nothing heavy before its time."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tools.measure import measure

import mppfl

# What a folder may import from, beside the roots and itself. Knowledge flows one way.
_GAME = {"network", "game"}
_TRAINING = {"network", "game", "privacy", "data", "leakage", "training"}
LEFT_OF = {
    "network": {"network"},
    "game": _GAME,
    "privacy": {"privacy"},
    "data": {"network", "data"},
    "leakage": {"network", "game", "privacy", "leakage"},
    "training": _TRAINING,
    "experiment": _TRAINING | {"experiment"},
    "cli": _TRAINING | {"experiment", "explorer", "flower", "cli"},
    "explorer": _TRAINING | {"experiment", "explorer"},
    "flower": _TRAINING | {"experiment", "flower"},
}
_ROOTS = ("errors", "arrays", "exports", "compiled", "device", "files", "text", "charts", "fields", "spec")
ROOTS = {f"mppfl.{name}" for name in _ROOTS}
SOURCE = Path(mppfl.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


def dotted(path):
    """The module's name, as mppfl.game.solve."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Every name that a module imports, wherever the import stands, with what follows `from ... import`."""
    inside = path.is_relative_to(SOURCE)
    package = [] if not inside else dotted(path).split(".")[: None if path.name == "__init__.py" else -1]
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
        place = SOURCE.parent.joinpath(*parts)
        if place.with_suffix(".py").exists() or (place / "__init__.py").exists():
            return ".".join(parts)
        parts.pop()
    return None


def folder(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEFT_OF else None


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_module_imports_only_from_folders_to_its_left(path):
    here = folder(dotted(path))
    for module in filter(None, map(ours, imported(path))):
        if dotted(path) == "mppfl.__main__":
            assert folder(module) == "cli"
        elif dotted(path) == "mppfl":
            assert folder(module) not in ("cli", "explorer", "flower")  # the public names are no doors
        elif module not in ROOTS:  # mppfl.spec hands its values on when it is asked to
            left = LEFT_OF[here] if here else set(LEFT_OF) if dotted(path) == "mppfl.spec" else ()
            assert folder(module) in left, f"{dotted(path)} imports {module}, which is not to its left"


def test_every_folder_has_its_place_in_the_order():
    folders = {path.parent.relative_to(SOURCE).parts[0] for path in MODULES if path.parent != SOURCE}
    assert folders == set(LEFT_OF)


ROOT = Path(__file__).parents[1]
BESIDE = ("tests", "docs", "examples", "benchmarks", "reproduction")
OUTSIDE = [path for name in BESIDE for path in (ROOT / name).rglob("*.py")]
PACKAGES = {dotted(path) for path in MODULES if path.name == "__init__.py"} | ROOTS


def is_interface(name):
    """Whether a dotted name, as `mppfl.game.solve`, is a name of a folder's interface and no module in it."""
    module, _, last = name.rpartition(".")
    return module in PACKAGES and (module in ROOTS or last in import_module(module).__all__ or name in PACKAGES)


@pytest.mark.parametrize("path", [*OUTSIDE, *MODULES], ids=lambda path: str(path.relative_to(ROOT)))
def test_another_folder_is_imported_through_its_interface(path):
    here = "" if path in OUTSIDE else dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
    others = [name for name in imported(path) if name.startswith("mppfl.") and name not in PACKAGES]
    own = [name for name in others if here and (name.startswith(f"{here}.") or name.split(".")[:-2] == here.split("."))]
    assert not [name for name in others if name not in own and not is_interface(name)]


def test_every_name_of_an_interface_is_there():
    triton = {"mppfl.training.cuda"}
    for package in sorted(PACKAGES - ROOTS - triton):
        module = import_module(package)
        assert all(hasattr(module, name) for name in getattr(module, "__all__", ()))


COUNTS = measure(SOURCE)


def test_the_package_has_not_grown():
    """The bars of this stage; a commit that raises one says which capability needs it."""
    assert COUNTS.lines <= 37_000
    assert COUNTS.files <= 200


def test_no_file_serves_one_other_of_its_folder_without_saying_why_and_no_class_name_exists_twice():
    assert not COUNTS.one_importer_same_folder, "merge them, or say why in the first line"
    assert not COUNTS.classes_twice


def test_every_module_says_what_lives_in_it_and_none_is_called_utils():
    assert all(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES)
    assert not [path for path in MODULES if "util" in path.stem or "helper" in path.stem]


def test_the_game_knows_torch_only_in_files_named_for_a_device():
    left = [p for p in MODULES if folder(dotted(p)) in ("network", "game", None) and not p.stem.startswith("device")]
    assert not [dotted(p) for p in left if any(n.split(".")[0] == "torch" for n in imported(p))]


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
    from mppfl.cli import main
    main()
except SystemExit as end:
    code = end.code or 0
print(json.dumps({"code": code, "found": sorted(FORBIDDEN & set(sys.modules))}), file=sys.stderr)
"""
HEAVY = ("torch", "numba", "matplotlib", "networkx")


def guarded(forbidden, *arguments):
    """Runs `mppfl ...` where the forbidden modules cannot be imported."""
    line = [sys.executable, "-c", GUARD, ",".join(forbidden), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import mppfl", [*HEAVY, "numpy", "scipy", "typer"]),
        ("import mppfl.spec", ["numpy", "pydantic", "mppfl.game"]),
        ("from mppfl.experiment import build_game, load_run, prepare, read_experiment, read_live, train", ["torch"]),
    ],
)
def test_an_import_loads_nothing_heavier_than_it_needs(code, heavy):
    code = f"import sys; {code}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_solving_a_small_game_imports_nothing_heavier_than_scipy_and_a_large_one_never_torch(tmp_path):
    edges, clients = tmp_path / "edges.csv", tmp_path / "clients.csv"
    edges.write_text("ann,bob\nbob,cat\ncat,ann\n")
    clients.write_text("name,quadratic_cost,linear_cost,noise_harm\nann,1,0,1\nbob,1,0,1\ncat,1,0,1\n")
    small = ("--graph", edges, "--clients", clients, "--rounds", 60)
    large = ("--num-clients", 700, "--rounds", 2, "--no-budgets")  # needs compiled code
    for forbidden, game, num_clients in ((HEAVY, small, 3), (["torch"], large, 700)):
        stdout, end = guarded(forbidden, "solve", *game, "--json")
        assert end == {"code": 0, "found": []}
        assert json.loads(stdout)["num_clients"] == num_clients


@pytest.mark.parametrize("command", ["solve", "compare", "risk", "graph", "train", "audit"])
def test_help_is_quick_because_not_even_numpy_is_imported(command):
    stdout, end = guarded([*HEAVY, "numpy", "scipy", "pydantic"], command, "--help")
    assert end == {"code": 0, "found": []}
    assert "Usage: mppfl" in stdout or "Usage: -c" in stdout
