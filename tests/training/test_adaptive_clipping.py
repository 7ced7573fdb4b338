"""A clip norm that follows a quantile: where it goes, that its count is noisy and charged, and that it is kept."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from pytest import approx
from scipy.stats import chi2

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, Protection, noise_of_sampled_sum
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    GradientNoise,
    TrainingJob,
    audit_sensitivity,
    checkpoint_after,
    history_of,
    make_model,
    train_many,
    train_rounds,
    training_key,
)
from tests.training.trainings import QUICK, SUMS, configured, pictures, plan_with, small_cnn, trained

FALSE_ALARM = 1e-7
DATA = pictures((9, 5, 12, 7))
MODEL = make_model("linear", DATA.input_shape, DATA.num_classes)
HUGE, BUDGETS = (1e9,) * 4, (0.9, 0.4, 2.0, 0.7)
FOLLOWED = {"clip_quantile": 0.5, "clip_share": 0.1}
WAYS = {"local record": {}, "local client": {"unit": "client"}, **SUMS}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def records_of(way, budgets=HUGE, num_rounds=3, **changed):
    asked = {"precision": "float64", "aggregation": "uniform", **FOLLOWED, **WAYS[way], **changed}
    return trained(budgets, num_rounds, **{"data": DATA, "model": MODEL} | asked)


def norms_of(*args, **changed):
    return np.array([record.clip_norm for record in records_of(*args, **changed)])


def lengths_of(way):
    """Of every record's gradient at weights of 0, where all 4 classes are as likely; or of every client's update."""
    if "record" in way:
        squares = (DATA.features.reshape(-1, 64).astype(np.float64) ** 2).sum(1)
        return [np.sqrt(0.75 * (squares[rows] + 1)) for rows in DATA.members]
    alone = [np.where(np.arange(4) == k, np.inf, 0.0) for k in range(4)]
    return [[records_of(way, budgets, 1, clip_norm=1e6, learning_rate=1e-6)[0].update_norm] for budgets in alone]


@EVERY_WAY
@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_a_small_start_rises_to_the_quantile_and_one_far_too_large_comes_down_to_it(way, quantile):
    lengths, still = lengths_of(way), {"learning_rate": 1e-6, "clip_quantile": quantile, "num_rounds": 130}
    middle = float(np.median(np.concatenate(lengths)))
    for start in (middle / 30, middle * 30):
        norms = norms_of(way, clip_norm=start, **still)
        assert norms[0] == start
        early = np.diff(np.log(norms[:10]))
        np.testing.assert_allclose(early, 0.2 * (quantile if start < middle else quantile - 1), atol=1e-3)
        shorter = np.mean([np.mean(np.array(of_client) <= norms[-20:, None], axis=1) for of_client in lengths], axis=0)
        assert abs(shorter.mean() - quantile) < (0.1 if "record" in way else 0.26)  # of four clients


@pytest.mark.parametrize(
    ("kind", "engine"), [("mlp", "dense"), ("mlp", "vmap"), ("mlp", "batched"), ("cnn", "batched")]
)
def test_every_engine_counts_alike(kind, engine):
    model = make_model("mlp", DATA.input_shape, 4) if kind == "mlp" else small_cnn()
    free = {"budgets": (np.inf,) * 4, "model": model, "clip_norm": 0.5}
    expected = norms_of("local record", **free, engine="loop")
    assert len(set(expected)) == 3
    np.testing.assert_allclose(norms_of("local record", **free, engine=engine), expected, rtol=1e-12)


def test_noise_moves_it_no_farther_in_a_round_than_by_a_factor_of_e_to_a_fifth():
    steps = np.diff(np.log(norms_of("secure_sum client", (1e-6,) * 4, 12)))
    assert np.abs(steps) == approx(0.2, rel=1e-6)


# ---- its count is noisy, and charged ------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize("noise", ["simulated", "discrete"])
def test_the_count_has_the_noise_of_the_vector_behind_which_it_stands(way, noise):
    budgets = np.array(BUDGETS) * (10 if "local" in way else 2) * (100 if "client" in way else 1)
    quiet = records_of(way, (np.inf,) * 4, 2, clip_norm=1.5)
    then, size = quiet[1].clip_norm, Protection(clip_norm=1.5, **FOLLOWED).count_size
    counted, draws = [], 60
    for seed in range(draws):
        first, second = records_of(way, budgets, 2, clip_norm=1.5, noise=noise, seed=seed)
        counted.append(math.log(second.clip_norm / then) / -0.2)
    pace = QUICK["learning_rate"] if "record" in way else 1.0
    stds = first.noise_std * first.theta / pace / (2 * size)
    std = stds[0] if way in SUMS else np.linalg.norm(stds)
    assert 0.01 < std < 0.15  # so that no step is cut off
    low, high = chi2.ppf([FALSE_ALARM, 1 - FALSE_ALARM], draws)
    assert low < np.sum(np.square(counted)) / std**2 < high


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
@pytest.mark.parametrize("way", WAYS)
def test_the_budget_is_split_between_vector_and_count_to_the_last_bit(way, adjacency):
    protection = Protection(**WAYS[way], adjacency=adjacency, clip_norm=0.7, **FOLLOWED)
    work, budget, ends = LocalWork(num_examples=10), 0.3, 2 if adjacency == "replace_one" else 1
    std = protection.noise_std(budget, work) * protection.answer_divisor(work)
    of_vector, of_count = ((ends * size / std) ** 2 / 2 for size in (protection.clip_norm, protection.count_size))
    assert of_vector + of_count == approx(budget, rel=1e-14)
    assert of_count == approx(0.1 * budget, rel=1e-14)
    fixed = replace(protection, clip_quantile=None, clip_share=0.02)
    assert std == approx(fixed.noise_std(budget, work) * fixed.answer_divisor(work) / math.sqrt(0.9))


def test_the_noise_of_samples_is_split_as_andrew_and_others_split_it():
    protection = Protection(trust="secure_sum", unit="client", client_rate=0.5, clip_norm=0.7, **FOLLOWED)
    joint, works = 3.0, [LocalWork(1)] * 5
    noise = noise_of_sampled_sum(protection, [joint] * 5, works, 10)
    std = math.sqrt(noise.noise_variance) / noise.weights[0]
    std_of_count = std / (2 * protection.count_size)  # of the number of those that were shorter
    of_vector = std / protection.clip_norm
    assert of_vector == approx((joint**-2 - (2 * std_of_count) ** -2) ** -0.5, rel=1e-4)  # but for rounding to the grid


@EVERY_WAY
def test_the_ledger_is_charged_for_both_and_total_epsilon_covers_both(way):
    ledger = PrivacyLedger.in_memory()
    records = records_of(way, BUDGETS, 3, ledger=ledger, total_epsilon=2.0, aggregation="noise_aware")
    fixed = records_of(
        way, BUDGETS, 3, total_epsilon=2.0, aggregation="noise_aware", clip_quantile=None, clip_share=0.02
    )
    assert records[-1].dp_epsilon == approx(2.0, rel=1e-3)
    assert records[-1].dp_epsilon <= 2.0
    for record, other in zip(records, fixed, strict=True):
        np.testing.assert_allclose(record.spent, other.spent, rtol=1e-3)
        np.testing.assert_allclose(
            record.noise_std / record.clip_norm, other.noise_std / other.clip_norm / math.sqrt(0.9), rtol=1e-3
        )
    np.testing.assert_allclose(ledger.spent(["0", "1", "2", "3"]), sum(record.spent for record in records))
    assert list(ledger.protections) == [records_name(way)]


def records_name(way):
    return configured(**WAYS[way], **FOLLOWED).protection.name


@pytest.mark.parametrize("way", ["local record", "secure_sum client"])
def test_a_count_larger_than_declared_is_found_out_by_the_audit(way, monkeypatch):
    config = configured(**QUICK, **WAYS[way], **FOLLOWED)
    assert audit_sensitivity(MODEL, DATA, config).verdict == "pass"
    real = GradientNoise.with_count
    monkeypatch.setattr(GradientNoise, "with_count", lambda self, total, *rest: 9 * real(self, total, *rest))
    size = Protection.count_size.fget
    monkeypatch.setattr(Protection, "longest", property(lambda self: math.hypot(self.clip_norm, size(self) / 9)))
    config = configured(**{**QUICK, **WAYS[way], **FOLLOWED, "clip_share": 0.5, "adjacency": "zero_out"})
    assert audit_sensitivity(MODEL, DATA, config).verdict == "fail"


# ---- and kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["local record", "secure_sum client"])
def test_a_resumed_training_goes_on_with_the_same_norm(way):
    config, plan = configured(**QUICK, **WAYS[way], **FOLLOWED), plan_with(BUDGETS, 6)
    whole = list(train_rounds(MODEL, DATA, plan, config))
    assert len({record.clip_norm for record in whole}) == 6
    before = list(islice(train_rounds(MODEL, DATA, plan, config), 3))
    key = training_key(MODEL, TrainingJob("training", plan, DATA, config))
    resume = checkpoint_after(before[-1], history_of(before, 4), key)
    then = list(train_rounds(MODEL, DATA, plan, config, resume=resume))
    assert [record.clip_norm for record in before + then] == [record.clip_norm for record in whole]
    np.testing.assert_array_equal(then[-1].weights, whole[-1].weights)
    assert history_of(whole, 4).rounds["clip_norm"].tolist() == [record.clip_norm for record in whole]


@pytest.mark.parametrize("way", ["local record", "secure_sum client"])
def test_jobs_side_by_side_have_a_norm_each(way):
    configs = {f"seed {k}": configured(**QUICK, **WAYS[way], **FOLLOWED, seed=k) for k in (1, 2)}
    jobs = [TrainingJob(name, plan_with(BUDGETS, 3), DATA, config) for name, config in configs.items()]
    together = list(train_many(MODEL, jobs))
    for name, config in configs.items():
        alone = list(train_rounds(MODEL, DATA, plan_with(BUDGETS, 3), config))
        assert [records[name].clip_norm for records in together] == [record.clip_norm for record in alone]
        np.testing.assert_allclose(together[-1][name].weights, alone[-1].weights, atol=1e-6)


def test_a_round_without_anybody_leaves_it_where_it_is():
    assert norms_of("secure_sum client", (0.0,) * 4).tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"clip_quantile": 0.5, "release": "steps"}, "one count a round, and release='steps' clips in every step"),
        ({"clip_quantile": 0.5, "trust": "server", "cohorts": 2}, "cohorts=2 take back noise of rounds before"),
        ({"clip_share": 0.1}, "clip_share=0.1 pays for the count of clip_quantile. Give that, too."),
        ({"clip_quantile": 1.0}, "clip_quantile"),
        ({"clip_quantile": 0.5, "clip_share": 0.0}, "clip_share"),
    ],
)
def test_what_cannot_be_counted_is_refused(values, words):
    with pytest.raises(BadInput, match=words.replace(".", r"\.")):
        Protection(**values)
