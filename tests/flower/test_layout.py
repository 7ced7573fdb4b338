"""The folder of a deployment: what is changed or moved is noticed before anybody spends anything."""

import errno
import json
import shutil
import sys
import time
import tomllib
from pathlib import Path

import pytest

from mppfl.errors import BadInput, MppflError, UnknownClient
from mppfl.flower import (
    CA,
    CERTIFICATE,
    KEY,
    Federation,
    Layout,
    ServerFolder,
    deploy_local,
    deployed_experiment,
    make_certificates,
    make_node_key,
    make_nodes,
    node_line,
    read_node,
    run_arguments,
    start_process,
    write_app,
)
from tests.homes import home


def written(folder):
    write_app(folder, 2, 2)
    return Layout(folder)


def made(layout):
    return make_nodes(layout, deployed_experiment(layout.experiment))


@pytest.fixture
def layout(tmp_path):
    """An app for two clients whose nodes have been made."""
    layout = written(tmp_path / "app")
    made(layout)
    return layout


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("cap = 1.0", "", "cap=1.0, .*cap=none"),
        ("cap = 1.0", 'caps = { "1" = 0.5 }\ncap = 1.0', "nodes/1/node.toml has cap=1.0, .*cap=0.5"),
        ("cap = 1.0", "epsilon_cap = 3.0", r"caps in ρ\. Leave ledger\.epsilon_cap out"),
        ("cap = 1.0", 'file = "people.sqlite"', r"nodes keep ledgers of their own .* Leave ledger\.file out"),
        ("[protection]", '[protection]\nunit = "client"', r"accept=\['gradient'\], .*accept=\['update'\]"),
        ('mechanism = "mppfl"', 'mechanism = "noiseless"', "without_noise=False, .*without_noise=True"),
    ],
)
def test_an_experiment_that_was_changed_is_not_run_with_nodes_that_go_by_the_old_one(layout, before, after, said):
    text = layout.experiment.read_text()
    assert before in text
    layout.experiment.write_text(text.replace(before, after))
    with pytest.raises(BadInput, match=said) as refused:
        made(layout)
    assert str(layout.app) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nodes_have_keys_of_their_own_and_keep_them_and_what_a_client_adds_when_made_again(layout):
    def files():
        return {path: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()}

    assert len(set(json.loads(layout.keys.read_text()).values())) == 2
    assert (layout.node(0) / "key").stat().st_mode & 0o077 == 0
    settings = layout.node(0) / "node.toml"
    text = settings.read_text().replace('"ledger.sqlite"', f'"{layout.node(0) / "ledger.sqlite"}"')  # also absolute
    settings.write_text(text + "cap_per_round = 0.1\n")
    kept = files()
    assert made(layout) == ["0", "1"]
    assert files() == kept


def test_a_deployment_that_is_moved_takes_its_ledgers_and_its_experiment_with_it(layout, tmp_path):
    assert str(tmp_path) not in (layout.node(1) / "node.toml").read_text()
    shutil.move(layout.app, tmp_path / "elsewhere")
    moved = Layout(tmp_path / "elsewhere")
    assert made(moved) == ["0", "1"]
    node = read_node(moved.node(1) / "node.toml")
    assert node.ledger == moved.node(1) / "ledger.sqlite"
    assert node.experiment.resolve() == moved.experiment.resolve()


@pytest.mark.parametrize("name", ["ledger", "experiment"])
def test_settings_that_lead_into_another_folder_are_refused(layout, tmp_path, name):
    settings = layout.node(1) / "node.toml"
    other = tmp_path / "other" / {"ledger": "ledger.sqlite", "experiment": "experiment.toml"}[name]
    kept = [line for line in settings.read_text().splitlines() if not line.startswith(f"{name} =")]
    settings.write_text("\n".join([*kept, f'{name} = "{other}"']))
    with pytest.raises(BadInput, match=f"nodes/1/node.toml has {name}={other}, which is not in this deployment"):
        made(layout)


