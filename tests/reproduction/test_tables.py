"""Tables 1 and 2: the paper's figures, ours, and a verdict that follows from them."""

from __future__ import annotations

import pytest
from reproduction.cells import NOISELESS, ArmName, Cell, aggregations_of, arms_of
from reproduction.settings import SETTINGS
from reproduction.store import add_arms, add_trials, note_unavailable
from reproduction.tables import all_rows, counts, readme_table, table_rows, tables_section

from tests.reproduction.test_store import measured

IID, SKEWED = Cell("cifar-10", "iid", 20, 0), Cell("cifar-10", "dir0.3", 20, 0)  # the paper: 62.44, 62.42, 41.19
LARGE = Cell("cifar-10", "iid", 50, 0)  # the paper: 67.48, 66.99, 35.12


def fill(folder, cell, sa, mppfl, sarda, aggregation="noise_aware", **changes):
    """A whole cell, if its other aggregation is filled too."""
    reached = {"social_agnostic": sa, "mppfl": mppfl, "sarda_like": sarda}
    arms = [
        measured(arm, reached.get(arm.mechanism, 60.0), unit=None if arm == NOISELESS else 1e-3, **changes)
        for arm in arms_of(cell)
        if arm.aggregation == aggregation or arm == NOISELESS
    ]
    add_arms(folder, cell, SETTINGS[cell.dataset], arms)


def row_of(folder, cell, aggregation="noise_aware"):
    rows = all_rows(aggregation, folder)
    return next(
        row
        for row in rows
        if (row.dataset, row.partition, row.num_clients) == (cell.dataset, cell.partition, cell.num_clients)
    )


def test_an_empty_folder_gives_a_short_section(tmp_path):
    for text in (tables_section(tmp_path), readme_table(tmp_path), tables_section(tmp_path / "nowhere")):
        assert "Nothing is measured yet" in text
        assert len(text) < 200


def test_drops_and_order_decide_the_verdict(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    row = row_of(tmp_path, SKEWED)
    assert row.drop("sarda_like") == pytest.approx(20.0)
    assert row.printed_drop("sarda_like") == pytest.approx(62.44 - 41.19)
    assert (row.order_holds, row.mppfl_agrees, row.sarda_agrees) == (True, True, True)
    assert row.verdict == "reproduced"


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        ((60.0, 57.0, 40.0), "in part: MPPFL falls 2.98 points more"),
        ((60.0, 59.5, 45.0), "in part: SARDA-like falls 6.25 points less"),
        ((60.0, 60.5, 40.0), "not reproduced: the order does not hold"),
        ((60.0, 59.5, 59.5), "not reproduced: the order does not hold; SARDA-like falls 20.75 points less"),
    ],
)
def test_a_miss_is_reported_as_a_miss(tmp_path, reached, verdict):
    fill(tmp_path, SKEWED, *reached)
    assert row_of(tmp_path, SKEWED).verdict == verdict


def test_seeds_give_a_mean_and_a_spread(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.0, 40.0)
    fill(tmp_path, Cell("cifar-10", "dir0.3", 20, 1), 62.0, 61.0, 42.0)
    figure = row_of(tmp_path, SKEWED).ours["social_agnostic"]
    assert (figure.mean, figure.seeds) == (pytest.approx(61.0), 2)
    assert figure.spread == pytest.approx(2**0.5)
    assert "61.00 ± 1.41 / 62.44" in tables_section(tmp_path)


