"""What came out."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .cases import Case, aggregations_of, model_of, prepare, split_of
    from .experiment import PURPOSES, Experiment, differences, flat_values
    from .experiment_file import experiment_from, read_experiment
    from .experiment_game import (
        clients_of,
        game_on,
        game_without_data,
        mechanism_of,
        network_of,
        propagation_of,
        require_capped_clients,
        solve_all,
        within_bounds,
    )
    from .experiment_tables import (
        FAMILY_OPTIONS,
        OF_CONFIG,
        TABLES,
        Family,
        GameTerms,
        LedgerChoice,
        Network,
        Output,
        Training,
        keys_of,
        plain_table,
    )
    from .figures import comparison_figure
    from .live import EXPERIMENT, POINTER, LiveRun, Marks, is_run, marks_of, read_live
    from .live_ledger import LiveAccounts, copied_ledger, log_of
    from .provenance import Provenance, commit_of, fingerprint, provenance_here
    from .run import PER_ACCOUNT, Accounts, Run
    from .run_folder import SUMMARY, find_runs, load_run, require_folder
    from .store import Store
    from .tables import comparison_cells, comparison_rows, comparison_table
    from .toml_text import toml_value, write_toml
    from .tracking import scalars, tracking
    from .train import BY_ORDERS, train

export_lazily(__name__)
