"""Run and its provenance: what they hold, refuse to hold and keep silent about, and how runs are shown."""

from __future__ import annotations

import getpass
import platform
import re
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import mppfl
from mppfl.errors import BadInput, MppflError
from mppfl.experiment import Provenance, comparison_rows, provenance_here
from tests.experiment.runs import make_run
from tests.homes import home

provenance = home(Provenance)


def test_final_figures_skip_rounds_without_evaluation_and_rows_sum_over_rounds_and_take_the_worst_client():
    run = make_run(num_clients=5, num_rounds=10, evaluate_every=4)
    accuracy = run.history.rounds["accuracy"]
    assert np.isnan(accuracy).sum() == 7
    assert run.final_accuracy == accuracy[-1]
    assert run.best_accuracy == np.nanmax(accuracy)
    never = replace(run, history=replace(run.history, rounds=run.history.rounds | {"accuracy": accuracy * np.nan}))
    assert np.isnan([never.final_accuracy, never.best_accuracy]).all()
    (row,) = comparison_rows([run])
    assert row["payments"] == pytest.approx(run.history.clients["payments"].sum())
    assert row["server_cost"] == pytest.approx(run.server_cost.sum())
    assert row["dp_epsilon"] == run.accounts.dp_epsilon.max()
    assert row["aggregation"] == "noise_aware"
    assert (row["least_exposed"], row["most_exposed"]) == (run.exposure.min(), run.exposure.max())
    assert (run.setting("aggregation"), run.setting("seeds"), run.setting("nonsense", 7)) == ("noise_aware", [0], 7)


def test_values_that_cannot_be_are_refused():
    run = make_run(num_clients=3)
    for changes, message in (
        ({"num_examples": run.num_examples[:2]}, "3 names for a network of 3 clients, 2 numbers"),
        ({"exposure": run.exposure[:2]}, r"exposure has shape \(2,\)"),
        ({"server_cost": np.zeros(99)}, "server_cost has shape"),
        ({"config": {"a": {"b": object()}}}, "no plain value"),
        ({"history": replace(run.history, refused=(("zoe",),) * 12)}, "'zoe' refused in a round is not one"),
    ):
        with pytest.raises(BadInput, match=message):
            replace(run, **changes)
    for array in (run.weights, run.exposure, run.accounts.spent, run.num_examples):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("options", [{}, {"noiseless": True}, {"num_clients": 600, "num_rounds": 3}])
def test_a_run_is_shown_in_a_few_lines(options):
    run = make_run("[red]x<y", **options)
    shown = repr(run).splitlines()
    assert shown[0].startswith("Run '[red]x<y': ")
    assert len(shown) <= 12
    assert max(map(len, shown)) <= 120
    page = run._repr_html_()
    assert "x&lt;y" in page
    assert "largest ε" in page


def test_a_run_becomes_a_table_with_one_row_per_round(monkeypatch):
    run = make_run(num_rounds=3)
    pytest.importorskip("pandas")
    table = run.to_pandas()
    assert table.index.tolist() == [1, 2, 3]
    assert table["accuracy"].tolist() == run.history.rounds["accuracy"].tolist()
    assert table["server_cost"].tolist() == run.server_cost.tolist()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MppflError, match="pip install pandas"):
        run.to_pandas()


def test_provenance_tells_versions_machine_and_time_and_names_no_host_user_or_folder(monkeypatch):
    for module, name in ((socket, "gethostname"), (platform, "node"), (getpass, "getuser")):
        monkeypatch.setattr(module, name, lambda: "ann-at-home")  # the real ones may be common words
    monkeypatch.setenv("USER", "ann-at-home")
    here = provenance_here()
    assert here.python == platform.python_version()
    assert all(getattr(here, name) for name in ("mppfl", "torch", "numpy", "scipy", "cpu", "source"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", here.started)
    assert here.cores >= 1
    assert here.memory_gib > 0
    assert (here.device, here.gpu, here.seconds) == ("cpu", "", 0.0)
    assert provenance_here("cuda:99", started="then", seconds=2.5).started == "then"
    text = " ".join(map(str, asdict(here).values()))
    assert str(Path(mppfl.__file__).parent) not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert not re.search(r"(^|\s)/\w", text)
    assert "ann-at-home" not in text


def test_the_commit_is_that_of_the_work_tree_around_the_package_if_there_is_one(tmp_path, monkeypatch):
    package, installed = tmp_path / "src" / "package", tmp_path / ".venv" / "site-packages" / "mppfl"
    for folder in (package, installed):
        folder.mkdir(parents=True)

    def git(*arguments):
        line = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert provenance.commit_of(package) == ""  # no commit yet
    git("commit", "-q", "--allow-empty", "-m", "first")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert provenance.commit_of(package) != ""
    monkeypatch.delenv("GIT_DIR")
    assert provenance.commit_of(package) == git("rev-parse", "HEAD")
    assert provenance.commit_of(installed) == ""  # a package there belongs to no work tree
    assert provenance.commit_of(tmp_path / "nowhere") == ""


def test_the_fingerprint_follows_the_source(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    before = provenance.fingerprint(tmp_path)
    (tmp_path / "a.pyc").write_text("noise")
    assert provenance.fingerprint(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2")
    assert provenance.fingerprint(tmp_path) != before


def test_nothing_that_is_missing_stops_it(monkeypatch):
    def fails(*_, **__):
        raise OSError("no")

    for place, name in (("Path", "read_bytes"), ("os", "sysconf"), ("metadata", "version"), ("Path", "read_text")):
        monkeypatch.setattr(getattr(provenance, place), name, fails)
    monkeypatch.setattr(provenance.subprocess, "check_output", fails)
    here = provenance_here("cuda")
    assert (here.commit, here.source, here.torch, here.memory_gib) == ("", "", "", 0.0)
