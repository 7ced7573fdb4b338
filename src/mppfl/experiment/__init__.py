"""What came out."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .build import (
        Case,
        aggregations_of,
        clients_of,
        game_on,
        game_without_data,
        mechanism_of,
        model_of,
        network_of,
        prepare,
        propagation_of,
        require_capped_clients,
        solve_all,
        split_of,
        within_bounds,
    )
    from .experiment import (
        TABLES,
        Experiment,
        Family,
        GameTerms,
        Network,
        experiment_from,
        keys_of,
        plain_table,
        read_experiment,
    )
    from .figures import comparison_figure
    from .layout import lay_out
    from .live import (
        LiveAccounts,
        LiveRun,
        Marks,
        copied_ledger,
        is_run,
        marks_of,
        read_live,
    )
    from .provenance import Provenance, provenance_here
    from .run import PrivacyAccounts, Run, comparison_cells, comparison_rows, comparison_table
    from .store import EXPERIMENT, POINTER, SUMMARY, find_runs, load_run, require_folder
    from .tracking import tracking
    from .train import run_experiment, run_from_records

export_lazily(__name__)
