"""Accuracy round by round: means over seeds, and verdicts that follow from the second half of the rounds."""

import numpy as np
import pytest
from reproduction.accuracy_curves import others_stay_below, read_curves, stays_close
from reproduction.cells import NOISELESS, ArmName, Cell
from reproduction.document import document_text
from reproduction.settings import SETTINGS
from reproduction.store import add_arms

from tests.reproduction.test_store import measured

FIRST, SECOND, THIRD = (Cell("cifar-10", "dir0.3", 20, seed) for seed in range(3))
ROUNDS = [20, 40, 60, 80]
USUAL = {
    "social_agnostic": [50, 60, 62, 64],
    "mppfl": [40, 50, 61.5, 63.5],
    "sarda_like": [45, 40, 40, 40],
    "fixed-min": [45, 30, 30, 30],
    "fixed-mean": [45, 30, 61, 63],
}


def file_curves(folder, cell=FIRST, **changes):
    arms = [
        measured(
            NOISELESS if name == "noiseless" else ArmName(name, "noise_aware"),
            percent[-1],
            unit=None if name == "noiseless" else 1e-3,
            curve={"round": ROUNDS[: len(percent)], "accuracy": [value / 100 for value in percent]},
        )
        for name, percent in {**USUAL, **changes}.items()
        if percent
    ]
    add_arms(folder, cell, SETTINGS[cell.dataset], arms)


def only(folder):
    (curves,) = read_curves(folder)
    return curves


def test_curves_are_means_over_seeds_that_have_all_judged_mechanisms(tmp_path):
    file_curves(tmp_path)
    file_curves(tmp_path, SECOND, mppfl=[42, 52, 60.5, 64.5])
    file_curves(tmp_path, THIRD, mppfl=[0, 0, 0, 0], sarda_like=[])
    file_curves(tmp_path, Cell("cifar-10", "dir0.3", 50, 0))  # more clients, and other weights, are left out
    cell = Cell("cifar-10", "iid", 20, 0)
    add_arms(tmp_path, cell, SETTINGS["cifar-10"], [measured(ArmName("mppfl", "size"), 50.0)])
    curves = only(tmp_path)
    np.testing.assert_allclose(curves.percent["mppfl"], [41, 51, 61, 64])
    assert curves.rounds.tolist() == ROUNDS
    assert curves.settled.tolist() == [False, False, True, True]


REPRODUCED, CONDITION, NOT = "reproduced", "under a stated condition", "not reproduced"


@pytest.mark.parametrize(
    ("judge", "changes", "verdict", "condition"),
    [
        (stays_close, {"mppfl": [0, 0, 61.5, 63.5]}, REPRODUCED, ""),  # within a point once accuracy has settled
        (stays_close, {"mppfl": [0, 0, 60.5, 63.9]}, CONDITION, None),
        (stays_close, {"mppfl": [0, 0, 60.5, 62.5]}, NOT, ""),
        *(
            (stays_close, {"social_agnostic": [sa] * 4, "mppfl": [round(sa - 1, 2)] * 4}, REPRODUCED, "")  # one point
            for sa in (20.01, 86.45, 57.3)
        ),
        (others_stay_below, {}, REPRODUCED, ""),  # below in every round that counts
        (others_stay_below, {"fixed-mean": [0, 0, 70, 70]}, CONDITION, "not DP-FedAvg, mean"),
        (others_stay_below, {"fixed-min": [0, 0, 61.6, 0]}, CONDITION, "not DP-FedAvg, min"),
        (others_stay_below, {"fixed-min": [0, 0, 70, 70], "fixed-mean": [0, 0, 70, 70]}, NOT, ""),
        (others_stay_below, {"sarda_like": [0, 0, 61.5, 0]}, NOT, ""),
    ],
)
def test_verdicts_follow_from_the_rounds_in_which_accuracy_has_settled(tmp_path, judge, changes, verdict, condition):
    file_curves(tmp_path, **changes)
    finding = judge(only(tmp_path))
    assert (finding.verdict, finding.condition if condition is not None else None) == (verdict, condition)


def test_mechanisms_are_compared_over_the_seeds_that_both_have(tmp_path):
    # In the only seed with DP-FedAvg it lies below MPPFL; the other seed is harder for everybody.
    file_curves(tmp_path)
    harder = {name: [value - 10 for value in USUAL[name]] for name in ("social_agnostic", "mppfl", "sarda_like")}
    file_curves(tmp_path, SECOND, **harder, **{"fixed-min": [], "fixed-mean": []})
    curves = only(tmp_path)
    assert others_stay_below(curves).verdict == "reproduced"
    np.testing.assert_allclose(curves.percent["mppfl"], [35, 45, 56.5, 58.5])  # shown is the mean over all


def test_what_is_not_measured_or_has_no_common_seed_is_not_judged(tmp_path):
    file_curves(tmp_path / "one", **{"sarda_like": [], "social_agnostic": []})
    assert "not measured yet" in document_text(tmp_path / "one")
    file_curves(tmp_path / "two", **{"sarda_like": [], "mppfl": []})
    file_curves(tmp_path / "two", SECOND, **{"sarda_like": [], "social_agnostic": []})
    for folder in (tmp_path / "one", tmp_path / "two"):
        assert stays_close(only(folder)) is None
        assert others_stay_below(only(folder)) is None
