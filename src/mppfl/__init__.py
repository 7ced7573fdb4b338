"""mppfl prices privacy on a social network. The names here are the public interface, loaded on first use."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from mppfl.data import ClientData, client_data, load_dataset, split_dataset
    from mppfl.errors import BadInput, MppflError, NoEquilibrium, NotConverged
    from mppfl.experiment import Experiment, Run, load_run, read_experiment, run_experiment, run_from_records
    from mppfl.experiment.report import write_report
    from mppfl.game import (
        Clients,
        Game,
        Horizon,
        Plan,
        RoundTerms,
        Solution,
        compare,
        draw_clients,
        evaluate,
        follow,
        make_game,
        plan_from_rounds,
        read_clients,
        social_optimum,
        solve,
        verify,
    )
    from mppfl.network import (
        Propagation,
        SocialGraph,
        describe,
        exposure_sources,
        graph_from_edges,
        graph_from_matrix,
        propagate,
        random_graph,
        read_graph,
    )
    from mppfl.privacy import privacy_mechanism, release_updates
    from mppfl.privacy.ledger import PrivacyLedger
    from mppfl.training import TrainingConfig, TrainingJob, make_model, train_many, train_rounds


export_lazily(__name__)
