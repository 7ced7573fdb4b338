"""A federation inside one process: Flower's own messages and apps, and a grid that hands them over by value."""

import copy
import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from mppfl.flower import ClientTerms, NodeSettings, PrivateUpload
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy import Protection
from mppfl.training import TrainingConfig


def arrays(*values: float, dtype: Any = np.float32) -> ArrayRecord:
    """A model of two arrays."""
    numbers = np.array(values, dtype=dtype)
    return ArrayRecord(OrderedDict(first=Array(numbers[:2].copy()), rest=Array(numbers[2:].copy())))


def moved(record: ArrayRecord, by: Any) -> ArrayRecord:
    """The model with every entry moved."""
    shift = np.asarray(by)
    found, start = OrderedDict(), 0
    for name, array in record.items():
        part = array.numpy()
        step = shift if shift.ndim == 0 else shift[start : start + part.size].reshape(part.shape)
        found[name] = Array((part + step).astype(part.dtype))
        start += part.size
    return ArrayRecord(found)


def plan_of(budgets, num_rounds=3, price=2.0):
    """The same budgets in every round."""
    rows = np.asarray(budgets, dtype=np.float64)
    return plan_from_rounds("by hand", [RoundTerms(t + 1, price, price, rows) for t in range(num_rounds)])


def config_of(protection=None, **changes) -> TrainingConfig:
    """Whole updates under noise of the operating system; `protection` and `changes` replace single values."""
    whole = {"unit": "client", "clip_norm": 1.0, "noise": "gaussian"}
    base = {"protection": Protection(**(whole | (protection or {}))), "aggregation": "uniform"}
    return TrainingConfig(**(base | changes))


def terms(**changes: Any) -> ClientTerms:
    """What a server asks of ann in the first round of a run."""
    base = {
        "run": "run-1", "round_index": 1, "client": "ann", "budget": 0.5, "pays": 1.0, "unit": "client",
        "release": "update", "batches": "whole", "adjacency": "replace_one", "clip_norm": 1.0, "noise": "gaussian",
        "local_epochs": 1, "num_steps": 1, "batch_size": 1,
    }  # fmt: skip
    return ClientTerms(**(base | changes))


def private_app(node: NodeSettings, train=None, num_examples=10, **more) -> ClientApp:
    """A client app with PrivateUpload around a training function from arrays to arrays."""
    app = ClientApp()

    @app.train(mods=[PrivateUpload(num_examples, node, **more)])
    def fit(message: Message, context: Context) -> Message:
        model: Any = message.content["arrays"]
        found = moved(model, 0.1) if train is None else train(model)
        content = RecordDict({"arrays": found, "metrics": MetricRecord({"num-examples": 99, "train_loss": 0.1234})})
        return Message(content, reply_to=message)

    return app


@dataclass
class FakeGrid(Grid):
    """Nodes by id, each with an app, a key, and perhaps a trouble.

    trouble    of a node: "dead" answers as the SuperLink does for a node that is gone, "silent" never answers,
               "restarted" loses the message and comes back
    alter      of a node: what it does to its reply before it is sent
    node_config  of a node, as the command line gives it
    sent, got  every message and reply, as they travelled
    """

    apps: dict[int, ClientApp]
    keys: dict[int, bytes] = field(default_factory=dict)
    trouble: dict[int, str] = field(default_factory=dict)
    alter: dict[int, Any] = field(default_factory=dict)
    node_config: dict[int, Any] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    got: list[Message] = field(default_factory=list)
    ready: list[Message] = field(default_factory=list)
    activated: dict[int, str] = field(default_factory=dict)
    numbers: Any = field(default_factory=itertools.count)

    def get_nodes(self):
        keys, since = self.keys, self.activated
        parts = ((node, keys.get(node, b""), since.get(node, "first")) for node in self.apps)
        return [SimpleNamespace(node_id=node, public_key=key, last_activated_at=when) for node, key, when in parts]

    def get_node_ids(self):
        return list(self.apps)

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def handled(self, message):
        node = message.metadata.dst_node_id
        trouble = self.trouble.get(node)
        if trouble == "silent":
            return []
        if trouble == "restarted":  # it took the message, died, and came back without it
            self.activated[node] = "second"
            return []
        if trouble == "dead":
            reply = Message(Error(5, "Node Unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink signs it
            return [reply]
        context = Context(7, node, self.node_config.get(node, {}), RecordDict(), {})
        reply = self.apps[node](message, context)
        return [self.alter[node](reply) if node in self.alter else reply]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {next(self.numbers)}"
            self.sent.append(copy.deepcopy(message))
            self.ready += self.handled(copy.deepcopy(message))
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        found = [reply for reply in self.ready if reply.metadata.reply_to_message_id in set(message_ids)]
        self.ready = [reply for reply in self.ready if reply not in found]
        self.got += found
        return found[::-1]  # the order of replies means nothing

    create_message = set_run = run = None  # a grid must have them, and nobody asks
