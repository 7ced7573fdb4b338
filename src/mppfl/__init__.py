"""mppfl prices privacy on a social network. The names here are the public interface, loaded on first use.

Public sub-packages: `mppfl.flower`, `mppfl.leakage`, `mppfl.privacy.audit`.
"""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily, package_version

if TYPE_CHECKING:
    from mppfl.data import ClientData, client_data, load_dataset, split_dataset
    from mppfl.errors import BadFile, BadInput, BudgetExceeded, MppflError, NoEquilibrium, NotConverged
    from mppfl.experiment import Run, load_run, read_experiment, run_experiment, run_from_records
    from mppfl.experiment.report import write_report
    from mppfl.game import (
        Clients,
        Game,
        Horizon,
        Mechanism,
        Outcome,
        Plan,
        RoundTerms,
        Solution,
        compare,
        draw_clients,
        load_plan,
        load_solution,
        make_game,
        plan_from_rounds,
        read_clients,
        respond,
        solve,
        sweep,
    )
    from mppfl.network import (
        SocialGraph,
        exposure_sources,
        graph_from_edges,
        graph_from_matrix,
        random_graph,
        read_graph,
    )
    from mppfl.privacy import Protection, ReleaseCost, release_updates
    from mppfl.privacy.ledger import PrivacyLedger
    from mppfl.spec import Experiment, GameSpec, TrainingConfig
    from mppfl.training import (
        RoundRecord,
        TrainingJob,
        load_weights,
        make_model,
        train_many,
        train_rounds,
    )

__version__ = package_version()

export_lazily(__name__)
