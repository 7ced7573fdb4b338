"""How the tests of the command line call it, and the small files they call it with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mppfl.cli import main
from mppfl.privacy import ReleaseCost
from mppfl.privacy.ledger import PrivacyLedger


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout; nothing may stand beside it, not even NaN inside it."""
        assert self.code == 0, self.stderr
        assert self.stdout.count("\n") == 1
        assert self.stdout.endswith("}\n")
        return json.loads(self.stdout, parse_constant=pytest.fail)

    @property
    def error(self) -> str:
        """The one line of a failure; nothing may stand beside it."""
        assert (self.code, self.stdout) == (1, "")
        assert self.stderr.startswith("error: ")
        assert self.stderr.endswith("\n")
        assert self.stderr.count("\n") == 1
        return self.stderr.removeprefix("error: ").rstrip("\n")


@pytest.fixture
def calling(capsys, monkeypatch):
    """Runs a command's main in this process. A warning of NumPy or SciPy is a failure: it would stand on stderr."""

    def caller(main: Callable[[], None]) -> Callable[..., Answer]:
        def run(*arguments: object) -> Answer:
            monkeypatch.setattr(sys, "argv", ["mppfl", *map(str, arguments)])
            code = 0
            capsys.readouterr()
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                try:
                    main()
                except SystemExit as end:
                    code = end.code or 0
            return Answer(code, *capsys.readouterr())

        return run

    return caller


@pytest.fixture
def mppfl(calling):
    """Runs `mppfl ...` in this process."""
    return calling(main)


@pytest.fixture
def command():
    """The installed command."""
    return Path(sys.executable).with_name("mppfl")


@pytest.fixture
def mppfl_process(command):
    """Runs `mppfl ...` as a user does, in a process of its own."""

    def run(*arguments: object, **environment: str) -> Answer:
        done = subprocess.run(
            [command, *map(str, arguments)],
            capture_output=True,
            timeout=120,
            check=False,
            env={**os.environ, **environment},
        )
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def write(tmp_path):
    """Writes lines into a file and tells its path."""

    def lines(name: str, *text: str) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
        return path

    return lines


@pytest.fixture
def friends(write):
    """Two friends as options: a = 1, b = 0, ε = 1, α = 1/2, one hop, an edge each way; τ = 1/2."""
    graph = write("friends.csv", "ann,bob", "bob,ann")
    clients = write("two.csv", "name,quadratic_cost,linear_cost,noise_harm", "ann,1,0,1", "bob,1,0,1")
    constants = ("--max-hops", 1, "--hop-decay", 0.5, "--externality-strength", 0.5, "--accuracy-weight", 0.5)
    return ("--graph", graph, "--clients", clients, *constants)


def cost(client, budget, **terms):
    return ReleaseCost(
        client,
        **{"protection": "local record gradient", "unit": "record", "adjacency": "replace_one", **terms},
        budget=budget,
    )


def account_of_two(path):
    """ann spent 0.5 in two rounds of a cap of 2, bob 0.1."""
    with PrivacyLedger.open(path) as opened:
        opened.set_cap("ann", 2.0, "record")
        opened.reserve("run", 1, [cost("ann", 0.2), cost("bob", 0.1)])
        opened.reserve("run", 2, [cost("ann", 0.3, noise_kind="simulated")])


def account_of_twelve(path):
    """c0 to c11 spent 0.1 each for all of their data."""
    with PrivacyLedger.open(path) as opened:
        opened.reserve("run", 1, [cost(f"c{n}", 0.1, unit="client") for n in range(12)])
