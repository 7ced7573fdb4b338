"""The paper's noise: what it adds, what that costs, and the length that its first round tells."""

import numpy as np
import pytest
from pytest import approx
from reproduction.paper_noise import PaperNoise, nominal_epsilon

from mppfl.data import client_data
from mppfl.errors import BadInput
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy import LocalWork, epsilon
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    TrainingConfig,
    TrainingJob,
    checkpoint_after,
    history_of,
    load_checkpoint,
    make_model,
    save_checkpoint,
    train_rounds,
    training_key,
)


def test_a_budget_buys_the_noise_of_a_mean_gradient_and_costs_what_holds_for_a_whole_update():
    paper, work = PaperNoise(clip_norm=3.0), LocalWork(num_examples=10)
    assert paper.noise_std(0.5, work) == approx(2 * 3.0 / 10)
    assert paper.charged(0.5, work) == 50.0
    assert paper.charged(0.5, work) == approx((2 * 3.0) ** 2 / (2 * paper.noise_std(0.5, work) ** 2))


@pytest.mark.parametrize(
    "changed",
    [{"unit": "client"}, {"release": "gradient"}, {"noise": "gaussian"}, {"trust": "server"}, {"clip_quantile": 0.5}],
)
def test_it_is_a_simulation_of_one_way_to_train(changed):
    with pytest.raises(BadInput, match=next(iter(changed))):
        PaperNoise(**changed)


def test_the_length_is_the_median_of_those_that_are_numbers_and_most_must_be():
    assert not PaperNoise().has_clip_norm
    settled = PaperNoise().with_clip_norm_of(np.array([3.0, 1.0, 2.0, np.nan]))
    assert settled.has_clip_norm
    assert settled.clip_norm == approx(2.0, rel=1e-11)
    assert settled.clip_norm > 2.0  # whose length is the median is not shortened
    with pytest.raises(BadInput, match="2 of the first round's 3 updates hold NaN"):
        PaperNoise().with_clip_norm_of(np.array([1.0, np.nan, np.inf]))
    with pytest.raises(BadInput, match="no length to shorten to"):
        PaperNoise().with_clip_norm_of(np.zeros(3))


def test_the_nominal_epsilon_is_that_of_whoever_spends_most_and_infinite_without_noise():
    budgets, participating = np.array([[0.1, 0.5], [0.2, 0.5]]), np.array([[True, True], [True, False]])
    assert nominal_epsilon(budgets, participating, 1e-5) == approx(epsilon(0.5, 1e-5))
    assert nominal_epsilon(budgets, ~participating & False, 1e-5) == 0
    assert nominal_epsilon(np.full((2, 2), np.inf), participating, 1e-5) == np.inf


def test_a_training_settles_the_length_once_charges_what_holds_and_is_taken_up_with_it(tmp_path):
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((30, 4)), np.arange(30) % 2
    data = client_data(features, labels, [range(10), range(10, 30)], features, labels)
    plan = plan_from_rounds("by hand", [RoundTerms(t, 1.0, 1.0, np.array([0.5, 1.0])) for t in (1, 2, 3)])
    config = TrainingConfig(batch_size=5, learning_rate=0.1, protection=PaperNoise(budget_unit=0.1))
    model, ledger = make_model("softmax", (4,), 2), PrivacyLedger.in_memory()
    records = list(train_rounds(model, data, plan, config, ledger=ledger, run="paper"))
    assert {record.clip_norm for record in records} == {records[0].clip_norm}
    assert records[0].spent == approx([100 * 0.05, 400 * 0.1])
    assert records[0].noise_std == approx(2 * records[0].clip_norm / np.array([10, 20]) / np.sqrt([0.1, 0.2]))
    assert ledger.account(list(data.names), "record").budget == approx([3 * 5.0, 3 * 40.0])
    key = training_key(model, TrainingJob("paper", plan, data, config, ledger))
    save_checkpoint(tmp_path / "kept.npz", checkpoint_after(records[0], history_of(records[:1], 2), key))
    resume = load_checkpoint(tmp_path / "kept.npz")
    again = list(train_rounds(model, data, plan, config, ledger=ledger, run="paper", resume=resume))
    assert (again[-1].weights == records[-1].weights).all()
