"""What others' uploads reveal about a client."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .attackers import Attack, attack_by_field
    from .attribute_file import read_values
    from .calibration import (
        Calibration,
        RankCorrelation,
        calibrate,
        friend_slope_interval,
        least_wrong_index,
        public_part,
        spearman,
    )
    from .couplings import friendships, is_forest
    from .exposure import DENSE_LIMIT, exposure, r_bound, r_leak, r_model, read_attribute, require_dense
    from .external import ExternalColumns, external_columns
    from .field_at_scale import (
        field_at_scale,
        leak_at_scale,
        leave_one_out_at_scale,
        leave_one_out_means,
        marginal_at_scale,
        slopes_at_scale,
        walk_of,
    )
    from .field_likelihood import BETAS, exact_surface, surface_at_scale
    from .gaussian_field import FieldFit, field_kernel, fit_field, graph_modes, leave_one_out
    from .homophily import Correlation, _by_distance, _by_link, homophily
    from .ising_tree import (
        IsingTree,
        pair_information,
        random_ising_tree,
        sample_ising_tree,
        tree_information,
        tree_logits,
    )
    from .leak_estimate import leak_estimator
    from .leak_gradient import LeakModel, leak_model, leak_model_of, saturating_level
    from .leakage_priced import (
        _next_share,
        _rate_of_total,
        leakage_frontier,
        leakage_priced,
        least_leakage,
        price_leakage,
    )
    from .least_leak import LeastLeak, least_leak
    from .neighbour import audit_neighbour, clopper_pearson
    from .protection import protect
    from .signals import Signals, client_release, declared_signals
    from .who_leaks import WhoLeaks, who_leaks

export_lazily(__name__)
