"""mppfl prices privacy on a social network. The names here are the public interface, loaded on first use."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from mppfl.data import ClientData, client_data, load_data, split
    from mppfl.errors import BadInput, MppflError, NoEquilibrium, NotConverged
    from mppfl.experiment import Experiment, Run, load_run, read_experiment, run_from_records, train
    from mppfl.experiment.report import write_report
    from mppfl.game import (
        Clients,
        Game,
        Horizon,
        Plan,
        Solution,
        Terms,
        compare,
        draw_clients,
        evaluate,
        follow,
        make_game,
        plan_of_rounds,
        read_clients,
        social_optimum,
        solve,
        verify,
    )
    from mppfl.network import (
        Propagation,
        SocialGraph,
        attribute,
        describe,
        graph_from_links,
        graph_from_matrix,
        propagate,
        random_graph,
        read_graph,
    )
    from mppfl.privacy import privacy_mechanism, release
    from mppfl.privacy.ledger import PrivacyLedger
    from mppfl.training import Arm, TrainingConfig, make_model, rounds_together, training_rounds


export_lazily(__name__)
