"""MPPFL on Flower: a strategy that prices every round, a client mod that keeps each client's own account.

    PricedFedAvg    the server's strategy: a plan's terms for each client, checks, payments, a checkpoint every round
    PrivateUpload   the client's mod: clips, checks its own cap, pays its own ledger, adds noise, reports

Needs `pip install mppfl[flower]`. docs/deploy.md shows both in an app.
"""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .accounts import Accounts, Entry, Settlement
    from .certificates import CA, CERTIFICATE, KEY, make_certificates, make_node_key
    from .client import experiment_client, side_of
    from .experiment_case import client_side, deployed_experiment, first_model, to_arrays
    from .federation import Ended, Federation, OnRound, Tell, environment, node_line
    from .honesty import HonestUpload, fault_of, honest_upload
    from .identity import Attendance, Registry, pem_of
    from .layout import Layout, make_nodes, write_app
    from .local import deploy_local, deploy_simulated
    from .mod import PrivateUpload
    from .node import NodeSettings, read_node
    from .processes import Process, free_ports
    from .reconcile import differences_from_ledgers, differences_from_reports
    from .server import experiment_server
    from .server_state import ServerFolder, ServerState
    from .status import status_of
    from .strategy import PricedFedAvg, work_of
    from .vector import digest_of, vector_of
    from .watchful import WatchfulGrid
    from .wire import REPORT, WHO, RoundTerms, has_terms, report_in, terms_in, with_terms

export_lazily(__name__)
