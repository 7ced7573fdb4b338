"""MPPFL on Flower: a strategy that prices every round, and a client mod that keeps each client's own account.

    PricedFedAvg    the server's strategy: a plan's terms for each client, checks, payments, a checkpoint every round
    PrivateUpload   the client's mod: clips, checks its own cap, charges its own ledger, adds noise, reports
    Registry        which key belongs to which client, on the server
    NodeSettings    a client's own caps and what it accepts, on its machine

Needs `pip install mppfl[flower]`. docs/deploy.md shows both in an app.
"""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .accounts import Accounts, Entry, Settlement
    from .app import (
        client_side,
        deployed_experiment,
        experiment_client,
        experiment_server,
        first_model,
        side_of,
        to_arrays,
    )
    from .identity import RELEASES, NodeSettings, Registry, pem_of, read_node
    from .layout import CA, CERTIFICATE, KEY, Layout, make_certificates, make_node_key, make_nodes, write_app
    from .local import Federation, deploy_local, free_ports, node_line, run_arguments, start_process
    from .state import ServerFolder, ServerState
    from .status import Status, differences_from_ledgers, differences_from_reports, status_of
    from .strategy import HonestUpload, PricedFedAvg, fault_of, honest_upload
    from .upload import PrivateUpload
    from .wire import REPORT, WHO, ClientTerms, digest_of, report_in, terms_in, vector_of, with_terms, work_of

export_lazily(__name__)
