"""The game: what privacy costs clients, what the server pays, and how both respond to each other."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .clients import PRESETS, draw_clients, preset, read_clients
    from .compare import COMPARED, Comparison, Convention, Row, Summary, compare, summarise, sweep
    from .convex import personal_budgets, pigouvian_weights
    from .device import DeviceLoss, solution_bytes
    from .equilibrium import (
        PATH_BELOW,
        Followers,
        Path,
        Response,
        equilibrium_at,
        equilibrium_response,
        response_path,
    )
    from .key_players import SETTLE, budgets_after_leaving, exposure_imposed, exposure_relief, harm_imposed, key_players
    from .leader import Answers, budgets_along, choose_rates, cost_of, noise_aware_cost
    from .loss import LossOperator
    from .mechanisms import (
        MECHANISMS,
        Mechanism,
        as_mechanism,
        budget_limited,
        dp_fedavg,
        find_mechanism,
        mechanism,
        mppfl,
        mppfl_exact,
        mppfl_noise_aware,
        mppfl_secure_sum,
        one_hop,
        personal_prices,
        personalised,
        personalised_secure_sum,
        pigouvian,
        random,
        respond,
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
        noise_of_sum,
        privacy_cost,
        privacy_loss,
        server_cost,
        utility,
        wanted_loss,
    )
    from .outcome import Outcome, Verification, evaluate, verify
    from .participation import gain_from_participating, settled_plan
    from .plan import (
        Against,
        AlongLine,
        Horizon,
        Participation,
        Plan,
        RoundTerms,
        Stored,
        check_plan,
        load_plan,
        plan_from_rounds,
        rounds_up_to,
    )
    from .solve import Solution, doubts_about, follows, load_solution, solve
    from .welfare import (
        SocialOptima,
        price_of_anarchy,
        social_optimum,
        total_welfare,
        unbounded_optimal_welfare,
        welfare,
    )

export_lazily(__name__)
