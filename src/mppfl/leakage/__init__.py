"""What others' uploads reveal about a client."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .calibrate import (
        Calibration,
        Correlation,
        RankCorrelation,
        calibrate,
        homophily,
        least_wrong_index,
        public_part,
        read_values,
        spearman,
    )
    from .external import ExternalColumns, external_columns
    from .field import (
        FieldFit,
        NormalisedWalk,
        fit_field,
        fits_matrices,
        friend_moments,
        friendships,
        require_dense,
        walk_of,
    )
    from .levels import LeakModel, Levels, leak_model, protect, r_bound, r_model
    from .neighbour_audit import (
        Attack,
        IsingModel,
        Signals,
        attack_by_field,
        audit_neighbour,
        client_release,
        declared_signals,
        random_ising_tree,
    )
    from .pricing import LeastLeak, leakage_priced, least_leak, least_leakage, price_leakage

export_lazily(__name__)
