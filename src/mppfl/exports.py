"""A folder's `__init__` is its interface: it lists names under TYPE_CHECKING, and each is loaded on first use.

So that `import mppfl` loads nothing heavy, while a type checker and an editor read the same list.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from mppfl.errors import MissingExtra

# Which extra brings a library that `pip install mppfl` does not.
EXTRA_OF = {
    "torch": "train",
    "sklearn": "train",
    "joblib": "train",
    "matplotlib": "train",
    "numba": "fast",
    "flwr": "flower",
    "cryptography": "flower",
    "dash": "explore",
    "dash_cytoscape": "explore",
    "waitress": "explore",
    "datasets": "hub",
    "mlflow": "track",
    "tensorboard": "track",
    "opendp": "audit",
}


def require(*libraries: str) -> None:
    """Raises MissingExtra for the first library of an extra that is not installed."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(library, EXTRA_OF[library])


def export_lazily(package: str) -> None:
    """Makes the names that the package's `__init__` imports under TYPE_CHECKING its attributes, loaded on first use."""
    module = sys.modules[package]
    homes = _homes(package, Path(str(module.__file__)))
    module.__dict__.update(_homes=homes, __all__=sorted(homes))
    module.__class__ = _Folder


def _homes(package: str, file: Path) -> dict[str, str]:
    """Module of each name, read from the `if TYPE_CHECKING:` block."""
    blocks = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: f"{package}.{node.module}" if node.level else str(node.module)
        for node in imports
        for alias in node.names
    }


class _Folder(ModuleType):
    """A package whose exported names are loaded on first use."""

    def __getattr__(self, name: str) -> Any:
        home = self.__dict__["_homes"].get(name)
        if home is None and (Path(str(self.__file__)).parent / name / "__init__.py").exists():
            return import_module(f"{self.__name__}.{name}")  # `mppfl.leakage` after `import mppfl`
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(home), name)
        except ModuleNotFoundError as missing:
            library = str(missing.name).partition(".")[0]
            if library not in EXTRA_OF:
                raise
            raise MissingExtra(library, EXTRA_OF[library]) from None
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing game/solve.py sets `game.solve` to that module, where the folder exports the function of that name.
        if not (isinstance(value, ModuleType) and name in self.__dict__["_homes"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(self.__dict__["_homes"])


def package_version() -> str:
    """The version that is installed; "0+unknown" for a copy of the source that was never installed."""
    try:
        return version("mppfl")
    except PackageNotFoundError:
        return "0+unknown"