def test_a_seed_without_all_judged_arms_does_not_blur_the_others(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    late = Cell("cifar-10", "dir0.3", 20, 1)
    add_arms(tmp_path, late, SETTINGS["cifar-10"], [measured(ArmName("mppfl", "noise_aware"), 10.0)])
    assert row_of(tmp_path, SKEWED).ours["mppfl"].mean == pytest.approx(59.5)


def test_the_cell_that_fixed_the_unit_is_not_counted(tmp_path):
    fill(tmp_path, IID, 66.49, 66.29, 53.54)
    assert counts(all_rows("noise_aware", tmp_path)).cells == 0
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    fill(tmp_path, LARGE, 67.0, 60.0, 36.0)
    found = counts(all_rows("noise_aware", tmp_path))
    assert (found.cells, found.order, found.mppfl, found.sarda) == (2, 2, 1, 2)
    text = tables_section(tmp_path)
    assert "| noise-aware weights | 2 of 2 | 1 of 2 | 2 of 2 |" in text
    assert "reproduced (unit fixed here)" in text


def test_aggregations_are_judged_apart(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    fill(tmp_path, SKEWED, 60.0, 50.0, 40.0, aggregation="size")
    assert row_of(tmp_path, SKEWED).mppfl_agrees
    assert not row_of(tmp_path, SKEWED, "size").mppfl_agrees
    assert {row.dataset for row in table_rows(1, "size", tmp_path)} == {"fashion-mnist", "cifar-10"}
    assert aggregations_of(LARGE) == ("noise_aware",)


def test_each_table_compares_with_its_own_print(tmp_path):
    printed = [
        next(row for row in table_rows(table, "noise_aware", tmp_path) if row.dataset == "cifar-10").printed["MPPFL"]
        for table in (1, 2)
    ]
    assert printed == [66.29, 65.96]
    assert {row.num_clients for row in table_rows(2, "noise_aware", tmp_path)} == {20, 50, 80}


def test_a_cell_without_a_verdict_says_why(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    note_unavailable(tmp_path, "cinic-10")
    add_arms(tmp_path, LARGE, SETTINGS["cifar-10"], [measured(ArmName("mppfl", "noise_aware"), 60.0)])
    assert row_of(tmp_path, Cell("cinic-10", "iid", 20, 0)).verdict == "not measured: data not available"
    assert row_of(tmp_path, Cell("svhn", "iid", 20, 0)).verdict == "not measured: not yet trained"
    assert row_of(tmp_path, LARGE).verdict == "not measured: no SA and no SARDA-like yet"
    assert "| – / 48.74 |" in tables_section(tmp_path)


def test_units_speed_and_terms_are_read_from_the_files(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    trials = [
        measured(NOISELESS, 70.4, unit=None),
        measured(ArmName("social_agnostic", "noise_aware"), 66.35, unit=7e-4),
    ]
    add_trials(tmp_path, IID, SETTINGS["cifar-10"], trials)
    text = tables_section(tmp_path)
    assert "| CIFAR-10 | noise_aware | 0.0007 | 66.35 / 66.49 | SA is -0.14 points from the paper's, 1 trials |" in text
    # 9 trainings of 50 s each: 20 million examples of .1 GFLOP make 40 TFLOP/s.
    assert "| a GPU, bf16 | all | 9 | 0.12 | 72.0 | 400,000 | 40.0 |" in text
    assert "0 whole cells in 0.12 hours" in text
    terms = "1.03 | 0.5, 0.5 | 0.001 | 0.25 | 0.25 | 1.5, 1.5 | bf16 | 7 of 12 |"
    assert f"| CIFAR-10, Dir 0.3, N = 20 | 0 | noise_aware | {terms}" in text


def test_updates_that_were_left_out_are_told(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    assert "left out" not in tables_section(tmp_path)
    spoilt = measured(ArmName("mppfl", "noise_aware"), 59.5, diverged=133, num_rounds=100)
    add_arms(tmp_path, LARGE, SETTINGS["cifar-10"], [spoilt])
    text = tables_section(tmp_path)
    assert "left out: CIFAR-10, IID, N = 50, seed 0, mppfl/noise_aware: 133 of 5,000." in text


def test_every_line_of_a_table_has_as_many_columns_as_its_head(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    widths = set()
    for block in tables_section(tmp_path).split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1
        widths |= {line.count("|") for line in lines}
    assert len(widths) > 2


def test_the_readme_has_only_what_is_measured(tmp_path):
    fill(tmp_path, SKEWED, 60.0, 59.5, 40.0)
    text = readme_table(tmp_path)
    assert (
        "| CIFAR-10, Dir 0.3, N = 20 | 60.00 / 62.44 | 59.50 / 62.42 | 40.00 / 41.19 | 60.00 / 59.84 | reproduced |"
        in text
    )
    assert "SVHN" not in text
    assert "holds in 1, MPPFL's drop is within 1 point of the paper's in 1" in text


def test_accuracy_against_the_number_of_clients_is_told_beside_the_papers(tmp_path):
    fill(tmp_path, IID, 66.0, 65.0, 50.0)
    assert "SA against N" not in tables_section(tmp_path)
    fill(tmp_path, LARGE, 61.0, 60.0, 40.0)
    text = tables_section(tmp_path)
    assert "IID, N = 20, 50: SA 66.00 → 61.00 (the paper's 66.49 → 67.48), without noise 60.00 → 60.00." in text


def test_means_that_only_rounding_tells_apart_are_equal(tmp_path):
    for seed, (sa, mppfl) in enumerate([(88.15, 88.16), (86.70, 86.69)]):  # both 87.425
        fill(tmp_path, Cell("cifar-10", "dir0.3", 20, seed), sa, mppfl, 60.0)
    assert row_of(tmp_path, SKEWED).order_holds


def test_a_drop_between_other_seeds_is_not_told(tmp_path):
    setting = SETTINGS["cifar-10"]
    add_arms(tmp_path, SKEWED, setting, [measured(ArmName("social_agnostic", "noise_aware"), 60.0)])
    late = Cell("cifar-10", "dir0.3", 20, 1)
    add_arms(tmp_path, late, setting, [measured(ArmName("mppfl", "noise_aware"), 56.0)])
    row = row_of(tmp_path, SKEWED)
    assert (list(row.ours), list(row.paired)) == (["social_agnostic", "mppfl"], ["social_agnostic"])
    assert "| – / 0.02 |" in tables_section(tmp_path)


def test_a_cell_without_its_noiseless_arm_is_marked_among_the_numbers_of_clients(tmp_path):
    fill(tmp_path, IID, 66.0, 65.0, 50.0)
    fill(tmp_path, LARGE, 67.0, 66.0, 40.0)
    assert "without noise 60.00 → 60.00" in tables_section(tmp_path)
    other = tmp_path / "other"
    fill(other, IID, 66.0, 65.0, 50.0)
    arms = [measured(ArmName(name, "noise_aware"), 60.0) for name in ("social_agnostic", "mppfl", "sarda_like")]
    add_arms(other, LARGE, SETTINGS["cifar-10"], arms)
    assert "without noise 60.00 → –" in tables_section(other)
