"""A whole federation on this machine: real processes on loopback, or clients simulated by Flower's own engine."""

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
from contextlib import contextmanager, suppress
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

GENTLE_SECONDS = 8.0  # a node that is asked to stop says goodbye to the SuperLink first
PR_SET_PDEATHSIG = 1
MARK = "MPPFL_LAUNCH"  # in the environment of everything that a launch starts
SERVER_MARK = "MPPFL_LAUNCH_SERVER"  # in that of the SuperLink and what it starts, and of no node


class Process:
    """A program that was started here, with everything it starts itself."""

    def __init__(self, name: str, line: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._running = subprocess.Popen(
                list(line),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  # this program has no other threads when it starts others
            )

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._running.poll()

    def signal_group(self, number: int) -> None:
        """To the program and all that it started, whether it still lives or not."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within so many seconds."""
        try:
            self._running.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self, lines: int = 3) -> str:
        """The end of its log, in one line."""
        text = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return " ".join(" ".join(line.split()) for line in text[-lines:])[-400:]


def stop_all(processes: Sequence[Process]) -> None:
    """Asks all to stop, then makes them: when this returns, none of them, nor of their groups, is left."""
    for process in processes:
        process.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + GENTLE_SECONDS
    for process in processes:
        process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.signal_group(signal.SIGKILL)  # also what a program that ended left behind in its group
        process.wait(5.0)


