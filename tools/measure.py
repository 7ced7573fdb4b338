"""How large the house is: lines, files, files with one importer, long functions, public names.

    python tools/measure.py [--json] [--list]

`--list` names the files with one importer, the functions above the complexity and the class names that exist twice.
A folder's `__init__` is an interface and counts neither as a file to be imported nor as an importer.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src" / "mppfl"
MOST_COMPLEX = 10
REASON = "alone:"  # in a module's first line: why a file that only one other imports stands alone


class Measure(NamedTuple):
    lines: int
    files: int
    one_importer: list[str]
    one_importer_same_folder: list[str]
    complex_functions: list[str]
    classes_twice: list[str]
    public_names: int


def measure(source: Path = SOURCE) -> Measure:
    """All counts over the package in `source`."""
    modules = {_dotted(path, source): path for path in sorted(source.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    importers = _importers(modules, trees)
    alone = [name for name, others in importers.items() if len(others) == 1]
    unexplained = [
        name for name in alone if _folder(name) == _folder(*importers[name]) and REASON not in _first_line(trees[name])
    ]
    classes = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    return Measure(
        lines=sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values()),
        files=len(modules),
        one_importer=alone,
        one_importer_same_folder=unexplained,
        complex_functions=[place for name, tree in trees.items() for place in _complex(name, tree)],
        classes_twice=sorted(name for name, count in classes.items() if count > 1),
        public_names=len(_exported(trees["mppfl"])),
    )


def _dotted(path: Path, source: Path) -> str:
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def _exported(tree: ast.Module) -> dict[str, str]:
    """Names that a folder's `__init__` lists under TYPE_CHECKING, with the module each comes from."""
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: ("." * node.level) + str(node.module) for node in imports for alias in node.names}


def _importers(modules: dict[str, Path], trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Who imports each module, whether directly or through the interface of its folder."""
    folders = {name for name, path in modules.items() if path.name == "__init__.py"}
    interface = {
        folder: {
            name: f"{folder}{home}" if home.startswith(".") else home for name, home in _exported(trees[folder]).items()
        }
        for folder in folders
    }
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        if name in folders:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = [_home(str(node.module), alias.name, modules, interface) for alias in node.names]
            else:
                continue
            for target in targets:
                if target in modules and target not in folders and target != name:
                    found[target].add(name)
    return found


def _home(module: str, name: str, modules: dict[str, Path], interface: dict[str, dict[str, str]]) -> str:
    if module in interface and name in interface[module]:
        return _home(interface[module][name], name, modules, interface)
    return f"{module}.{name}" if f"{module}.{name}" in modules else module


BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)


def _complex(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            count = 1 + sum(isinstance(part, BRANCHES) for part in ast.walk(node))
            count += sum(len(part.values) - 1 for part in ast.walk(node) if isinstance(part, ast.BoolOp))
            if count > MOST_COMPLEX:
                yield f"{name}.{node.name} {count}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    counts = measure()
    short = {key: len(value) if isinstance(value, list) else value for key, value in counts._asdict().items()}
    if options.json:
        print(json.dumps(counts._asdict() if options.list else short))
        return
    for key, value in short.items():
        print(f"{key.replace('_', ' '):<28}{value:>8,}")
        if options.list and isinstance(getattr(counts, key), list):
            print(*(f"    {line}" for line in getattr(counts, key)), sep="\n")


if __name__ == "__main__":
    main()
