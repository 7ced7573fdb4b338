"""What a launch starts, and in which order it ends."""

import sys
import time

import pytest

from mppfl.flower import Federation, Layout, start_process, write_app

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
    write_app(tmp_path / "app", 2, 2)
    monkeypatch.chdir(tmp_path)
    federation = Federation(Layout(tmp_path / "app"), ["a"], lambda line: None)
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
