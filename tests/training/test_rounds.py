"""The federated round: what its record says, what the ledger says, and what it refuses."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from pytest import approx

from mppfl.errors import BadInput
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy import LocalWork, epsilon
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    TrainingJob,
    batches_with_augmentation,
    make_model,
    train_many,
)
from tests.training.trainings import (
    BUDGETS,
    CLIENT,
    NOMINAL,
    POISSON,
    QUICK,
    SHUFFLED,
    STEPS,
    WAYS,
    Remembers,
    batch_normed,
    configured,
    pictures,
    plan_with,
    softmax_on,
    trained,
)  # fmt: skip


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("poisson", "cohorts")])
def test_records_carry_what_the_ledger_carries(way):
    ledger = PrivacyLedger.in_memory()
    records = trained(ledger=ledger, run="monday", **WAYS[way], budget_unit=0.25)
    spent = sum(record.spent for record in records)
    assert ledger.clients == ("0", "2")  # who takes no part stands in no ledger
    np.testing.assert_allclose(ledger.spent(["0", "2"]), spent[[0, 2]], rtol=1e-12)
    events = list(ledger.events())
    protection = configured(**WAYS[way]).protection
    fields = ("run", "round_index", "client", "protection", "noise_kind")
    assert [tuple(event[field] for field in fields) for event in events] == [
        ("monday", t, name, protection.name, "simulated") for t in (1, 2, 3) for name in ("0", "2")
    ]
    assert ledger.verify() == 6


def test_budgets_of_the_game_are_paid_for_and_the_training_spends_the_unit_times_as_much():
    prices = np.array([1.0, 5.0, 0.25])
    priced = plan_from_rounds("by hand", [RoundTerms(t, 2.0, prices, np.array(BUDGETS)) for t in (1, 2)])
    for plan, payments in ((priced, [0.5, 0.0, 0.5]), (None, [1.0, 0.0, 4.0])):  # then one rate of 2 for everybody
        for record in trained(plan=plan, budget_unit=1e-3):
            np.testing.assert_allclose(record.payments, payments)
            np.testing.assert_allclose(record.spent, 1e-3 * np.array(BUDGETS))
            np.testing.assert_array_equal(record.budgets, BUDGETS)
            assert record.noise_std[0] == approx(0.1 * 0.5 * math.sqrt(2 / 0.5e-3) / 9)  # η𝒮√(2/ρ)/n of the model
            np.testing.assert_array_equal(record.participating, [True, False, True])


@pytest.mark.parametrize(("optimizer", "trust"), [("sgd", "local"), ("momentum", "server"), ("adam", "secure_sum")])
def test_a_round_in_which_nobody_takes_part_leaves_the_model_as_it_was(optimizer, trust):
    terms = [RoundTerms(t, 2.0, 2.0, (t != 2) * np.array(BUDGETS)) for t in (1, 2, 3)]
    ledger = PrivacyLedger.in_memory()
    asked = {"plan": plan_from_rounds("by hand", terms), "server_optimizer": optimizer, "trust": trust}
    first, idle, last = trained(**asked, ledger=ledger)
    np.testing.assert_array_equal(idle.weights, first.weights)
    for name in ("theta", "spent", "payments", "noise_std"):
        np.testing.assert_array_equal(getattr(idle, name), np.zeros(3))
    assert not idle.participating.any()
    assert idle.update_norm == 0.0
    assert idle.dp_epsilon == first.dp_epsilon
    assert idle.accuracy == first.accuracy
    assert np.abs(last.weights - first.weights).max() > 0
    assert len(ledger) == 4


def test_a_protection_of_ones_own_needs_one_class_and_no_other_file():
    """Noise, cost and clip norm of `PaperNoise`, which stands in the reproduction and nowhere else."""
    data, ledger = pictures(), PrivacyLedger.in_memory()
    # One client alone, without noise and without clipping, shows its raw update.
    alone = np.where(np.eye(3), np.inf, 0.0)
    raw = [trained(budgets, 1, data=data, **CLIENT | {"clip_norm": 1e6})[0].update_norm for budgets in alone]
    records = trained((1.0, 2.0, 3.0), 3, data=data, ledger=ledger, **NOMINAL)
    assert [record.clip_norm for record in records] == [approx(np.median(raw), rel=1e-6)] * 3
    assert records[0].share_clipped == approx(1 / 3)
    np.testing.assert_allclose(
        records[0].noise_std, np.median(raw) * np.sqrt(2 / np.array([1, 2, 3])) / data.num_examples, rtol=1e-6
    )
    cost = np.array([1, 2, 3]) * data.num_examples**2
    np.testing.assert_allclose(records[0].spent, cost)
    np.testing.assert_allclose(ledger.spent(["0", "1", "2"]), 3 * cost)
    assert records[-1].dp_epsilon == approx(float(epsilon(3.0 * cost.max(), 1e-5)), rel=1e-9)


@pytest.mark.parametrize("last", [2, 3, 4])
def test_the_model_handed_out_is_the_mean_of_the_last_rounds_models(last):
    models = [record.weights for record in trained(num_rounds=4, precision="float64")]
    records = trained(num_rounds=4, average_rounds=last, precision="float64")
    for position, record in enumerate(records):
        first = 4 - last
        expected = models[position] if position < first else np.mean(models[first : position + 1], axis=0)
        np.testing.assert_allclose(record.weights, expected, atol=1e-14)
    assert np.abs(records[-1].weights - models[-1]).max() > 1e-3


def test_accuracy_and_loss_are_those_of_the_model_handed_out():
    data = pictures()
    record = trained(data=data, average_rounds=2)[-1]
    weights, bias = record.weights[:256].reshape(4, 64), record.weights[256:]
    scores = data.test_features.reshape(-1, 64).astype(np.float64) @ weights.T + bias
    right = scores.argmax(1) == data.test_labels
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert record.accuracy == right.mean()
    assert record.loss == approx(-logs[np.arange(len(right)), data.test_labels].mean(), rel=1e-5)


# ---- what is refused ----------------------------------------------------------------------------------------------


EXPLODES = {"learning_rate": 1e30, "num_steps": 3}  # with features of 1e30 as well, the second step's logits overflow


def with_a_client_that_explodes():
    """The features of client bob are so large that its update overflows; the others' are as usual."""
    data = pictures()
    features = data.features.copy()
    features[data.members[1]] *= 1e30
    return dataclasses.replace(data, features=features, names=("ann", "bob", "cat"))


