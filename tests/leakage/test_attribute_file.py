"""The CSV of one number per client: what is known stands in it, and only that."""

from __future__ import annotations

import pytest

from mppfl.errors import BadFile
from mppfl.leakage import read_values


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        path = tmp_path / "values.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def test_a_client_that_is_left_out_is_not_known(written):
    assert read_values(written("name,value", "ann,1", "", "cid,-1")) == {"ann": 1.0, "cid": -1.0}


@pytest.mark.parametrize("value", ["nan", "NaN", "-nan", "inf", "-Infinity", "1e999", "", "unknown"])
def test_what_is_no_number_is_refused_with_its_line_and_the_remedy(written, value):
    path = written("name,value", "ann,1", f"bob,{value}")
    with pytest.raises(BadFile) as caught:
        read_values(path)
    assert str(caught.value) == (
        f"{path}, line 3: 'bob,{value}' must be name,value with a number as value. Leave out the line of a client "
        "whose value is not known."
    )


def test_nan_in_the_first_line_is_no_heading(written):
    with pytest.raises(BadFile, match=r"line 1: 'ann,nan' must be"):
        read_values(written("ann,nan", "bob,1"))


def test_nobody_stands_twice(written):
    with pytest.raises(BadFile, match=r"line 3: 'ann' stands twice"):
        read_values(written("ann,1", "bob,0", "ann,0"))
