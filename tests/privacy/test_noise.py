"""Noise of three kinds. Tests draw from the operating system; each states how often sound noise would fail it."""

import math
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2, kstest

from mppfl.errors import BadInput
from mppfl.privacy import (
    NOISE_KINDS,
    add_noise,
    cumulated_weights,
    discrete_gaussian_table,
    doubt,
    exact_draw,
    grid_of,
    system_normals,
)
from tests.homes import home

noise_module = home(add_noise)

FALSE_ALARM = 1e-7  # of each statistical test here
SYSTEM_KINDS = ("gaussian", "discrete")


def stream():
    return np.random.default_rng(7)


@pytest.mark.parametrize("kind", NOISE_KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("std", [3e-5, 1.0, 700.0])
def test_noise_has_the_variance_asked_for(kind, dtype, std):
    values = np.linspace(-1, 1, 300_000).astype(dtype)
    noise = (add_noise(values, std, kind, stream()).values - values).astype(float)
    # Rounding to float32 moves each sum by up to 2⁻²⁵ of its size.
    spare = 1 + (1e-2 if dtype == "float32" and std < 1e-3 else 1e-5)
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.size)
    assert low / spare <= (noise / std) @ (noise / std) <= high * spare


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_has_the_shape_of_a_gaussian_and_independent_neighbours(kind):
    noise = add_noise(np.zeros(200_000), 2.0, kind, stream()).values / 2
    assert kstest(noise, "norm").pvalue > FALSE_ALARM
    assert abs(noise[:-1] @ noise[1:]) < 6 * math.sqrt(noise.size)  # 6 standard deviations: 2e-9


@pytest.mark.parametrize("kind", SYSTEM_KINDS)
def test_released_values_are_multiples_of_a_public_grid(kind):
    for dtype in ("float32", "float64"):
        noisy = add_noise(np.full(10_000, math.pi, dtype=dtype), 0.7, kind)
        steps = noisy.values.astype(float) / noisy.price.grid
        assert (steps == np.rint(steps)).all()
        assert noisy.price.grid == grid_of(0.7, kind) == 2.0 ** math.floor(math.log2(noisy.price.grid))
        assert noisy.price.sensitivity_added == noisy.price.grid * 100
        assert noisy.price.extra_delta == (10_000 * 2.0**-128 if kind == "discrete" else 0)  # lacks to exactness


