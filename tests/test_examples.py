"""Every example runs, is short, and prints what its first line promises."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "two_friends": "a third of the rate",
    "clients_decide": "nobody moves after",
    "own_mechanism": "steady",
    "own_graph": "key player",
    "own_model_and_data": "engine loop",
    "sound_privacy": "would pass its cap and opts out",
}


def test_every_example_is_listed_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name):
    path = EXAMPLES / f"{name}.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
    assert not done.stderr
    assert len(path.read_text().splitlines()) <= 50


def test_an_own_mechanism_takes_fewer_than_thirty_lines():
    assert len((EXAMPLES / "own_mechanism.py").read_text().splitlines()) < 30
