"""docs/privacy.md agrees with the code: its figures, its commands, its names."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from pytest import approx

from mppfl.fields import hints
from mppfl.privacy import LocalWork, Protection, Trust, attack_risk, epsilon

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
                std = Protection(release="steps", batches="shuffled").noise_std(rho, work) / batch
                steps = 3 * n / batch
                assert float(shown) == approx(steps / (math.sqrt(steps) * std * math.sqrt(p)), rel=5e-3)


def test_the_golden_epsilons_are_what_the_accounting_gives():
    shown = {row[0].strip("`"): float(row[1]) for row in rows_after("## Accounting") if row[1]}
    assert shown == {method: approx(epsilon(0.5, 1e-5, method), abs=5e-5) for method in ("zcdp", "rdp", "exact")}


def test_an_epsilon_means_as_an_attack_what_the_table_says():
    for rho, dp_epsilon, advantage, rate in rows_after("**What an ε means.**"):
        risk = attack_risk(float(rho))
        assert float(dp_epsilon) == approx(epsilon(float(rho), 1e-5), abs=5e-3)
        assert float(advantage) == approx(risk.advantage, abs=5e-3)
        assert float(rate.removesuffix(" %")) == approx(100 * risk.true_positive_rate, abs=0.5)


def test_the_table_of_protections_has_every_unit_release_trust_and_kind_of_batches():
    shown = {word for row in rows_after("## Protections") for cell in row[:3] for word in re.findall(r"`(\w+)`", cell)}
    kinds = [hints(Protection)[name] for name in ("unit", "release", "batches", "trust")]
    assert shown == {word for kind in kinds for word in re.findall(r"'(\w+)'", str(kind))}
    assert [row[0].strip("`") for row in rows_after("## Whom you trust")] == list(get_args(Trust))


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
def test_what_the_audit_of_sensitivity_measures_is_what_the_page_says(capsys, monkeypatch):
    from mppfl.cli import main

    def audited(*changes):
        options = [word for change in changes for word in ("--set", f"protection.{change}")]
        monkeypatch.setattr("sys.argv", ["mppfl", "audit", "sensitivity", *options, "--json"])
        with contextlib.suppress(SystemExit):
            main()
        audit = json.loads(capsys.readouterr().out)
        return audit["claimed"], audit["measured"]

    text = " ".join(PAGE.split())
    found = re.findall(r"by at most ([\d.]+) of the ([\d.]+) declared.*?by ([\d.]+) of (\d+) \(", text)
    measured, claimed, of_client, claimed_of_client = map(float, found[0])
    assert audited() == approx((claimed, measured), rel=1e-3)
    assert audited("unit=client") == approx((claimed_of_client, of_client), rel=1e-3)
    for unit in ("record", "client"):
        whole, reached = audited("adjacency=zero_out", f"unit={unit}")
        assert reached == approx(whole)
