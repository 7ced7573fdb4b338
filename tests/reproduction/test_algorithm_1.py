"""Algorithm 1, solved and to the letter; what else is wrong with it, examples/corrections prints and docs show."""

import numpy as np
import pytest
from pytest import approx
from reproduction.algorithm_1 import fixed_point_trace, lemma_1_right_side
from reproduction.paper_equations import poa_bound_of_theorem_3

import mppfl
from mppfl.game import equilibrium_response
from tests.game.games import paper_scale_game


@pytest.mark.parametrize("seed", range(15))
def test_with_the_rate_solved_in_every_sweep_it_reaches_the_equilibrium_and_to_the_letter_it_never_does(seed):
    game = paper_scale_game(seed)
    terms = mppfl.solve(game).terms(1)
    literal = fixed_point_trace(game, threshold=1e-6, literal=True, max_sweeps=300)
    assert not literal.converged
    if np.isfinite(literal.budgets).all():
        assert np.abs(literal.budgets - terms.budgets).max() > 1e-3
    if not (terms.budgets > 0).all():
        return  # no equilibrium inside the bounds
    quick, trace = (fixed_point_trace(game, threshold=threshold) for threshold in (1e-3, 1e-13))
    assert quick.converged
    assert quick.num_sweeps == len(quick.external_risk) == len(quick.reward_rates) <= 15
    assert trace.budgets == approx(terms.budgets, abs=1e-9)
    assert trace.reward_rates[-1] == approx(terms.reward_rate, abs=1e-9)
    risk = game.propagation @ terms.budgets / game.num_clients
    assert trace.external_risk[-1] == approx(risk, abs=1e-10)
    assert lemma_1_right_side(game, 1, terms.reward_rate, risk) == approx(terms.reward_rate)


def test_theorem_3_is_empty_at_the_papers_scale_and_meaningless_past_its_range():
    game = paper_scale_game(1, num_clients=20, preset="paper-like", externality_strength=0.05)
    rate = equilibrium_response(game).lowest_rate + 1
    assert 1 <= poa_bound_of_theorem_3(game, rate) < 1 + 1e-5
    wild = paper_scale_game(1, num_clients=20, preset="paper-like", externality_strength=0.5)
    assert poa_bound_of_theorem_3(wild, rate) is None
