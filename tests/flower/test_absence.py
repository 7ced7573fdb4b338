"""What happens where Flower is not installed."""

import subprocess
import sys

import pytest

import mppfl.flower
from mppfl.errors import MppflError

WITHOUT = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "flwr" else real(name, *rest)
from mppfl.cli import main
main()
"""


def test_without_flower_the_error_names_the_remedy(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "flwr" or name.startswith("mppfl.flower.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(vars(mppfl.flower), "PrivateUpload", raising=False)
    with pytest.raises(MppflError, match=r"pip install 'mppfl\[flower\]'"):
        _ = mppfl.flower.PrivateUpload


def test_deploy_without_flower_ends_with_one_line(tmp_path):
    line = [sys.executable, "-c", WITHOUT, "deploy", "local", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "pip install 'mppfl[flower]'" in done.stderr