@pytest.mark.parametrize("engine", ["loop", "dense"])
@pytest.mark.parametrize("way", ["gradient", "steps", "shuffled"])
def test_an_example_whose_gradient_is_no_number_counts_as_nothing(way, engine, caplog):
    # Who stops, or is stopped, by one example tells that it is there.
    data = pictures()
    features = data.features.copy()
    features[data.members[1][0]] = np.float32(3e38) * np.sign(features[data.members[1][0]])
    wild = dataclasses.replace(data, features=features)
    (record,) = trained([1.0] * 3, 1, data=wild, num_steps=3, **WAYS[way], engine=engine)
    assert record.participating.all()
    assert np.isfinite(record.weights).all()
    assert "gradients of single examples hold NaN or infinity; each counts as 0" in caplog.text


@pytest.mark.parametrize("engine", ["loop", "dense"])
@pytest.mark.parametrize("noise", ["simulated", "gaussian", "discrete"])
@pytest.mark.parametrize("trust", ["local", "secure_sum", "server"])
def test_an_update_that_is_no_number_counts_as_0_with_its_noise_and_is_paid(trust, noise, engine, caplog):
    # What raw updates say, no budget pays for: who is left out tells that its data are wild.
    if (trust, noise) == ("secure_sum", "gaussian"):
        noise = "discrete"
    ledger = PrivacyLedger.in_memory()
    asked = {**CLIENT, "trust": trust, "noise": noise, "engine": engine, **EXPLODES}
    (record,) = trained([1.0] * 3, 1, data=with_a_client_that_explodes(), ledger=ledger, **asked)
    assert record.participating.all()
    assert record.refused == ()
    assert math.isnan(record.share_clipped) or (trust, noise) == ("local", "simulated")
    assert ledger.spent("bob") == record.spent[1] == approx(1.0, rel=1e-6)
    assert np.isfinite(record.weights).all()
    assert "the update of client 'bob' holds NaN or infinity and counts as 0" in caplog.text


