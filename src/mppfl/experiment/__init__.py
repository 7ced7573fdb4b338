"""What came out."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from mppfl.spec import Experiment

    from .build import (
        Case,
        aggregations_of,
        model_of,
        prepare,
        require_capped_clients,
        split_of,
    )
    from .file import experiment_from, read_experiment
    from .layout import lay_out
    from .live import (
        LiveAccounts,
        LiveRun,
        is_run,
        marks_of,
        read_live,
    )
    from .play import (
        CONSTANTS,
        DRAWN_CLIENTS,
        build_game,
        clients_of,
        constant,
        game_on,
        mechanism_of,
        network_of,
        propagation_of,
        require_playable,
        solve_all,
        under,
    )
    from .provenance import Provenance, provenance_here
    from .run import COLUMNS, PrivacyAccounts, Run, comparison_cells, comparison_rows
    from .store import EXPERIMENT, POINTER, SUMMARY, find_runs, load_run, require_folder
    from .tracking import tracking
    from .train import run_experiment, run_from_records

export_lazily(__name__)