@pytest.mark.parametrize("kind", SYSTEM_KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sign_of_a_value_that_rounds_to_zero_is_not_told(kind, dtype, monkeypatch):
    monkeypatch.setitem(noise_module.STEPS_PER_STD, kind, 4)  # so that a tenth of all noise is 0
    for value in (0.0, -0.0, 1e-9, -1e-9):
        noisy = add_noise(np.full(2000, value, dtype=dtype), 1.0, kind).values
        assert (noisy == 0).any()
        assert not np.signbit(noisy[noisy == 0]).any()


@given(st.floats(1e-200, 1e200))
def test_the_grid_is_the_largest_power_of_two_that_fits(std):
    for kind, steps in noise_module.STEPS_PER_STD.items():
        assert grid_of(std, kind) <= std / steps < 2 * grid_of(std, kind)


@pytest.mark.parametrize("std", [1.5, 40.25, 1000.0, 2.0**14 + 0.3])
def test_no_entry_of_a_table_is_further_from_the_exact_one_than_is_doubted(std):
    table, cumulated = discrete_gaussian_table(std), cumulated_weights(std)
    exact = [value * 2**63 // cumulated[-1] for value in cumulated[: len(table)]]
    assert max(abs(int(entry) - true) for entry, true in zip(table, exact, strict=True)) < doubt(table) // 2
    assert int(table[-1]) == 2**63


@pytest.mark.parametrize("std", [1.5, 40.25, 1000.0])
def test_exact_weights_are_those_of_another_arithmetic(std):  # second route: 80 decimal digits
    getcontext().prec = 80
    total, cumulated = Decimal(0), cumulated_weights(std)
    for k in range(int(10 * std)):
        total += (1 if k == 0 else 2) * (-(Decimal(k) ** 2) / (2 * Decimal(std) ** 2)).exp()
        assert abs(Decimal(cumulated[k]) / 2**320 - total) < Decimal(10) ** -70


def test_draws_that_a_table_cannot_decide_are_decided_exactly(monkeypatch):
    std = 1.5
    table, cumulated = discrete_gaussian_table(std), cumulated_weights(std)
    for k in range(4):  # words on both sides of each boundary of the table, and just at it
        share = Fraction(cumulated[k], cumulated[-1])
        inside = int(share * 2**63)
        words = np.array([inside - 2**20, inside - 1, inside, inside + 1, inside + 2**20], dtype=np.uint64)
        monkeypatch.setattr(noise_module, "system_words", lambda count, words=words: words << np.uint64(1))
        asked = []
        monkeypatch.setattr(
            noise_module, "exact_draw", lambda *given, asked=asked: asked.append(given) or exact_draw(*given)
        )
        steps = np.abs(noise_module.table_steps(5, table, std))
        assert len(asked) == 3
        assert list(steps[[0, 1]]) == [k, k]
        assert list(steps[[3, 4]]) == [k + 1, k + 1]
        assert steps[2] in (k, k + 1)


def test_a_boundary_is_split_by_the_bits_that_follow(monkeypatch):
    cumulated = cumulated_weights(1.5)
    share = Fraction(cumulated[0], cumulated[-1]) * 2**63
    inside = int(share)
    for part, expected in ((Fraction(99, 100), 0), (Fraction(101, 100), 1)):
        bits = int((share - inside) * part * 2**192)
        monkeypatch.setattr(home(cumulated_weights).secrets, "randbits", lambda count, bits=bits: bits)
        assert exact_draw(inside, 63, 1.5) == expected


def test_discrete_noise_occurs_as_often_as_its_probabilities_say(monkeypatch):
    monkeypatch.setitem(noise_module.STEPS_PER_STD, "discrete", 4)
    drawn = add_noise(np.zeros(400_000), 4.0, "discrete").values
    inside = np.arange(-12, 13)
    expected = np.exp(-(inside**2) / 32)
    expected *= drawn.size / np.exp(-(np.arange(-80, 81) ** 2) / 32).sum()
    seen = np.array([(drawn == k).sum() for k in inside])
    assert ((seen - expected) ** 2 / expected).sum() < chi2.ppf(1 - FALSE_ALARM, len(inside))


@pytest.mark.parametrize(("word", "at_least"), [(0, 9.1), (1, 9.1), (2**63 + 1, 0.6), (2**43, 4.9)])
def test_the_tails_of_system_noise_are_finite_and_on_their_side(monkeypatch, word, at_least):
    monkeypatch.setattr(noise_module, "system_words", lambda count: np.full(count, word, dtype=np.uint64))
    normal = system_normals(1)[0]
    assert at_least <= abs(normal) < 14
    assert math.copysign(1, normal) == (1 if word % 2 else -1)


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_chunks_do_not_change_the_noise(kind, monkeypatch):
    stored = np.random.default_rng(3).integers(2**43 * 2, 2**64, 5000, dtype=np.uint64)

    def drawn(chunk):
        words = iter(stored)
        monkeypatch.setattr(
            noise_module, "system_words", lambda count: np.array([next(words) for _ in range(count)], dtype=np.uint64)
        )
        monkeypatch.setattr(noise_module, "CHUNK", chunk)
        return add_noise(np.linspace(0, 1, 5000), 1.0, kind, stream()).values

    assert (drawn(5000) == drawn(333)).all()


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_may_be_added_in_place_and_keeps_shape_and_dtype(kind):
    values = np.ones((3, 5), dtype=np.float32)
    noisy = add_noise(values, 0.5, kind, stream(), out=values)
    assert noisy.values is values
    assert values.shape == (3, 5)
    assert (values != 1).any()
    assert add_noise(np.ones(0), 0.5, kind, stream()).values.shape == (0,)
    silent = add_noise(np.array([0.1, 0.2]), 0.0, kind)  # what an infinite budget buys
    assert (silent.values.tolist(), silent.price.kind) == ([0.1, 0.2], "none")


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_simulated_noise_is_repeatable_and_system_noise_never_looks_at_a_generator_or_repeats(kind):
    rng = stream()
    first, second = (add_noise(np.zeros(9), 1.0, kind, rng).values for _ in range(2))
    again = add_noise(np.zeros(9), 1.0, kind, stream()).values
    assert (first != second).any()
    assert (first == again).all() == (kind == "simulated")
    assert (rng.random() == stream().random()) == (kind != "simulated")


@given(
    arrays(np.float64, st.integers(0, 20), elements=st.floats(allow_nan=True, allow_infinity=True)),
    st.floats(0, 1e308),
    st.sampled_from(SYSTEM_KINDS),
)
def test_any_vector_is_answered_on_the_grid_or_refused(values, std, kind):
    try:
        noisy = add_noise(values, std, kind)
    except BadInput:
        return
    if noisy.price.grid:
        steps = noisy.values / noisy.price.grid
        assert (steps == np.rint(steps)).all()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        *(
            ({"std": std, "kind": kind, "rng": stream()}, "noise_std")
            for std in (-1.0, math.nan, math.inf, -math.inf, "loud")
            for kind in NOISE_KINDS
        ),
        ({"kind": "simulated"}, "needs rng"),
        ({"kind": "loud"}, "Known: simulated"),
        ({"std": 1e300}, "leaves no room for a grid"),
        ({"values": np.zeros(3, dtype=int)}, "float32 or float64"),
        ({"out": np.zeros(4)}, "out must"),
        ({"values": np.zeros(3, dtype=np.float32), "std": 1e35}, "float32"),
    ],
)
def test_noise_that_cannot_be_is_refused(changed, says):
    asked = {"values": np.zeros(3), "std": 1.0, "kind": "gaussian", **changed}
    with pytest.raises(BadInput, match=says):
        add_noise(asked.pop("values"), asked.pop("std"), **asked)
