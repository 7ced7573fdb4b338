"""What a budget means."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .accounting import (
        added_delta,
        composed_epsilon,
        epsilon_with_extra,
        history_epsilon,
        poisson_epsilon,
        poisson_noise_multiplier,
        require_sampling,
        to_dp_event,
    )
    from .cost import ReleaseCost, answer_cost, cost_of_round, round_cost, std_with_grid
    from .device_release import release_on_device
    from .exact_draw import cumulated_weights, exact_draw
    from .mechanism import MECHANISMS, Adjacency, LocalWork, PrivacyMechanism, Unit, privacy_mechanism, require_budget
    from .noise import (
        NOISE_KINDS,
        Floats,
        NoiseKind,
        add_noise,
        discrete_gaussian_table,
        doubt,
        grid_of,
        noisy_on_grid,
        price_of_noise,
        system_normals,
        system_words,
    )
    from .release import NORM_GUARD, clip_rows, noisy_answer, release
    from .zcdp import METHODS, epsilon, gaussian_epsilon, rdp_epsilon, zcdp_epsilon

export_lazily(__name__)
