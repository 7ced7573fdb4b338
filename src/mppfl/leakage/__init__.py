"""What others' uploads reveal about a client."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .calibrate import (
        Calibration,
        RankCorrelation,
        calibrate,
        friend_slope_interval,
        least_wrong_index,
        public_part,
        read_values,
        spearman,
    )
    from .external import ExternalColumns, external_columns
    from .field import (
        FieldFit,
        field_kernel,
        fit_field,
        friendships,
        graph_modes,
        leave_one_out,
        saturating_level,
    )
    from .homophily import Correlation, homophily
    from .levels import (
        DENSE_LIMIT,
        LeakModel,
        WhoLeaks,
        leak_estimator,
        leak_model,
        leak_model_of,
        protect,
        r_bound,
        r_leak,
        r_model,
        read_attribute,
        require_dense,
        who_leaks,
    )
    from .neighbour_audit import (
        Attack,
        IsingTree,
        Signals,
        attack_by_field,
        audit_neighbour,
        client_release,
        clopper_pearson,
        declared_signals,
        random_ising_tree,
        sample_ising_tree,
        tree_logits,
    )
    from .pricing import LeastLeak, leakage_priced, least_leak, least_leakage, price_leakage

export_lazily(__name__)
