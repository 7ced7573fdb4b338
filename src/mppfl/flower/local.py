"""A whole federation on this machine: real processes on loopback, or clients simulated by Flower's own engine.

Every launch starts a SuperLink with an empty database. What must outlive it (the server's state and accounts, the
clients' ledgers) is in files of our own, and clients are known by their keys, so nothing depends on Flower's node ids.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from shutil import which
from types import FrameType
from typing import Any

from mppfl.errors import BadInput, MppflError
from mppfl.experiment import network_of
from mppfl.files import write_whole
from mppfl.flower.accounts import Accounts
from mppfl.flower.app import deployed_experiment
from mppfl.flower.layout import CA, CERTIFICATE, KEY, Layout, make_nodes, require_plain_path
from mppfl.flower.state import ENDED, ServerFolder, ServerState

LINK = "local"  # the SuperLink's name in Flower's own configuration
START_SECONDS = 90.0
STOP_SECONDS = 8.0  # a node that is asked to stop signs off from the SuperLink first
ASK_SECONDS = 60.0
MARK = "MPPFL_LAUNCH"  # environment variable of everything that a launch starts
SERVER_MARK = "MPPFL_LAUNCH_SERVER"  # of the SuperLink and what it starts, and of no node
PR_SET_PDEATHSIG = 1

Tell = Callable[[str], None]
OnRound = Callable[[dict[str, Any]], None]


def deploy_local(
    app: str | Path,
    num_nodes: int | None = None,
    *,
    resume: bool = False,
    simulated: bool = False,
    tell: Tell = lambda line: None,
    on_round: OnRound = lambda facts: None,
) -> ServerState:
    """Runs the app's experiment on this machine, stops everything that it started, and returns the server's state.

    With `simulated`, clients are computed by Flower's simulation engine: no nodes, no keys, names unchecked. Raises
    where the SuperLink, all nodes or the server app fail; the state stays, and `resume` goes on from it. What cannot be
    run is refused before anything is written.
    """
    layout = Layout(Path(app).absolute())
    require_plain_path(layout.app)
    experiment = deployed_experiment(layout.experiment)
    num_clients = network_of(experiment.game).num_clients
    if num_nodes is not None and num_nodes != num_clients:
        raise BadInput(
            f"--nodes {num_nodes}, but the experiment has {num_clients} clients. Leave it out, or change "
            f"game.num_clients in {layout.experiment}."
        )
    _require_runnable(layout, resume)
    with ServerFolder(layout.folder).locked(wait_seconds=0.0), _terminating_like_ctrl_c():
        _require_runnable(layout, resume)  # again: another launch may have begun, and ended, meanwhile
        federation = (SimulatedFederation if simulated else Federation)(layout, make_nodes(layout, experiment), tell)
        try:
            federation.start()
            return federation.watch(on_round)
        finally:
            federation.stop()


def _require_runnable(layout: Layout, resume: bool) -> None:
    """Raises where there is no run to resume, a run that must be resumed, a damaged file, or a ledger missing."""
    folder = quote(str(layout.app))
    server = ServerFolder(layout.server)
    state = server.state()
    server.notes()
    if state is None:
        if resume:
            raise BadInput(f"{layout.app}: nothing has been run there yet. Start with: mppfl deploy local {folder}")
        return
    if not resume:
        finished = state.rounds_done >= len(state.budgets)
        remedy = "Choose another folder" if finished else f"Go on with: mppfl deploy resume {folder}"
        raise BadInput(
            f"{layout.app} holds run {state.run!r} after round {state.rounds_done} of {len(state.budgets)}. {remedy}."
        )
    with Accounts.open(server.accounts, read_only=True) as accounts:
        paid = {entry.client for entry in accounts.entries(state.run) if entry.state == "paid"}
    for client, path in layout.ledgers(state.clients).items():
        if client in paid and not path.exists():  # its cap would count from 0 again
            raise BadInput(
                f"{path} is missing, the ledger of client {client!r}, which has released and was paid. Without it what "
                "was spent would be forgotten. Restore a copy."
            )


# ---- SuperLink and SuperNodes ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Federation:
    """SuperLink and SuperNodes of one launch."""

    layout: Layout
    clients: Sequence[str]
    tell: Tell
    superlink: subprocess.Popen[bytes] | None = None
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    ended_nodes: set[str] = field(default_factory=set)
    last_asked: float = field(default_factory=time.monotonic)
    mark: str = field(default_factory=lambda: secrets.token_hex(16))

    def start(self) -> None:
        """Starts the SuperLink, registers keys two at a time, starts the nodes, and submits the run."""
        layout, root, certificates = self.layout, self.layout.certificates / CA, self.layout.certificates
        self.ports = free_ports(1 + len(self.clients))
        self._start_superlink(
            f"root-certificates = {_quoted(str(root))}",
            *("--ssl-ca-certfile", str(root), "--ssl-certfile", str(certificates / CERTIFICATE)),
            *("--ssl-keyfile", str(certificates / KEY), "--enable-supernode-auth"),
        )
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._register, range(len(self.clients))))
        for position, client in enumerate(self.clients):
            line = node_line(layout.node(position), self.address, root, self.ports[1 + position])
            self.nodes[client] = start_process(line, self._node_log(client), self.environment(f"node-{position}"))
        self._note_processes()
        self.tell(f"started {len(self.nodes)} SuperNodes")
        self._submit({"keys": str(layout.keys)})

    def stop(self) -> None:
        """Stops everything that was started, the server's side first and at once.

        A server app that outlives its nodes would settle the round in flight without them, and nobody could repeat it.
        Killed, it leaves the round open, and `resume` gets the uploads that clients have stored.
        """
        _kill_marked(self.mark, SERVER_MARK)
        if self.superlink is not None:
            _signal_group(self.superlink, signal.SIGKILL)
            self.superlink.wait()
        for node in self.nodes.values():
            _signal_group(node, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for node in self.nodes.values():
            with suppress(subprocess.TimeoutExpired):
                node.wait(max(0.0, deadline - time.monotonic()))
        for node in self.nodes.values():
            _signal_group(node, signal.SIGKILL)  # also what a node that ended left behind in its group
            node.wait()
        _kill_marked(self.mark, MARK)
        self.layout.processes.unlink(missing_ok=True)

    def watch(self, on_round: OnRound) -> ServerState:
        """Reports finished rounds until the server app ends. Raises where it, the SuperLink or all nodes fail."""
        server = ServerFolder(self.layout.server)
        state = server.state()
        shown = 0 if state is None else state.rounds_done
        ended = self.layout.server / ENDED
        while True:
            error = json.loads(ended.read_text("utf-8"))["error"] if ended.exists() else None
            for facts in server.notes():
                if facts["round_index"] > shown and "accuracy" in facts:
                    shown = facts["round_index"]
                    on_round(facts)
            if error:
                raise MppflError(f"the server app failed: {error} Its log is in {self.layout.logs}.")
            if error == "":
                if (state := server.state()) is None:
                    raise MppflError(f"the server app ended without a state. Its log is in {self.layout.logs}.")
                return state
            if self._run_is_over() and not ended.exists():
                raise MppflError(f"the server app died. Its log is in {self.layout.logs}.")
            self._require_alive(shown)
            time.sleep(0.3)

    def _require_alive(self, rounds_done: int) -> None:
        """Names nodes that have ended; raises where the SuperLink or every node has."""
        remedy = f"Go on with: mppfl deploy resume {quote(str(self.layout.app))}"
        if self.superlink is not None and self.superlink.poll() is not None:
            log = self.layout.logs / "superlink.log"
            raise MppflError(f"the SuperLink died after round {rounds_done}; its log is {log}. {remedy}")
        for client, node in self.nodes.items():
            if node.poll() is not None and client not in self.ended_nodes:
                self.ended_nodes.add(client)
                _signal_group(node, signal.SIGKILL)  # whatever it started
                self.tell(
                    f"the node of client {client} ended with code {node.returncode}; rounds go on without it. Its log "
                    f"is {self._node_log(client)}"
                )
        if self.nodes and len(self.ended_nodes) == len(self.nodes):
            raise MppflError(f"every node has ended; their logs are in {self.layout.logs}. {remedy}")

    def _run_is_over(self) -> bool:
        """Whether Flower holds the run for ended: a server app that dies cannot say so itself.

        Flower's command takes seconds of computing, so it is asked once a minute.
        """
        if time.monotonic() - self.last_asked < ASK_SECONDS:
            return False
        self.last_asked = time.monotonic()
        try:
            runs = json.loads(self._flwr("list", LINK, "--format", "json"))["runs"]
            return bool(runs) and all(str(run["status"]).startswith("finished") for run in runs)
        except (ValueError, KeyError, TypeError):
            return False  # a SuperLink too busy to answer is asked again

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def _node_log(self, client: str) -> Path:
        return self.layout.logs / f"node-{list(self.clients).index(client)}.log"

    def _start_superlink(self, trust: str, *options: str) -> None:
        """Starts a SuperLink with an empty database, writes Flower's configuration for it, waits until it answers."""
        home, log, secure = self.layout.flower_home, self.layout.logs / "superlink.log", "--insecure" not in options
        home.mkdir(parents=True, exist_ok=True)
        connection = f'[superlink.{LINK}]\naddress = "{self.address}"\n{trust}\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "{LINK}"\n\n{connection}', encoding="utf-8")
        (self.layout.server / ENDED).unlink(missing_ok=True)
        for path in home.glob("superlink.db*"):
            path.unlink()
        self.tell(f"starting SuperLink on {self.address}, " + ("TLS and node keys on" if secure else "simulating"))
        line = [
            program("flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(self.ports[0]), "--database", str(home / "superlink.db")),
            "--disable-runtime-dependency-installation",
            *options,
        ]
        self.superlink = start_process(line, log, self.environment())
        context = ssl.create_default_context(cafile=str(self.layout.certificates / CA)) if secure else None
        health = f"{'https' if secure else 'http'}://{self.address}/health"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.superlink.poll() is not None:
                last_lines = log.read_text("utf-8", "replace").splitlines()[-3:]
                raise MppflError(f"the SuperLink did not start: {' '.join(' '.join(last_lines).split())[-400:]}")
            try:
                with urllib.request.urlopen(health, timeout=5, context=context):
                    return
            except OSError:
                time.sleep(0.2)
        raise MppflError(f"the SuperLink did not answer within {START_SECONDS:.0f} s. Its log is {log}.")

    def _submit(self, settings: Mapping[str, str], *options: str) -> None:
        """Hands the app to the SuperLink."""
        self._flwr(*run_arguments(self.layout, settings), *options, failure="Flower did not take the app")

    def _register(self, position: int) -> None:
        key = str(self.layout.node(position) / "key.pub")
        self._flwr("supernode", "register", key, LINK, failure=f"the key {key} could not be registered")

    def _flwr(self, *arguments: str, failure: str = "") -> str:
        """What Flower's own command prints. Raises where it fails and `failure` says what that means."""
        line, environment = [program("flwr"), *arguments], self.environment()
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=180)
        if failure and done.returncode != 0:
            frames = dict.fromkeys(map(ord, "│╭╮╰╯─"), " ")
            raise MppflError(f"{failure}: {' '.join((done.stdout + done.stderr).translate(frames).split())[-400:]}")
        return done.stdout

    def environment(self, home: str = "") -> dict[str, str]:
        """Environment of every program of this launch: no calls home, no downloads, and the launch's mark.

        home  folder of a node's own within Flower's; without one, the program is on the server's side
        """
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.layout.flower_home / home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            MARK: self.mark,
            **({} if home else {SERVER_MARK: self.mark}),
        }

    def _note_processes(self) -> None:
        """Writes down which processes belong to this launch, for `deploy status` and for people."""
        facts = {
            "launcher": os.getpid(),
            "superlink": None if self.superlink is None else self.superlink.pid,
            "address": self.address,
            "nodes": {client: node.pid for client, node in self.nodes.items()},
        }
        write_whole(self.layout.processes, json.dumps(facts, indent=2).encode())


