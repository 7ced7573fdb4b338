"""The client app of an experiment: local training as on one machine, behind PrivateUpload."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from mppfl.errors import BadFile, BadInput
from mppfl.flower.experiment_case import ClientSide, client_side, deployed_experiment, one_thread, to_arrays
from mppfl.flower.mod import PrivateUpload
from mppfl.flower.node import NODE_KEY, NodeSettings, read_node
from mppfl.flower.vector import Vector, vector_of
from mppfl.flower.wire import RoundTerms, terms_in
from mppfl.network import to_device
from mppfl.training import (
    ClientSlot,
    Descent,
    GradientNoise,
    TrainingConfig,
    batches_with_augmentation,
    local_update,
    local_work,
    stream,
    table_for,
)

SAME = ("privacy", "noise", "local_epochs", "num_steps", "batch_size")  # in the terms and in the configuration
SIMULATION_KEY = "nodes"  # of the run's configuration: where simulated nodes keep their settings


def experiment_client(bundled: Path | None = None) -> ClientApp:
    """A Flower client that trains as its experiment file says: the node's own, or the one that came with the app."""
    app = ClientApp()
    upload = PrivateUpload(
        lambda context: side_of(context, bundled).num_examples,
        settings_of,
        trains_privately=lambda context: (side_of(context, bundled).config.privacy,),
        fits=lambda terms, context: trains_as(terms, side_of(context, bundled).config),
    )

    @app.train(mods=[upload])
    def train(message: Message, context: Context) -> Message:
        arrays: Any = message.content["arrays"]
        side = side_of(context, bundled)
        trained = trained_model(side, vector_of(arrays), message.content)
        content = RecordDict({"arrays": to_arrays(side.model, trained)})
        content["metrics"] = MetricRecord({"num-examples": side.num_examples})
        return Message(content, reply_to=message)

    return app


def settings_of(context: Context) -> NodeSettings:
    """The node's own settings; simulated nodes have a folder of them, by partition."""
    path = context.node_config.get(NODE_KEY)
    if isinstance(path, str):
        return read_node(path)
    folder, partition = context.run_config.get(SIMULATION_KEY), context.node_config.get("partition-id")
    if not folder or partition is None:
        raise BadInput(
            f"the node configuration has no {NODE_KEY}. Start with --node-config '{NODE_KEY}=\"node.toml\"'."
        )
    return read_node(Path(str(folder)) / str(partition) / "node.toml")


def side_of(context: Context, bundled: Path | None = None) -> ClientSide:
    """The client's data and training. The run's configuration has no say: paths in it are those of the server."""
    node = settings_of(context)
    path = node.experiment or bundled
    remedy = 'Copy experiment.toml and what it names to this machine, and write into node.toml: experiment = "...".'
    if path is None:
        raise BadInput(f"client {node.client!r} has no experiment file. {remedy}")
    try:
        return _side(str(path), node.client)
    except BadFile as cause:
        raise BadFile(f"client {node.client!r} cannot train: {cause} {remedy}") from cause


def trains_as(terms: RoundTerms, config: TrainingConfig) -> bool:
    """Whether training under the client's own configuration is what the terms are about.

    The ledger is charged by the terms, and noise is made under the configuration: a difference would be a release at
    another cost than was booked, or without any noise.
    """
    wanted = (config.mechanism.adjacency, *(getattr(config, name) for name in SAME))
    return (terms.adjacency, *(getattr(terms, name) for name in SAME)) == wanted


@lru_cache(maxsize=64)
def _side(path: str, client: str) -> ClientSide:
    one_thread()
    return client_side(deployed_experiment(path), client)


def trained_model(side: ClientSide, start: Vector, content: RecordDict) -> Vector:
    """The model after this client's round, from the same streams as in training on one machine.

    Where the mechanism puts noise on gradients it is added here, in every step, at the cost that was just reserved:
    PrivateUpload has made sure that the terms name this very mechanism (`trains_as`).
    """
    config, data, at = side.config, side.data, side.position
    terms = terms_in(content)
    work = local_work(side.num_examples, config, data.names[at])
    batches = batches_with_augmentation(config, work, data.members[at], terms.round_index, at)
    noise = None
    if config.mechanism.noise_on != "update":
        noise = GradientNoise(
            config.mechanism, terms.clip_norm, work, config.noise, terms.budget, client=data.names[at]
        )
    weights = torch.from_numpy(start.copy())
    layers_seed = int(stream(config.seed, "layers", terms.round_index, at).integers(2**62))
    slot = ClientSlot(weights, batches, noise, layers_seed)
    here = torch.device("cpu")
    table = table_for(config, to_device(data.features, here).to(weights.dtype), to_device(data.labels, here))
    model = side.model
    model.module.to(weights.dtype)
    update = local_update(model, slot, table, Descent(config.learning_rate, config.momentum))
    trained: Vector = (weights + update).numpy()
    return trained
