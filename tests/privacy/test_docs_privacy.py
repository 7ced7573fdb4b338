"""docs/privacy.md agrees with the code: its figures, its commands, its names."""

from __future__ import annotations

import contextlib
import io
import math
import re
from importlib import import_module
from pathlib import Path

import pytest
from pytest import approx

from mppfl.privacy import MECHANISMS, LocalWork, epsilon, privacy_mechanism

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")


def rows_after(heading):
    """Cells of the first table that follows a text, without its two head lines."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table[2:]


def number(text):
    return float(text.replace(",", ""))


def test_the_script_prints_the_signal_to_noise_table():
    script = re.search(r"```python\n(.*?)```", PAGE, flags=re.DOTALL).group(1)
    assert sum(bool(line.strip()) for line in script.splitlines()) <= 6
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(script, {})
    assert all(line in PAGE.splitlines() for line in printed.getvalue().splitlines())


def test_the_signal_to_noise_table_follows_from_the_noise_of_the_mechanisms():
    # Aligned gradients of length 𝒮: k steps add up to k𝒮, their noise to √k σ√p on each mean gradient.
    for examples, size, *cells in rows_after("this script makes it"):
        n, batch = int(number(examples)), int(number(size))
        for p, cell in zip((10_000, 100_000, 1_600_000), cells, strict=True):
            for rho, shown in zip((0.1, 1, 10), cell.split("/"), strict=True):
                work = LocalWork(n, local_epochs=3, batch_size=batch)
                std = privacy_mechanism("dpsgd_shuffle").noise_std(rho, 1.0, work) / batch
                steps = 3 * n / batch
                assert float(shown) == approx(steps / (math.sqrt(steps) * std * math.sqrt(p)), rel=5e-3)


def test_the_golden_epsilons_are_what_the_accounting_gives():
    shown = {row[0].strip("`"): float(row[1]) for row in rows_after("## Accounting")}
    assert shown == {method: approx(epsilon(0.5, 1e-5, method), abs=5e-5) for method in ("zcdp", "rdp", "exact")}


def test_the_table_of_mechanisms_names_all_of_them():
    assert [row[0].strip("`") for row in rows_after("## Six mechanisms")] == list(MECHANISMS)


def test_every_dotted_name_can_be_imported():
    for name in set(re.findall(r"`(mppfl(?:\.\w+)+)", PAGE)):
        module, _, last = name.rpartition(".")
        assert hasattr(import_module(module), last) or import_module(name), name


def test_every_command_exists():
    import typer

    from mppfl.cli import app

    root = typer.main.get_command(app)
    for group, command in set(re.findall(r"`mppfl (\w+) (\w+)", PAGE)):
        assert command in root.commands[group].commands, f"mppfl {group} {command}"


@pytest.mark.slow
def test_the_sensitivity_table_is_what_the_audit_measures():
    from mppfl.privacy.audit import audit_sensitivity

    for name, claimed, measured, ratio, multiplier, verdict in rows_after("**Reading the sensitivity audit.**"):
        found = audit_sensitivity(privacy_mechanism(name.strip("`")), num_examples=2500)
        assert found.verdict == verdict.strip("*")
        assert found.claimed == approx(number(claimed))
        assert found.measured == approx(number(measured), rel=1e-3)
        assert found.details["ratio"] == approx(number(ratio), rel=1e-3)
        assert found.details["budget_multiplier"] == approx(number(multiplier), rel=1e-2)


@pytest.mark.slow
def test_the_table_of_changed_records_is_what_the_audit_measures():
    from mppfl.privacy.audit import audit_sensitivity

    changes = audit_sensitivity(privacy_mechanism("paper"), num_examples=2500).details["change_of_each"]
    for change, distance, times in rows_after("For `paper` nothing exotic"):
        name = change.replace("features ×", "outlier x")
        assert changes[name] == approx(number(distance), rel=2e-2)
        assert changes[name] / 0.0008 == approx(number(times), rel=5e-2)