class SimulatedFederation(Federation):
    """The same app, its clients computed by Flower's simulation engine; each has settings and a ledger of its own."""

    def start(self) -> None:
        """Starts the SuperLink and submits the run."""
        if find_spec("ray") is None:
            raise MppflError("Flower's simulation engine is not installed. Run: pip install 'flwr[simulation]'")
        self.ports = free_ports(1)
        self._start_superlink("insecure = true", "--insecure", "--simulation")
        self._note_processes()
        size = f"num-supernodes={len(self.clients)} client-resources-num-cpus=1"
        self._submit({"nodes": str(self.layout.folder / "nodes")}, "--federation-config", size)


def node_line(folder: Path, address: str, root_certificates: Path, port: int) -> list[str]:
    """The command that starts the SuperNode whose settings and key lie in `folder`."""
    settings = _quoted(str((folder / "node.toml").absolute()))
    return [
        program("flower-supernode"),
        *("--root-certificates", str(root_certificates), "--superlink", address),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--auth-supernode-private-key", str(folder / "key")),
        *("--node-config", f"mppfl-node={settings}"),
    ]


def run_arguments(layout: Layout, settings: Mapping[str, str]) -> list[str]:
    """The arguments of `flwr` that hand the app to the SuperLink."""
    config = {"experiment": str(layout.experiment), "state": str(layout.server), **settings}
    return ["run", str(layout.app), LINK, "--run-config", " ".join(f"{k}={_quoted(v)}" for k, v in config.items())]


