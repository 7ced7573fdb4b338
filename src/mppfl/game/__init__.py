"""What everybody does about it."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .bounded_leaders import best_on_path
    from .clients_file import read_clients
    from .compare import COMPARED, SAME_AT_COMMON_REWARD, WITHOUT_RATES, Convention, Row, Summary, compare, summarise
    from .device import DeviceLoss, game_on_device, solution_bytes
    from .equilibrium import Response, equilibrium_at, equilibrium_response
    from .interior_leaders import (
        interior_rates_each,
        interior_rates_of,
        noise_aware_cost,
        rate_condition,
        spending_rate,
    )
    from .kernels import line_totals
    from .key_players import (
        SETTLE,
        budgets_after_leaving,
        exposure_imposed,
        exposure_relief,
        harm_imposed,
        key_players,
    )
    from .leader_kernels import noise_aware_on_path
    from .leader_regret import PROBES, _Answers
    from .leaders import choose_rates, pigouvian_weights
    from .loss import LossOperator
    from .mechanisms import (
        MECHANISMS,
        Mechanism,
        budget_limited,
        equilibrium_along,
        find_mechanism,
        fixed,
        mppfl,
        mppfl_exact,
        mppfl_noise_aware,
        one_hop,
        personalised,
        pigouvian,
        random,
        sarda_like,
        sarda_r,
        social_agnostic,
    )
    from .model import (
        LARGEST,
        Clients,
        Game,
        accuracy_term,
        compute_cost,
        cost_without_absent,
        make_game,
        noise_harm,
        privacy_cost,
        privacy_loss,
        server_cost,
        utility,
        wanted_loss,
    )
    from .natural_units import in_units, natural_units
    from .outcome import Outcome, evaluate, verify
    from .participation import gain_from_joining, settle_one_by_one, with_participation
    from .path import EXACT_BELOW, equilibria_at, pivoting_path, plain_path, response_path
    from .path_kernels import pivot
    from .personal_prices import personalised_budgets, personalised_compiled, personalised_plainly, personalised_prices
    from .plan import AlongLine, Horizon, Participation, Plan, Stored, Terms, check_plan, plan_of_rounds, rounds_up_to
    from .presets import PRESETS, PresetName, draw_clients, preset
    from .rates import RateCondition, rising_rates
    from .resting_at_bounds import cheaper_at_bounds, least_costs, rates_worth_trying
    from .settling import led_by, settle_together
    from .settling_kernels import who_moves
    from .solve import Solution, as_mechanism, checked, doubts_about, follow, follows, solve
    from .welfare import (
        SocialOptima,
        price_of_anarchy,
        social_optimum,
        total_welfare,
        unbounded_optimal_welfare,
        welfare,
    )

export_lazily(__name__)