@pytest.mark.parametrize("trust", ["local", "secure_sum", "server"])
def test_an_update_that_is_no_number_is_0_in_the_mean(trust):
    wild = with_a_client_that_explodes()
    asked = {**CLIENT, "trust": trust, "aggregation": "uniform", **EXPLODES}
    together, without = (
        trained(budgets, 1, data=data, **asked)[0].weights.astype(np.float64)
        for data, budgets in ((wild, (np.inf,) * 3), (wild, (np.inf, 0, np.inf)))
    )
    start = trained((0, 0, 0), 1, data=wild, **asked)[0].weights
    np.testing.assert_allclose(together - start, 2 / 3 * (without - start), atol=1e-6)


def test_with_real_noise_a_model_that_is_no_number_ends_the_training():
    with pytest.raises(BadInput, match=r"round 2: the model holds NaN or infinity. Nothing was released"):
        trained([1.0] * 3, 2, **CLIENT, noise="gaussian", server_learning_rate=1e300)


def test_poisson_samples_are_secret_where_noise_is_real():
    def samples(noise):
        config = configured(**POISSON, noise=noise, clip_norm=0.5, batch_size=20)
        return [
            np.concatenate(batches_with_augmentation(config, LocalWork(200, 1, 1, 20), np.arange(200), 1, 0))
            for _ in "ab"
        ]

    first, second = samples("simulated")
    np.testing.assert_array_equal(first, second)
    for noise in ("gaussian", "discrete"):
        first, second = samples(noise)
        assert not np.array_equal(first, second)
        assert 100 < len(first) < 300  # ten steps of twenty on average: seven standard deviations


@pytest.mark.parametrize(("stored", "times_paid"), [(False, 3), (True, 1)])
def test_fresh_noise_for_a_round_that_has_left_is_paid_again_or_refused(stored, times_paid):
    ledger, names = PrivacyLedger.in_memory(), ("0", "1", "2")
    for _ in range(3):
        (record,) = trained([0.2] * 3, 1, ledger=ledger, **CLIENT, noise="gaussian")
        for name in names:
            if stored and record.participating.any():
                ledger.store_upload("training", 1, name, b"noisy")
            ledger.mark_sent("training", 1, name)
    assert ledger.spent("0") == approx(0.2 * times_paid)
    assert record.dp_epsilon == approx(float(ledger.get_epsilon("0", 1e-5)), rel=1e-9)
    assert record.refused == (names if stored else ())


REFUSED = {
    **{
        f"a batch above a client's data, {name}": (
            {"batch_size": 6, **way},
            r"batch_size=6 is more than the 5 examples of client '1'. Use at most 5",
        )
        for name, way in (("client", CLIENT), ("shuffled", SHUFFLED), ("poisson", POISSON))
    },
    "a plan for other clients": ({"budgets": [1.0] * 4}, "the plan has 4 clients, the data 3"),
    "a budget that is no number": ({"budgets": [1.0, math.nan, 1.0]}, "budget of client '1' in round 1 is nan"),
    "a budget below 0": ({"budgets": [1.0, -1.0, 1.0]}, "budget of client '1' in round 1 is -1"),
    "Poisson sampling without noise": ({"budgets": (np.inf, 0, 0), **POISSON}, "budgets=inf .* must be finite"),
    "an epsilon for plans without noise": ({"budgets": (np.inf, 0, 0), "total_epsilon": 1.0}, "budgets are infinite"),
    "an epsilon where nobody participates": ({"budgets": (0, 0, 0), "total_epsilon": 1.0}, "nobody participates"),
    "a sum of some with noise and some without": (
        {"budgets": (np.inf, 1.0, 1.0), "trust": "server"},
        "some budgets are infinite and some are not",
    ),
    "a sum without anybody whose noise hides": (
        {"budgets": (1.0, 1.0, 1.0), "trust": "secure_sum", "dropouts": 1, "colluding": 2},
        "3 clients less 1 dropouts and 2 colluding leave nobody",
    ),
    "a sum that rounding alone would spend": (
        {"budgets": (1e-12, 1e-12, 1e-12), "trust": "server"},
        "which rounding alone would spend",
    ),
    "a sum with too little noise for a grid": (
        {"budgets": (1e21, 1e21, 1e21), "trust": "secure_sum"},
        r"too fine for vectors of length 0.5. Use smaller budgets, or infinite ones",
    ),
    **{
        f"batch norm under {name}": (
            {"model": batch_normed(), **way},
            r"normalises over the batch.*norm='group', or Protection\(unit='client'\)",
        )
        for name, way in (("gradient", {}), ("steps", STEPS), ("shuffled", SHUFFLED), ("poisson", POISSON))
    },
}
if not torch.cuda.is_available():
    REFUSED["a GPU that is not there"] = ({"device": "cuda:1"}, "device='cuda:1', but PyTorch finds no GPU here")


