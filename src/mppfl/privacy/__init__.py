"""What a budget means."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .accounting import (
        METHODS,
        added_delta,
        composed_epsilon,
        epsilon,
        epsilon_with_extra,
        filter_room,
        gaussian_epsilon,
        history_deltas,
        history_epsilon,
        poisson_noise_of_plan,
        renyi_losses,
        require_sampling,
        to_dp_event,
    )
    from .attack import AttackRisk, attack_risk, risk_of_epsilon
    from .noise import (
        NOISE_KINDS,
        Floats,
        add_noise,
        cumulated_weights,
        discrete_gaussian_table,
        discrete_steps,
        doubt,
        exact_draw,
        grid_of,
        noisy_on_grid,
        price_of_noise,
        system_normals,
        system_words,
    )
    from .protection import Adjacency, LocalWork, NoiseKind, Protection, Trust, Unit, require_budget
    from .release import (
        NORM_GUARD,
        ReleaseCost,
        answer_cost,
        clip_and_count,
        clip_rows,
        noisy_answer,
        release_on_device,
        release_updates,
        round_cost,
        std_with_grid,
    )
    from .secure_sum import (
        GRID_IN_STDS,
        OpenedSum,
        SecureSum,
        SharedNoise,
        banded_square_root,
        grid_of_sum,
        hiding_shares,
        margin_of,
        noise_growth,
        noise_of_sampled_sum,
        noise_of_sum,
        opened_sum,
        rounding_margin,
        shared_noise_weights,
        sum_cost,
    )

export_lazily(__name__)
