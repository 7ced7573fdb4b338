"""Processes that end when they should: each in a group of its own, stopped together, gone with whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from types import FrameType

from mppfl.errors import MppflError

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
