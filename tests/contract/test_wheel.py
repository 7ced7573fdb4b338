"""The wheel: built, installed into an empty environment with the newest of what it asks for, and used from there."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.contract.cases import COMPARED, EXPOSED, SETTLED, contract_files, with_its_digits, write_lines
from tests.contract.doors import Golden, command, json_of

ROOT = Path(__file__).parents[2]
TRAINING = ("torch", "scikit-learn")  # gigabytes that only training needs
TINY = """
name = "tiny"
seed = 3
mechanism = "mppfl"
[game]
num_clients = 4
num_rounds = 1
[training]
model = "softmax"
learning_rate = 0.1
local_epochs = 1
[protection]
unit = "client"
budget_unit = 0.01
"""


class Environment:
    """A virtual environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _run(sys.executable, "-m", "venv", "--without-pip", folder)

    def install(self, *what: object) -> None:
        _run(sys.executable, "-m", "pip", "--python", self.folder / "bin" / "python", *_QUIETLY, "--no-compile", *what)

    def say(self, *line: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """One call of its commands, from its own folder, with the exit code asserted."""
        program, *rest = line
        done = _run(self.folder / "bin" / str(program), *rest, cwd=self.folder, check=False)
        assert done.returncode == code, f"{line}\nexit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done

    def json(self, *line: object) -> dict:
        return json.loads(self.say("mppfl", *line, "--json").stdout)


_QUIETLY = ("install", "--quiet", "--disable-pip-version-check")


def _run(*line: object, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A process that knows nothing of this environment, nor of any pinned versions."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_CONSTRAINT", "PIP_TARGET", "PIP_USER")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [*map(str, line)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=check
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, as a user's pip would build it; skips where no registry of packages is in reach."""
    folder = tmp_path_factory.mktemp("wheel")
    needed = ("-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder / "builder", "hatchling")
    if _run(sys.executable, *needed, check=False).returncode:
        pytest.skip("no registry of packages can be reached")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (found,) = folder.glob("mppfl-*.whl")
    return found


@pytest.fixture(scope="module")
def alone(wheel, tmp_path_factory):
    """The wheel in an empty environment, with what it asks for in the newest versions."""
    made = Environment(tmp_path_factory.mktemp("alone"))
    made.install(wheel)
    return made


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The account of a training of one round."""
    folder = tmp_path_factory.mktemp("ledger")
    experiment = write_lines(folder / "tiny.toml", [TINY])
    command("train", experiment, "--output", folder / "run", "--quiet")
    (found,) = (folder / "run").rglob("ledger.sqlite")
    return found


def test_the_wheel_asks_for_pytorch_only_with_an_extra(wheel):
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [each for each in packed.namelist() if each.endswith(".dist-info/METADATA")]
        needs = email.message_from_bytes(packed.read(name)).get_all("Requires-Dist")
    assert not [each for each in needs if each.startswith(TRAINING) and "extra ==" not in each]


def test_the_wheel_alone_solves_compares_and_measures_risk(alone, tmp_path):
    solved = with_its_digits(alone.json("solve", *contract_files(tmp_path)))
    Golden("solve_answers_the_public_contract").check(solved, noise=SETTLED)
    Golden("compare_answers_for_every_mechanism_and_two_games").check(alone.json(*COMPARED))
    Golden("risk_names_the_most_exposed_and_the_key_players").check(alone.json(*EXPOSED))


def test_the_wheel_alone_reads_and_verifies_a_ledger(alone, ledger):
    for question in (("show", ledger), ("epsilon", ledger, "--delta", 1e-5)):
        assert alone.json("ledger", *question) == json_of("ledger", *question)
    assert alone.say("mppfl", "ledger", "verify", ledger).stdout == command("ledger", "verify", ledger).stdout


def test_the_wheel_alone_says_what_training_needs(alone, tmp_path):
    experiment = write_lines(tmp_path / "tiny.toml", [TINY])
    done = alone.say("mppfl", "train", experiment, "--output", tmp_path / "run", code=1)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "mppfl[train]" in done.stderr


def test_the_wheel_trains_where_pytorch_is_found(wheel, tmp_path):
    made = Environment(tmp_path / "beside")
    home = made.say("python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout.strip()
    write_lines(Path(home) / "beside.pth", [sysconfig.get_paths()["purelib"]])
    made.install("--no-deps", "--no-index", "--ignore-installed", wheel)
    assert made.say("python", "-c", "import mppfl; print(mppfl.__file__)").stdout.startswith(str(made.folder))
    experiment = write_lines(tmp_path / "tiny.toml", [TINY])
    (one,) = made.json("train", experiment, "--output", tmp_path / "one", "--quiet")["runs"]
    (other,) = json_of("train", experiment, "--output", tmp_path / "other", "--quiet")["runs"]
    assert one | {"seconds": 0} == other | {"seconds": 0}
    assert one["num_rounds"] == 1
