"""The neighbour audit: never above the bound on trees, a broken release caught, nothing found where nothing is."""

import math
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadInput
from mppfl.leakage import (
    IsingModel,
    audit_neighbour,
    client_release,
    random_ising_tree,
)
from mppfl.network import SocialGraph
from tests.leakage.networks import circles, friends

GROUP = np.arange(150) % 2  # of whom friends are mostly in the same


def path(size: int) -> SocialGraph:
    return friends(*pairwise(range(size)))


def all_states(tree: IsingModel) -> tuple[np.ndarray, np.ndarray]:
    """Every state and its probability, by enumeration."""
    states = np.array(list(product([-1.0, 1.0], repeat=tree.graph.num_clients)))
    energy = 0.5 * np.einsum("si,ij,sj->s", states, tree.couplings.toarray(), states) + states @ tree.fields
    weights = np.exp(energy - energy.max())
    return states, weights / weights.sum()


def without_noise(attribute, budgets, clip_norm, rng):
    return attribute * clip_norm


def with_half_the_noise(attribute, budgets, clip_norm, rng):
    return client_release(attribute, 4 * budgets, clip_norm, rng)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("field", [18.0, -18.0, 19.0, 400.0])
def test_values_that_are_all_but_certain_are_audited_and_leak_nothing(field: float) -> None:
    options = {"couplings": 0.3, "fields": field, "draws": 200}
    audit = audit_neighbour(path(3), None, np.ones(3), rng=np.random.default_rng(0), **options)
    assert audit.verdict == "pass"
    assert audit.details["client_bound"] == approx(np.zeros(3), abs=1e-12)
    assert (audit.details["client_bound"] >= 0).all()
    assert audit.measured == approx(0.0, abs=1e-12)


def test_belief_propagation_and_draws_on_a_tree_are_those_of_enumeration() -> None:
    rng = np.random.default_rng(0)
    tree = random_ising_tree(7, rng)
    states, chances = all_states(tree)
    evidence = rng.normal(size=(5, 7))
    prior, posterior = tree.log_odds(evidence)
    for client in range(7):
        up = states[:, client] > 0
        assert prior[client] == approx(math.log(chances[up].sum() / chances[~up].sum()))
        for draw in range(5):
            others = np.where(np.arange(7) == client, 0.0, evidence[draw])
            weights = chances * np.exp(states @ others)
            assert posterior[draw, client] == approx(math.log(weights[up].sum() / weights[~up].sum()))
    drawn = tree.sample(40_000, rng)
    # Means of ±1 over 40,000 draws: five standard errors are .025; 56 comparisons, chance of failure below 1e-4.
    assert drawn.mean(axis=0) == approx(chances @ states, abs=0.025)
    assert drawn.T @ drawn / len(drawn) == approx(states.T @ (chances[:, None] * states), abs=0.025)


def test_no_tree_leaks_more_than_its_bound() -> None:
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(150):
        tree = random_ising_tree(8, rng, strongest=1.5)
        budgets = 10 ** rng.uniform(-2, 1, 8)
        # The chance that a sound mechanism fails is 1e-4 per tree, if means of 2,000 gains are normal.
        model = {"couplings": tree.couplings, "fields": tree.fields}
        audit = audit_neighbour(tree.graph, None, budgets, draws=2_000, rng=rng, **model)
        assert audit.verdict == "pass", audit.details["failures"]
        ratios.append(audit.details["client_leak"].sum() / audit.details["client_bound"].sum())
    assert 0.1 < np.median(ratios) < 1.0


def test_a_release_with_too_little_noise_is_caught_on_a_tree_where_a_sound_one_passes() -> None:
    audit = partial(audit_neighbour, path(6), None, 0.1, couplings=1.0, draws=20_000)
    for broken in (without_noise, with_half_the_noise):
        caught = audit(release=broken, rng=np.random.default_rng(4))
        assert caught.verdict == "fail"
        assert len(caught.details["violations"]) >= 4
        assert caught.measured > caught.claimed
    sound = audit(rng=np.random.default_rng(4))
    assert sound.verdict == "pass"
    assert sound.measured == approx(sound.claimed, rel=0.5)
    assert abs(sound.details["null_leak"]) < 5 * sound.details["null_standard_error"] + 1e-4
    low, high = sound.details["accuracy_interval"]
    assert low < sound.details["accuracy"] < high


def test_an_attribute_of_friends_leaks_and_a_permuted_one_does_not() -> None:
    rng = np.random.default_rng(6)
    graph = circles(rng, GROUP, 0.12, 0.02)
    audit = audit_neighbour(graph, GROUP, 0.3, rng=rng)
    details = audit.details
    assert (audit.verdict, audit.claimed) == ("no claim to test", None)
    assert set(details["attackers"]) == {"gaussian_field", "belief_propagation"}
    assert audit.measured == max(attacker["leak"] for attacker in details["attackers"].values())
    assert details["interval"][0] > 0.1
    assert details["accuracy_interval"][0] > details["prior_accuracy"]
    assert abs(details["null_leak"]) < 5 * details["null_standard_error"] + 0.01
    mixed = audit_neighbour(graph, rng.permutation(GROUP), 0.3, attackers=("gaussian_field",), rng=rng)
    assert abs(mixed.measured) < 5 * mixed.details["standard_error"] + 0.01
    assert "no ranking" in mixed.details["ranking"]


def test_without_a_model_a_release_without_noise_is_caught_and_the_silent_say_nothing() -> None:
    rng = np.random.default_rng(5)
    graph = circles(rng, GROUP, 0.12, 0.02)
    caught = audit_neighbour(graph, GROUP, 0.1, release=without_noise, attackers=("gaussian_field",), rng=rng)
    assert caught.verdict == "fail"
    assert caught.details["release"]["clients_louder_than_budget"] == 150
    rng = np.random.default_rng(7)
    graph = circles(rng, GROUP, 0.12, 0.02)
    budgets = np.where(np.arange(150) < 2, 1e-6, 0.0)
    silent = audit_neighbour(graph, GROUP, budgets, rng=rng, attackers=("gaussian_field",))
    assert abs(silent.measured) < 0.02
    assert silent.verdict == "no claim to test"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"attribute": [1, 0, 1]}, "at least 10"),
        ({"attribute": [1, 0, math.nan]}, "unknown for 1"),
        ({"attribute": None}, "one value per client"),
        ({"attribute": [1, 0, 1], "couplings": 0.5}, "must be None with couplings"),
        ({"couplings": 99.0, "attribute": None}, "certainty"),
        ({"budgets": 0.0}, "every budget is 0"),
        ({"attackers": ("oracle",)}, "must be some of"),
        ({"public_share": 1.5}, "public_share"),
        ({"release": lambda x, b, c, g: x[0]}, "release gave shape"),
        ({"graph": friends((0, 1), (1, 2), (2, 0)), "attribute": None, "couplings": 0.1}, "cycles"),
        ({"graph": path(3_001), "attribute": np.arange(3_001) % 2}, "at most 3,000 clients"),
    ],
)
def test_bad_input_is_refused_in_one_line(options, says) -> None:
    given = {"graph": path(3), "attribute": [1, 0, 1], "budgets": 1.0, "rng": np.random.default_rng(0), **options}
    with pytest.raises(BadInput, match=says) as refused:
        audit_neighbour(given.pop("graph"), given.pop("attribute"), given.pop("budgets"), **given)
    assert "\n" not in str(refused.value)