def kill_marked(mark: str, name: str = MARK) -> None:
    """Kills whatever carries this launch's mark in its environment, and waits until it is gone.

    Flower starts some of its programs in sessions of their own, which no signal to a group reaches. The mark is random
    and inherited, so only what this launch started, directly or not, can have it. Needs /proc.
    """
    deadline = time.monotonic() + 10.0
    while (left := _marked(mark, name)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _marked(mark: str, name: str) -> list[int]:
    wanted, found = f"{name}={mark}".encode(), []
    for place in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        with suppress(OSError):
            if wanted in (place / "environ").read_bytes().split(b"\0") and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found


def _die_with_parent() -> None:
    """Where the one who started it is killed outright, Linux sends the child a SIGTERM."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """A request to terminate ends the block like Ctrl-C does, so that what follows it is done."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def program(name: str) -> str:
    """The path of a program that comes with Flower."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else which(name)
    if found is None:
        raise MppflError(f"{name} was not found. Run: pip install 'mppfl[flower]'")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


# ---- SuperLink and SuperNodes of one launch: started, watched, kept alive, stopped ----------------------------------

# Every launch starts a SuperLink with an empty database. What has to outlive it, the server's state and accounts and the
# clients' ledgers, is in files of ours, and clients are known by their keys, so nothing is lost with Flower's node ids.

LINK = "local"  # the SuperLink's name in Flower's own configuration
START_SECONDS = 90.0
RESTART_SECONDS = 5.0
ASK_SECONDS = 60.0

Tell = Callable[[str], None]
OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a deployment ended: rounds done of how many, and where its files are."""

    run: str
    rounds_done: int
    num_rounds: int


@dataclass(slots=True)
class Federation:
    """SuperLink and SuperNodes of one launch."""

    layout: Layout
    clients: Sequence[str]
    tell: Tell
    superlink: Process | None = None
    nodes: dict[str, Process] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    dead_since: dict[str, float] = field(default_factory=dict)
    last_asked: float = field(default_factory=time.monotonic)
    mark: str = field(default_factory=lambda: secrets.token_hex(16))

    def start(self) -> None:
        """SuperLink, keys, nodes, and the run itself."""
        self.ports = free_ports(1 + len(self.clients))
        trust = f"root-certificates = {_quoted(str(self.layout.certificates / CA))}"
        _configure_flower(self.layout, self.ports[0], trust)
        (self.layout.server / ENDED).unlink(missing_ok=True)
        self.tell(f"starting SuperLink on 127.0.0.1:{self.ports[0]}, TLS and node keys on")
        certificates = self.layout.certificates
        self._start_superlink(
            *("--ssl-ca-certfile", str(certificates / CA)),
            *("--ssl-certfile", str(certificates / CERTIFICATE), "--ssl-keyfile", str(certificates / KEY)),
            "--enable-supernode-auth",
        )
        self._register()
        for client in self.clients:
            self.start_node(client)
        self._note_processes()
        self.tell(f"started {len(self.nodes)} SuperNodes")
        self._run({"keys": str(self.layout.keys)})

    def stop(self) -> None:
        """Everything that was started, the server's side first and at once.

        A server app that outlives its nodes would settle the round in flight without them, and nobody could repeat it.
        Killed, it leaves the round open, and `resume` gets the uploads that clients have stored.
        """
        kill_marked(self.mark, SERVER_MARK)
        if self.superlink is not None:
            self.superlink.signal_group(signal.SIGKILL)
            self.superlink.wait(5.0)
        stop_all(list(self.nodes.values()))
        kill_marked(self.mark)
        self.layout.processes.unlink(missing_ok=True)

    def watch(self, on_round: OnRound) -> Ended:
        """Until the server app ends. Nodes that die are started again; a SuperLink that dies ends the run."""
        server, shown = ServerFolder(self.layout.server), 0
        if (state := server.state()) is not None:
            shown = state.rounds_done
        while True:
            for facts in server.notes():
                if facts["round_index"] > shown and "accuracy" in facts:
                    shown = facts["round_index"]
                    on_round(facts)
            state = server.state()
            if (ended := self._ended()) is not None:
                if ended.get("error"):
                    raise MppflError(f"the server app failed: {ended['error']} Its log is in {self.layout.logs}.")
                if state is None:
                    raise MppflError(f"the server app ended without a state. Its log is in {self.layout.logs}.")
                return Ended(state.run, state.rounds_done, len(state.budgets))
            if self._is_time_to_ask() and self._ended_for_flower() and self._ended() is None:
                raise MppflError(f"the server app died. Its log is in {self.layout.logs}.")
            if self.superlink is not None and self.superlink.exit_code is not None:
                done = 0 if state is None else state.rounds_done
                raise MppflError(
                    f"the SuperLink died after round {done}; its log is {self.superlink.log}. "
                    f"Go on with: mppfl deploy resume {quote(str(self.layout.app))}"
                )
            self._keep_nodes_alive()
            time.sleep(0.3)

    def _ended(self) -> dict[str, Any] | None:
        path = self.layout.server / ENDED
        found: dict[str, Any] | None = json.loads(path.read_text("utf-8")) if path.exists() else None
        return found

    def _is_time_to_ask(self) -> bool:
        """Flower's command takes seconds of computing, so it is asked seldom."""
        due = time.monotonic() - self.last_asked > ASK_SECONDS
        if due:
            self.last_asked = time.monotonic()
        return due

    def _keep_nodes_alive(self) -> None:
        """Starts a dead node again, as often as it takes: the SuperLink refuses it until the old one is given up."""
        for client, process in list(self.nodes.items()):
            if process.exit_code is None:
                continue
            if client not in self.dead_since:
                self.dead_since[client] = time.monotonic()
                process.signal_group(signal.SIGKILL)
                self.tell(f"the node of client {client} ended with code {process.exit_code}; starting it again")
            elif time.monotonic() - self.dead_since[client] > RESTART_SECONDS:
                del self.dead_since[client]
                self.start_node(client)
                self._note_processes()

    def _start_superlink(self, *more: str) -> None:
        """A SuperLink with an empty database; returns when it answers."""
        home, log = self.layout.flower_home, self.layout.logs / "superlink.log"
        for rest in home.glob("superlink.db*"):
            rest.unlink()
        line = [
            program("flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(self.ports[0]), "--database", str(home / "superlink.db")),
            "--disable-runtime-dependency-installation",
            *more,
        ]
        self.superlink = Process("superlink", line, log, self.environment())
        secure = "--insecure" not in more
        context = ssl.create_default_context(cafile=str(self.layout.certificates / CA)) if secure else None
        address = f"{'https' if secure else 'http'}://127.0.0.1:{self.ports[0]}/health"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.superlink.exit_code is not None:
                raise MppflError(f"the SuperLink did not start: {self.superlink.last_words()}")
            try:
                with urllib.request.urlopen(address, timeout=5, context=context):
                    return
            except OSError:
                time.sleep(0.2)
        raise MppflError(f"the SuperLink did not answer within {START_SECONDS:.0f} s. Its log is {log}.")

    def _register(self) -> None:
        """Tells the SuperLink whose keys to accept, two at a time."""
        waiting = [self.layout.node(at) / "key.pub" for at in range(len(self.clients))]
        while waiting:
            now, waiting = waiting[:2], waiting[2:]
            lines = [[program("flwr"), "supernode", "register", str(key), LINK] for key in now]
            running = [
                subprocess.Popen(line, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                for line in lines
            ]
            for key, each in zip(now, running, strict=True):
                said, _ = each.communicate(timeout=START_SECONDS)
                if each.returncode != 0:
                    raise MppflError(f"the key {key} could not be registered: {' '.join(said.decode().split())[-300:]}")

    def start_node(self, client: str) -> None:
        """A SuperNode with its own key and settings."""
        position = list(self.clients).index(client)
        place = self.layout.node(position)
        line = node_line(place, f"127.0.0.1:{self.ports[0]}", self.layout.certificates / CA, self.ports[1 + position])
        env = self.environment(f"node-{position}")
        self.nodes[client] = Process(f"node {client}", line, self.layout.logs / f"node-{position}.log", env)

    def _run(self, more: Mapping[str, str], *options: str) -> None:
        """Hands the app to the SuperLink."""
        given = {"experiment": str(self.layout.experiment), "state": str(self.layout.server), **more}
        config = " ".join(f"{key}={_quoted(value)}" for key, value in given.items())
        line = [program("flwr"), "run", str(self.layout.app), LINK, "--run-config", config, *options]
        done = subprocess.run(line, env=self.environment(), capture_output=True, text=True, check=False, timeout=180)
        if done.returncode != 0:
            said = "".join(" " if sign in "│╭╮╰╯─" else sign for sign in done.stdout + done.stderr)
            raise MppflError(f"Flower did not take the app: {' '.join(said.split())[-400:]}")

    def _ended_for_flower(self) -> bool:
        """Whether Flower itself holds the run for ended: a server app that dies cannot leave word of it."""
        line = [program("flwr"), "list", LINK, "--format", "json"]
        done = subprocess.run(line, env=self.environment(), capture_output=True, text=True, check=False, timeout=120)
        try:
            runs = json.loads(done.stdout)["runs"]
            return bool(runs) and all(str(run["status"]).startswith("finished") for run in runs)
        except (ValueError, KeyError, TypeError):
            return False  # a SuperLink too busy to answer is asked again

    def environment(self, home: str = "") -> dict[str, str]:
        """That of every program of this launch, with the launch's mark; without a home, of one on the server's side."""
        marks = {MARK: self.mark} if home else {MARK: self.mark, SERVER_MARK: self.mark}
        return environment(self.layout, home) | marks

    def _note_processes(self) -> None:
        """Which processes belong to this launch, for `deploy status` and for people."""
        pids = {client: process.pid for client, process in self.nodes.items()}
        facts = {
            "launcher": os.getpid(),
            "superlink": None if self.superlink is None else self.superlink.pid,
            "address": f"127.0.0.1:{self.ports[0]}",
            "nodes": pids,
        }
        write_whole(self.layout.processes, json.dumps(facts, indent=2).encode())


def node_line(place: Path, address: str, root_certificates: Path, port: int) -> list[str]:
    """The command that starts the SuperNode whose settings and key lie in `place`."""
    settings = _quoted(str((place / "node.toml").absolute()))
    return [
        program("flower-supernode"),
        *("--root-certificates", str(root_certificates), "--superlink", address),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--auth-supernode-private-key", str(place / "key")),
        *("--node-config", f"mppfl-node={settings}"),
    ]


def environment(layout: Layout, home: str = "") -> dict[str, str]:
    """Flower's own folder inside the deployment, no calls home, no downloads; every node has a folder of its own."""
    found = dict(os.environ)
    found |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")]),  # Flower starts its own
        "FLWR_HOME": str(layout.flower_home / home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return found


def _quoted(text: str) -> str:
    """A text as TOML. JSON's own way to write what is not ASCII, two halves of a character, is forbidden there."""
    return json.dumps(text, ensure_ascii=False)


def _configure_flower(layout: Layout, port: int, trust: str) -> None:
    """Flower's own configuration: where the SuperLink is, and how it is trusted."""
    layout.flower_home.mkdir(parents=True, exist_ok=True)
    connection = f'[superlink.{LINK}]\naddress = "127.0.0.1:{port}"\n{trust}\n'
    text = f'[superlink]\ndefault = "{LINK}"\n\n{connection}'
    (layout.flower_home / "config.toml").write_text(text, encoding="utf-8")


class SimulatedFederation(Federation):
    """The same app, its clients computed by Flower's simulation engine; each has settings and a ledger of its own."""

    def start(self) -> None:
        """SuperLink and the run."""
        if find_spec("ray") is None:
            raise MppflError("Flower's simulation engine is not installed. Run: pip install 'flwr[simulation]'")
        self.ports = free_ports(1)
        _configure_flower(self.layout, self.ports[0], "insecure = true")
        (self.layout.server / ENDED).unlink(missing_ok=True)
        self.tell(f"starting a simulating SuperLink on 127.0.0.1:{self.ports[0]}")
        self._start_superlink("--insecure", "--simulation")
        self._note_processes()
        size = f"num-supernodes={len(self.clients)} client-resources-num-cpus=1"
        self._run({"nodes": str(self.layout.folder / "nodes")}, "--federation-config", size)


# ---- A whole federation on this machine: real processes on loopback, or clients simulated by Flower's own engine ----


def deploy_local(
    app: str | Path,
    num_nodes: int | None = None,
    *,
    resume: bool = False,
    tell: Tell = lambda line: None,
    on_round: OnRound = lambda facts: None,
) -> Ended:
    """Runs the app's experiment on this machine to its end and stops everything that it started, however it ends.

    Raises where the SuperLink dies or the server app fails; the state stays, and `resume` goes on from it.
    """
    with _prepared(app, resume, num_nodes) as (layout, clients):
        return _run(Federation(layout, clients, tell), on_round)


def deploy_simulated(
    app: str | Path,
    *,
    resume: bool = False,
    tell: Tell = lambda line: None,
    on_round: OnRound = lambda facts: None,
) -> Ended:
    """Runs the same app with clients that Flower's simulation engine computes: no nodes, no keys, names believed."""
    with _prepared(app, resume) as (layout, clients):
        return _run(SimulatedFederation(layout, clients, tell), on_round)


@contextmanager
def _prepared(app: str | Path, resume: bool, num_nodes: int | None = None) -> Iterator[tuple[Layout, list[str]]]:
    """The folder with everything in it that a launch needs, and the clients; nobody else's until the launch ends.

    Refuses what is not to be run, before anything is written. Looks again once the folder is locked: another launch may
    have begun, and ended, meanwhile.
    """
    layout = Layout(Path(app).absolute())
    require_plain_path(layout.app)
    experiment = deployed_experiment(layout.experiment)
    num_clients = network_of(experiment, experiment.seeds[0]).num_clients
    if num_nodes is not None and num_nodes != num_clients:
        raise BadInput(
            f"--nodes {num_nodes}, but the experiment has {num_clients} clients. Leave it out, or change "
            f"network.num_clients in {layout.experiment}."
        )
    _require_runnable(layout, resume)
    with ServerFolder(layout.folder).locked(wait_seconds=0.0):
        _require_runnable(layout, resume)
        yield layout, make_nodes(layout, experiment)


def _require_runnable(layout: Layout, resume: bool) -> None:
    """Raises where there is nothing to go on with, something that must be gone on with, or a ledger missing."""
    folder = quote(str(layout.app))
    state = _whole_state(ServerFolder(layout.server))
    if state is None and resume:
        raise BadInput(f"{layout.app}: nothing has been run there yet. Start with: mppfl deploy local {folder}")
    if state is not None and not resume:
        finished = state.rounds_done >= len(state.budgets)
        remedy = "Choose another folder" if finished else f"Go on with: mppfl deploy resume {folder}"
        raise BadInput(
            f"{layout.app} holds run {state.run!r} after round {state.rounds_done} of {len(state.budgets)}. {remedy}."
        )
    if state is not None:
        _require_ledgers(layout, state)


def _require_ledgers(layout: Layout, state: ServerState) -> None:
    """Raises where a client of this machine was paid and has no ledger: its cap would count from 0 again."""
    with Accounts.open(ServerFolder(layout.server).accounts, read_only=True) as accounts:
        paid = {entry.client for entry in accounts.entries(state.run) if entry.state == "paid"}
    for client, path in layout.ledgers(state.clients).items():
        if client in paid and not path.exists():
            raise BadInput(
                f"{path} is missing, the ledger of client {client!r}, which has released and was paid. Without it what "
                "was spent would be forgotten. Restore a copy."
            )


def _whole_state(server: ServerFolder) -> ServerState | None:
    """Where the server stands. Damage in its files is told here, before anything is started."""
    state = server.state()
    server.notes()
    if state is not None and server.accounts.exists():
        with Accounts.open(server.accounts, read_only=True) as accounts:
            accounts.entries(state.run)
    return state


def _run(federation: Federation, on_round: OnRound) -> Ended:
    with stopping_on_signals():
        try:
            federation.start()
            return federation.watch(on_round)
        finally:
            federation.stop()
