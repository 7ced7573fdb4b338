"""The paper's premise: what the record of measured leaks says of it, and what is said where there is none."""

import json

import pytest
from reproduction.premise import premise_section, premise_tested

from mppfl.errors import BadFile


def record(folder, **pairs):
    (folder / "2026-01-01-leakage.json").write_text(json.dumps({"pairs": pairs}))


def pair(leak, change, low, high):
    ranks = {"R_model K=5 0.9": 0.1, "R_leak": 0.5, "degree": 0.2}
    arms = {"mppfl": {"change": change, "change_low": low, "change_high": high}}
    return {"clients": 1200, "measured": {"unequal 0.3": {"leak": leak, "spearman": ranks}}, "priced": {"arms": arms}}


def test_only_networks_on_which_something_leaks_are_judged(tmp_path):
    record(tmp_path, loud=pair(0.2, -0.01, -0.05, 0.03), quiet=pair(0.01, 0.0, -0.5, 0.5), unpriced={"priced": None})
    (found,) = premise_tested(tmp_path)
    assert (found.pair, found.leak, found.model, found.leak_model) == ("loud", 0.2, 0.1, 0.5)


def test_the_section_counts_what_the_record_shows(tmp_path):
    record(tmp_path, a=pair(0.2, -0.01, -0.05, 0.03), b=pair(0.1, -0.3, -0.4, -0.2))
    section = premise_section(tmp_path)
    assert "| a | 1,200 | 0.200 | 0.10 | 0.50 | 0.20 | -1 % (-5 to +3) |" in section
    assert "on 2 of 2 networks" in section
    assert "contains 0 on 1 of 2" in section


def test_without_a_record_it_says_how_to_make_one(tmp_path):
    assert premise_section(tmp_path) == "Not measured yet: `python benchmarks/leakage.py`."


def test_another_file_under_that_name_is_named(tmp_path):
    (tmp_path / "2026-01-01-leakage.json").write_text("[]")
    with pytest.raises(BadFile, match=r"leakage\.json: no record of benchmarks/leakage\.py"):
        premise_tested(tmp_path)
