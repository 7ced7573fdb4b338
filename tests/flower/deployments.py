"""Real deployments on loopback for tests: `mppfl deploy` in a process of its own, watched through its files."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from mppfl.errors import MppflError
from mppfl.flower import Layout, ServerFolder, write_app
from mppfl.privacy.ledger import PrivacyLedger

PATIENCE = 420.0  # seconds: a busy machine starts a client in ten

# A client app whose node may misbehave, as a word in the file `mischief` beside its settings says.
MISCHIEVOUS = """
import time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message
from mppfl.flower import experiment_client
from mppfl.privacy.ledger import PrivacyLedger

inner = experiment_client()
app = type(inner)(mods=[])


def mischief(message, context, call_next):
    path = Path(context.node_config["mppfl-node"]).with_name("mischief")
    word, first_round = path.read_text().split() if path.exists() else ["", "0"]
    if int(message.content["config"].get("server-round", 0)) < int(first_round):
        word = ""
    if word == "hang":  # after the charge, before the upload is stored
        PrivacyLedger.store_upload = lambda *given: time.sleep(600)
    reply = call_next(message, context)
    if reply.has_content() and "arrays" in reply.content:
        factor, shift = np.nan if word == "nan" else 1, np.float32(50 if word == "long" else 0)
        moved = {name: Array(each.numpy() * factor + shift) for name, each in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(moved) if word else reply.content["arrays"]
    return reply


@app.train(mods=[mischief])
def train(message, context):
    return inner(message, context)
"""


def make_app(folder, num_clients, num_rounds, *, noiseless=False, mischievous=False):
    """The app of `deploy init`, with its nodes not made yet."""
    write_app(folder, num_clients, num_rounds)
    layout = Layout(folder)
    if noiseless:  # and without the bounds that nobody keeps without noise
        text = layout.experiment.read_text().replace('mechanism = "mppfl"', 'mechanism = "noiseless"')
        layout.experiment.write_text(text.replace("total_epsilon = 4.0", "").replace("cap = 1.0", ""))
    if mischievous:
        (folder / "federation" / "client_app.py").write_text(MISCHIEVOUS)
    return layout


class Deployment:
    """`mppfl deploy local` or `resume` on an app."""

    def __init__(self, layout, what="local"):
        self.layout, self.what = layout, what
        line = [sys.executable, "-m", "mppfl", "deploy", what, str(layout.app)]
        self.log = layout.app / f"{what}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as out:
            # A shell that runs the tests in its background has them ignore Ctrl-C, and whatever they start with them.
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self.process = subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            finally:
                signal.signal(signal.SIGINT, before)

    def pids(self):
        """What the launch has noted of its processes, once it has."""
        return json.loads(self.until(lambda: self.layout.processes.exists() and self.layout.processes.read_text()))

    def rounds_done(self):
        state = ServerFolder(self.layout.server).state()
        return 0 if state is None else state.rounds_done

    def until(self, holds, patience=PATIENCE):
        """Waits until something holds, and returns it. Fails where the deployment ends before."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            found = holds()
            if found:
                return found
            if self.process.poll() is not None:
                raise AssertionError(f"the deployment ended early:\n{self.said()}")
            time.sleep(0.1)
        raise AssertionError(f"waited {patience} s in vain:\n{self.said()}")

    def wait(self, patience=PATIENCE):
        """The exit code."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {patience} s:\n{self.said()}") from None

    def said(self):
        return self.log.read_text("utf-8", "replace")[-3000:]

    def end(self):
        """However the test ended, nothing stays behind."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(40)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def deployed(layout, what="local"):
    deployment = Deployment(layout, what)
    try:
        yield deployment
    finally:
        deployment.end()


def events(layout, position):
    """The releases in one node's own ledger; none where it has no ledger yet, or is being made this very moment."""
    with suppress(MppflError), PrivacyLedger.open(layout.node(position) / "ledger.sqlite", read_only=True) as ledger:
        return list(ledger.events())
    return []


def processes_of(folder):
    """Living processes whose command line names the folder, or that belong to the group of one that does."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            with suppress(OSError):
                line = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
                if os.fsencode(folder) in line and (place / "stat").read_text().split(")")[1].split()[0] != "Z":
                    found.append(int(place.name))
    return found
