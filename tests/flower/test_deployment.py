"""Whole federations of real processes on loopback, with TLS and node keys; some of them are killed."""

import contextlib
import os
import signal
import subprocess
import time
from importlib.util import find_spec

import numpy as np
import pytest

from mppfl import flower
from mppfl.experiment import read_experiment, run_experiment
from mppfl.privacy.ledger import PrivacyLedger
from tests.flower.deployments import deployed, events, make_app, processes_of

pytestmark = pytest.mark.flower


def refused_node(layout, address, key):
    """What becomes of a node that comes with this key, or without one: its exit code, or None if it stays."""
    (port,) = flower.free_ports(1)
    line = flower.node_line(layout.node(0), address, layout.certificates / "ca.crt", port)
    at = line.index("--auth-supernode-private-key")
    line[at : at + 2] = [] if key is None else ["--auth-supernode-private-key", str(key)]
    environment = flower.Federation(layout, [], print).environment(f"stranger-{port}")
    node = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=-2, start_new_session=True)
    try:
        return node.wait(90)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def test_five_nodes_with_tls_and_keys_train_five_rounds_and_all_accounts_agree(tmp_path):
    layout = make_app(tmp_path / "app", 5, 5)
    flower.make_node_key(tmp_path / "stranger")
    with deployed(layout) as deployment:
        address = deployment.pids()["address"]
        for key in (None, tmp_path / "stranger"):  # meanwhile strangers knock
            assert refused_node(layout, address, key) not in (None, 0)
        assert deployment.wait() == 0, deployment.said()
    status = flower.status_of(layout.app, tmp_path / "payments.csv")
    assert (status.rounds_done, status.differences, status.ledgers_read) == (5, (), 5)
    assert {client.paid for client in status.clients} == {5}
    for position, client in enumerate(status.clients):
        with PrivacyLedger.open(layout.node(position) / "ledger.sqlite") as ledger:
            assert ledger.spent(client.client) == client.spent  # to the last bit
            assert ledger.verify() == 5
            assert not ledger.is_simulation
    assert status.accuracy > 0.3
    assert len((tmp_path / "payments.csv").read_text().splitlines()) == 1 + 25
    assert processes_of(layout.app) == []


def test_a_killed_node_and_dishonest_ones_are_named_and_the_others_go_on(tmp_path):
    layout = make_app(tmp_path / "app", 6, 5, mischievous=True)
    flower.make_nodes(layout, flower.deployed_experiment(layout.experiment))
    for position, mischief in ((1, "hang 2"), (3, "nan 1"), (4, "long 2")):
        (layout.node(position) / "mischief").write_text(mischief)
    wrong, capped = layout.node(2) / "node.toml", layout.node(5) / "node.toml"
    with deployed(layout) as deployment:
        first = deployment.pids()["nodes"]["1"]
        # The launch has looked at the settings by now, and the app is not handed over yet.
        wrong.write_text(wrong.read_text().replace('client = "2"', 'client = "0"'))  # another's name with its own key
        capped.write_text(capped.read_text().replace("cap = 1.0", "cap = 1e-12"))
        deployment.until(lambda: [event for event in events(layout, 1) if event["round_index"] == 2])
        os.killpg(first, signal.SIGKILL)  # its budget for round 2 is charged, its upload is not stored
        assert deployment.wait() == 0, deployment.said()
        assert "the node of client 1 ended with code -9" in deployment.log.read_text()
    with flower.Accounts.open(flower.ServerFolder(layout.server).accounts, read_only=True) as accounts:
        rows, owed = accounts.entries(), accounts.owed()
    states = {name: [row.state for row in rows if row.client == name] for name in owed}
    first_reason = {row.client: row.reason for row in reversed(rows) if row.reason}
    assert states["0"] == ["paid"] * 5
    # The killed node: named, its charged budget counted, not paid; the rounds that follow go on without it.
    assert states["1"][:2] == ["paid", "lost"]
    assert "paid" not in states["1"][2:]
    charged = {event["round_index"]: event["budget"] for event in events(layout, 1)}
    assert [row.spent for row in rows if (row.client, row.round_index) == ("1", 2)] == [charged[2]]
    # Another's name under its own key, NaN, too long, over its cap: named, and no such upload is ever taken.
    assert (states["2"], states["3"], states["4"]) == (["rejected"] * 5, ["rejected"] * 5, ["paid"] + ["rejected"] * 4)
    assert states["5"] == ["refused"] * 5
    for name, words in {"2": "declares to be '0'", "3": "NaN", "4": "honest", "5": "over the cap"}.items():
        assert words in first_reason[name]
    assert events(layout, 2) == []
    assert owed["2"] == owed["3"] == owed["5"] == 0.0
    for gap in flower.status_of(layout.app).differences:
        assert gap.is_harmless, gap  # the server may presume too much, never too little
    assert processes_of(layout.app) == []