def _quoted(text: str) -> str:
    """A text as TOML, which forbids JSON's \\ud800-style pairs for letters beyond ASCII."""
    return json.dumps(text, ensure_ascii=False)


def program(name: str) -> str:
    """The path of a program that comes with Flower."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else which(name)
    if path is None:
        raise MppflError(f"{name} was not found. Run: pip install 'mppfl[flower]'")
    return path


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now."""
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]


# ---- processes ------------------------------------------------------------------------------------------------------


def start_process(line: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a program in a process group of its own; on Linux it gets a SIGTERM when its parent is killed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(line),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # this program has no other threads when it starts others
        )


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Signals the program and all that it started, whether it still lives or not."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _kill_marked(mark: str, name: str) -> None:
    """Kills every process that has this launch's mark in its environment, and waits until it is gone.

    Flower starts some of its programs in sessions of their own, which no signal to a group reaches. The mark is random
    and inherited, so only what this launch started, directly or not, can have it. Needs /proc.
    """
    entry = f"{name}={mark}".encode()
    deadline = time.monotonic() + 10.0
    while sys.platform == "linux" and time.monotonic() < deadline:
        marked = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if entry in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                    marked.append(int(folder.name))
        if not marked:
            return
        for pid in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


@contextmanager
def _terminating_like_ctrl_c() -> Iterator[None]:
    """A request to terminate ends the block like Ctrl-C does, so that everything is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