@pytest.mark.parametrize(("asked", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_is_refused_before_anything_is_paid(asked, says):
    ledger = PrivacyLedger.in_memory()
    with pytest.raises(BadInput, match=says):
        trained(**asked, ledger=ledger)
    assert len(ledger) == 0


def test_updates_that_are_all_no_numbers_end_a_simulation():
    data = pictures()
    wild = dataclasses.replace(data, features=data.features * np.float32(1e30))
    with pytest.raises(BadInput, match="round 1: every update holds NaN or infinity"):
        trained([1.0] * 3, 1, data=wild, **CLIENT, **EXPLODES)


class DropsByItself(torch.nn.Module):
    """Random without a layer that is known for it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(64, 4)

    def forward(self, x):
        return self.layer(torch.nn.functional.dropout(x.flatten(1), 0.5, self.training))


def with_dropout():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))


def small_mlp():
    return make_model("mlp", (1, 8, 8), 4, hidden=(7, 5))


def with_random_slopes():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.RReLU(), torch.nn.Linear(8, 4))


@pytest.mark.parametrize("make", [DropsByItself, with_dropout])
def test_random_models_are_refused_where_samples_are_secret(make):
    # One record more moves everybody's mask, so the sum of clipped gradients moves by much more than the clip norm.
    data = pictures((40, 30, 50))
    asked = {"model": make(), "data": data, **POISSON, "engine": "loop"}
    with pytest.raises(BadInput, match=r"draws at random.*breaks batches='poisson'.*use batches='shuffled'"):
        trained([1.0] * 3, 1, **asked, noise="gaussian")
    assert trained([1.0] * 3, 1, **asked, noise="simulated")[0].participating.all()


@pytest.mark.parametrize(
    ("make", "engine"),
    [(small_mlp, "auto"), (DropsByItself, "loop"), (with_dropout, "loop"), (with_random_slopes, "loop")],
)
def test_the_seed_decides_the_training_bit_for_bit_and_whatever_a_module_draws(make, engine):
    models = []
    for seed, global_seed in ((0, 1), (0, 2), (1, 2)):
        module = make()
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        models.append(trained((1.0, 2.0, 3.0), 2, model=module, **CLIENT, engine=engine, seed=seed)[-1].weights)
        assert torch.equal(torch.get_rng_state(), state)  # and the caller's generator stays as it was
    np.testing.assert_array_equal(models[0], models[1])
    assert np.abs(models[0] - models[2]).max() > 1e-3


def test_arms_need_names_of_their_own():
    data, config = pictures(), configured(**QUICK)
    arm = TrainingJob("a", plan_with(BUDGETS), data, config)
    for arms in ([], [arm, dataclasses.replace(arm)]):
        with pytest.raises(BadInput, match="names of their own"):
            next(train_many(softmax_on(data), arms))


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 4)

    def forward(self, x):
        x = x.flatten(1)
        return self.linear(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(
    "model",
    [Branching(), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.RReLU(), torch.nn.Linear(64, 4))],
    ids=["code that looks at numbers", "a layer that PyTorch cannot take apart"],
)
@pytest.mark.parametrize("way", ["shuffled", "gradient"])
def test_a_model_without_gradients_of_single_examples_is_refused_before_anything_is_paid(model, way):
    ledger = PrivacyLedger.in_memory()
    with pytest.raises(BadInput, match=r"clips every example's gradient.*vmap.*use Protection\(unit='client'\)"):
        trained([1.0] * 3, 1, model=model, **WAYS[way], ledger=ledger)
    assert len(ledger) == 0
    assert trained([1.0] * 3, 1, model=model, **CLIENT)[0].participating.all()


def with_spectral_norm():
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(64, 4))
    )


@pytest.mark.parametrize("make", [lambda: Remembers(True), lambda: Remembers(False), with_spectral_norm])
def test_a_module_that_remembers_examples_is_refused_before_anything_is_paid(make):
    ledger = PrivacyLedger.in_memory()
    with pytest.raises(BadInput, match="keeps something of the examples it has seen"):
        trained([1.0] * 3, 1, model=make(), ledger=ledger, **CLIENT)
    assert len(ledger) == 0