def test_a_superlink_killed_between_and_in_rounds_costs_nobody_anything_twice(tmp_path):
    layout = make_app(tmp_path / "app", 3, 4)
    with deployed(layout) as deployment:
        deployment.until(lambda: deployment.rounds_done() == 1)  # between two rounds
        os.kill(deployment.pids()["superlink"], signal.SIGKILL)
        assert deployment.wait() == 1
        assert "mppfl deploy resume" in deployment.said()
    assert processes_of(layout.app) == []
    with deployed(layout, "resume") as deployment:
        deployment.until(lambda: any(event["round_index"] == 3 for at in range(3) for event in events(layout, at)))
        assert deployment.rounds_done() == 2  # in the third round: somebody has released, nothing is booked
        os.kill(deployment.pids()["superlink"], signal.SIGKILL)
        assert deployment.wait() == 1
    before = {at: [dict(event) for event in events(layout, at)] for at in range(3)}
    with deployed(layout, "resume") as deployment:
        assert deployment.wait() == 0, deployment.said()
    status = flower.status_of(layout.app)
    assert (status.rounds_done, status.num_rounds) == (4, 4)
    assert status.differences == ()
    for at in range(3):
        mine = events(layout, at)
        assert [event["round_index"] for event in mine] == [1, 2, 3, 4]  # once each
        for was, now in zip(before[at], mine, strict=False):
            assert (was["budget"], was["attempt"]) == (now["budget"], now["attempt"])
    with flower.Accounts.open(flower.ServerFolder(layout.server).accounts, read_only=True) as accounts:
        entries = accounts.entries()
    assert len(entries) == 12
    assert {entry.state for entry in entries} <= {"paid", "lost"}  # killed between charge and upload, one may be lost
    assert processes_of(layout.app) == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_launcher_in_a_round_nothing_it_started_is_left_and_the_round_is_repeated(tmp_path, ending):
    layout = make_app(tmp_path / "app", 2, 2)
    with deployed(layout) as deployment:
        deployment.until(lambda: any(event["round_index"] == 1 for at in range(2) for event in events(layout, at)))
        assert deployment.rounds_done() == 0  # somebody has released, nothing is booked
        deployment.process.send_signal(ending)
        killed = ending == signal.SIGKILL
        assert deployment.wait() == (-ending if killed else 130), deployment.said()
        deadline = time.monotonic() + (300 if killed else 0)
        while processes_of(layout.app) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert processes_of(layout.app) == []
    if killed:  # the server may have settled the round before it went
        return
    assert deployment.rounds_done() == 0
    with flower.Accounts.open(flower.ServerFolder(layout.server).accounts, read_only=True) as accounts:
        assert {entry.state for entry in accounts.entries()} == {"asked"}
    with deployed(layout, "resume") as deployment:
        assert deployment.wait() == 0, deployment.said()
    assert flower.status_of(layout.app).differences == ()
    assert [[event["round_index"] for event in events(layout, at)] for at in range(2)] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("fault", ["import", "run"])
def test_a_server_app_that_fails_ends_the_deployment_with_one_line(tmp_path, fault):
    layout = make_app(tmp_path / "app", 2, 2)
    server = layout.app / "federation" / "server_app.py"
    if fault == "import":
        server.write_text("import no_such_module_anywhere\n\napp = no_such_module_anywhere.app\n")
    else:
        layout.experiment.write_text(layout.experiment.read_text().replace('noise = "gaussian"', 'noise = "simulated"'))
    with deployed(layout) as deployment:
        assert deployment.wait() == 1
    assert ("the server app died" if fault == "import" else "noise='simulated' protects nobody") in deployment.said()
    assert processes_of(layout.app) == []


@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation engine: pip install 'flwr[simulation]'")
def test_fifty_simulated_clients_run_the_same_app_reach_the_same_model_and_each_keep_an_account(tmp_path):
    layout = make_app(tmp_path / "app", 50, 2, noiseless=True)
    state = flower.deploy_local(layout.app, simulated=True)
    assert state.rounds_done == 2
    (run,) = run_experiment(read_experiment(layout.experiment))
    assert np.abs(state.handed_out - run.weights).max() <= 1e-6
    assert np.abs(run.weights).max() > 0.01
    status = flower.status_of(layout.app)
    assert (status.rounds_done, status.differences, status.ledgers_read) == (2, (), 50)
    assert all(each.paid == 2 for each in status.clients)
    assert all(len(events(layout, at)) == 2 for at in range(50))
    assert processes_of(layout.app) == []
