"""What happens where the library of an extra is not installed."""

import subprocess
import sys

import pytest

FLOWER, TRAIN = "pip install 'mppfl[flower]'", "pip install 'mppfl[train]'"
COMMAND = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "{}" else real(name, *rest)
sys.argv[1:] = "{}".split()
from mppfl.cli import main
main()
"""


@pytest.mark.parametrize(
    ("library", "code", "remedy"),
    [
        ("flwr", "from mppfl.flower import PrivateUpload", FLOWER),
        ("torch", "from mppfl.training import train_rounds", TRAIN),
        ("nothing", COMMAND.format("flwr", "deploy local app"), FLOWER),
        ("nothing", COMMAND.format("dash", "explore --no-browser"), "pip install 'mppfl[explore]'"),
    ],
)
def test_without_a_library_the_last_line_names_the_remedy(library, code, remedy):
    line = [sys.executable, "-c", f"import sys; sys.modules[{library!r}] = None\n{code}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    *_, last = done.stderr.strip().splitlines()
    assert (done.returncode, remedy in last) == (1, True)
    assert library != "nothing" or last == done.stderr.strip()  # a command says nothing else