def test_an_app_that_cannot_be_written_whole_leaves_nothing_behind(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "app"
    opened = Path.open

    def on_a_full_disk(path, *given, **more):
        if path.name == "server_app.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *given, **more)

    with monkeypatch.context() as full:
        full.setattr(Path, "open", on_a_full_disk)
        with pytest.raises(BadInput, match=r"server_app\.py could not be written \(No space"):
            write_app(folder)
    assert list(tmp_path.iterdir()) == []
    assert all(path.exists() for path in write_app(folder))
    (tmp_path / "federation").write_text("mine")
    with pytest.raises(BadInput, match=r"federation is a file where a folder is needed\. "):
        write_app(tmp_path)


# ---- keys and certificates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [("key", "key.pub"), ("key",), ("key.pub",)])
def test_a_lost_key_is_told_and_no_other_takes_its_place(layout, lost):
    for name in lost:
        (layout.node(1) / name).unlink()
    with pytest.raises(BadInput, match=rf"nodes/1/{lost[0]} is missing, the key of client '1'\. Restore it; or"):
        made(layout)
    assert not any((layout.node(1) / name).exists() for name in lost)


def test_a_key_that_is_not_the_registered_one_is_told_until_it_is_registered(layout):
    for name in ("key", "key.pub"):
        (layout.node(1) / name).unlink()
    public = make_node_key(layout.node(1) / "key")
    with pytest.raises(BadInput, match=r"key\.pub is not the key that .*keys\.json has for client '1'"):
        made(layout)
    registered = json.loads(layout.keys.read_text()) | {"1": f"{public} ann@home"}
    layout.keys.write_text(json.dumps(registered))
    assert made(layout) == ["0", "1"]


def test_of_two_who_make_certificates_in_one_folder_one_is_refused_before_it_changes_anything(tmp_path):
    make_certificates(tmp_path)
    (tmp_path / CA).unlink()  # as it is before the first has finished
    before = {name: (tmp_path / name).read_bytes() for name in (KEY, CERTIFICATE)}
    with pytest.raises(BadInput, match=r"server\.key exists already; a key is not written over"):
        make_certificates(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_launch_that_is_refused_leaves_nothing_behind(tmp_path):
    layout = written(tmp_path / "app")
    with pytest.raises(BadInput, match="--nodes 3, but the experiment has 2 clients"):
        deploy_local(layout.app, 3)
    with pytest.raises(BadInput, match="nothing has been run there yet"):
        deploy_local(layout.app, resume=True)
    with ServerFolder(layout.folder).locked(), pytest.raises(MppflError, match="another server is at work there"):
        deploy_local(layout.app)  # while the first is at work
    layout.experiment.write_text(layout.experiment.read_text() + 'caps = {"two" = 0.5}\n')
    with pytest.raises(UnknownClient, match=r"ledger\.caps: client 'two' is not in the network"):
        made(layout)
    assert not layout.folder.exists()  # neither keys nor the lock are left


# ---- where it lies ----------------------------------------------------------------------------------------------


def test_a_path_in_any_script_reaches_flower_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(home(Federation), "program", lambda name: name)
    layout = written(tmp_path / "föderation 😀 it's \\ here")
    (settings,) = [line for line in node_line(layout.node(0), "", tmp_path, 1) if line.startswith("mppfl-node=")]
    assert tomllib.loads(settings) == {"mppfl-node": str(layout.node(0) / "node.toml")}
    (config,) = [part for part in run_arguments(layout, {}) if part.startswith("experiment=")]
    assert tomllib.loads(config.replace(" state=", "\nstate=")) == {
        "experiment": str(layout.experiment),
        "state": str(layout.server),
    }


@pytest.mark.parametrize("name", ['my "best" app', "two\nlines"])
def test_a_path_that_flower_cannot_take_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(BadInput, match=r"Flower takes no path with .* in it\. Choose another folder\.$"):
        write_app(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    write_app(tmp_path / "app")
    shutil.move(tmp_path / "app", tmp_path / name)
    with pytest.raises(BadInput, match="Flower takes no path"):
        deploy_local(tmp_path / name)


# A SuperLink that starts its server app in a session of its own, and a node that, asked to stop, looks who is left.
SUPERLINK = "setsid sh -c 'echo $$ > app.pid; exec sleep 300' & echo $$ > link.pid; wait"
NODE = """
left() { [ -n "$(tr -d '\\0' < /proc/$(cat $1)/cmdline 2>/dev/null)" ] && echo $1 >> outlived; }
trap 'left app.pid; left link.pid; exit 0' TERM
touch ready
while :; do sleep 0.05; done
"""


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_the_servers_side_is_gone_before_any_node_is_asked_to_stop(tmp_path, monkeypatch):
    """Else the server app settles the round in flight without the nodes, and it is lost to everybody."""
    monkeypatch.chdir(tmp_path)
    federation = Federation(written(tmp_path / "app"), ["a"], lambda line: None)
    try:
        federation.superlink = start_process(["sh", "-c", SUPERLINK], tmp_path / "log", federation.environment())
        federation.nodes["a"] = start_process(["sh", "-c", NODE], tmp_path / "log", federation.environment("node-0"))
        deadline = time.monotonic() + 120
        while not all((tmp_path / name).exists() for name in ("app.pid", "link.pid", "ready")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        federation.stop()
    assert federation.nodes["a"].returncode == 0  # it was asked, and had the time to look
    assert not (tmp_path / "outlived").exists()


def test_a_launch_names_nodes_that_end_and_stops_when_none_is_left(tmp_path):
    lines = []
    federation = Federation(written(tmp_path / "app"), ["a", "b"], lines.append)
    for client in federation.clients:
        federation.nodes[client] = start_process(["sh", "-c", "exit 3"], tmp_path / "log", federation.environment("x"))
    with pytest.raises(MppflError, match=r"every node has ended.*mppfl deploy resume"):
        federation.watch(lambda facts: None)
    assert [line.split(";")[0] for line in lines if "client a" in line] == ["the node of client a ended with code 3"]
