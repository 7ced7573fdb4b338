"""An experiment file as a ready Flower app, for server and client (alone: what the app of `deploy init` imports)."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from mppfl.data import ClientData, fixed_features, load_dataset
from mppfl.device import to_device
from mppfl.errors import BadFile, BadInput, UnknownClient
from mppfl.experiment import model_of, network_of, prepare, read_experiment, split_of
from mppfl.files import write_whole
from mppfl.flower.identity import NODE_KEY, NodeSettings, Registry, node_of, read_node
from mppfl.flower.state import ENDED
from mppfl.flower.strategy import PricedFedAvg
from mppfl.flower.upload import PrivateUpload
from mppfl.flower.wire import OF_PROTECTION, OF_TRAINING, ClientTerms, Vector, terms_in, vector_of
from mppfl.spec import Experiment
from mppfl.training import (
    ClientSlot,
    Descent,
    FlatModel,
    GradientNoise,
    Table,
    TrainingConfig,
    batches_with_augmentation,
    evaluate,
    flat_model,
    local_update,
    local_work,
    stream,
    table_for,
)

SIMULATION_KEY = "nodes"  # of the run's configuration: folder with the settings of simulated nodes


def deployed_experiment(path: str | Path) -> Experiment:
    """The experiment in the file, if it describes one training. Refuses several: nodes have one ledger each."""
    experiment = read_experiment(path)
    for name in ("mechanisms", "seeds", "aggregations"):
        if (listed := len(getattr(experiment, name))) > 1:
            raise BadInput(f"{path}: a deployment is one training, and {name} lists {listed}. Keep one of them.")
    for name in ("file", "epsilon_cap", "epsilon_caps"):
        if getattr(experiment.ledger, name):
            raise BadInput(f"{path}: nodes keep ledgers of their own with caps in ρ. Leave ledger.{name} out.")
    return experiment


def to_arrays(model: FlatModel, vector: Vector) -> ArrayRecord:
    """A flat vector as Flower carries it, by the names of the model's parameters."""
    parts = model.parts(torch.from_numpy(np.ascontiguousarray(vector)))
    return ArrayRecord(OrderedDict((name, Array(np.ascontiguousarray(part.numpy()))) for name, part in parts.items()))


def first_model(model: FlatModel, config: TrainingConfig) -> Vector:
    """The weights before the first round, in the precision of the configuration."""
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    weights: Vector = model.initial_weights(config.stream_seed).to(dtype).numpy()
    return weights


def _limit_threads() -> None:
    """One thread per process by default: many nodes on one machine would only wait for each other."""
    torch.set_num_threads(int(os.environ.get("MPPFL_NODE_THREADS", "1")))


# ---- the client -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class ClientSide:
    """What one client needs: the table of examples with its own rows, its position, and how to train.

    position  of the client in the split, which decides its stream of batches as in training on one machine
    """

    data: ClientData
    position: int
    config: TrainingConfig
    model: FlatModel

    @property
    def num_examples(self) -> int:
        return len(self.data.members[self.position])


def experiment_client(bundled: Path | None = None) -> ClientApp:
    """A Flower client that trains as its experiment file says: the node's own, or the one `bundled` with the app."""
    app, side_here = ClientApp(), partial(side_of, bundled=bundled)
    upload = PrivateUpload(
        lambda context: side_here(context).num_examples,
        _settings_of,
        trains_privately=lambda context: _trained_privately(side_here(context).config),
        fits=lambda terms, context: _trains_as(terms, side_here(context).config),
    )

    @app.train(mods=[upload])
    def train(message: Message, context: Context) -> Message:
        arrays: Any = message.content["arrays"]
        side = side_here(context)
        trained = _trained_model(side, vector_of(arrays), terms_in(message.content))
        metrics = MetricRecord({"num-examples": side.num_examples})
        return Message(RecordDict({"arrays": to_arrays(side.model, trained), "metrics": metrics}), reply_to=message)

    return app


def _settings_of(context: Context) -> NodeSettings:
    """The node's own settings; simulated nodes have a folder of them, by partition."""
    folder, partition = context.run_config.get(SIMULATION_KEY), context.node_config.get("partition-id")
    if NODE_KEY not in context.node_config and folder and partition is not None:
        return read_node(Path(str(folder)) / str(partition) / "node.toml")
    return node_of(context)


def side_of(context: Context, bundled: Path | None = None) -> ClientSide:
    """The client's data and training. Paths in the run's configuration are the server's and are not used."""
    node = _settings_of(context)
    path = node.experiment or bundled
    remedy = 'Copy experiment.toml and what it names to this machine, and write into node.toml: experiment = "...".'
    if path is None:
        raise BadInput(f"client {node.client!r} has no experiment file. {remedy}")
    try:
        return _side(str(path), node.client)
    except BadFile as cause:
        raise BadFile(f"client {node.client!r} cannot train: {cause} {remedy}") from cause


@lru_cache(maxsize=64)
def _side(path: str, client: str) -> ClientSide:
    _limit_threads()
    return client_side(deployed_experiment(path), client)


def client_side(experiment: Experiment, client: str) -> ClientSide:
    """The data of one client and its training. The game and other clients' costs are not needed here."""
    source, seed = experiment.data, experiment.seeds[0]
    dataset = fixed_features(load_dataset(source.name, source.folder, source=source.source), source.features)
    data = split_of(experiment, dataset, network_of(experiment.game), seed)
    if client not in data.names:
        raise UnknownClient(
            f"client {client!r} is none of the experiment's {data.num_clients}. Check the node's settings."
        )
    config = replace(experiment.training, seed=experiment.seed_of("training", seed))
    return ClientSide(data, data.names.index(client), config, flat_model(model_of(experiment, data)))


def _trains_as(terms: ClientTerms, config: TrainingConfig) -> bool:
    """Whether training under the client's own configuration is what the terms describe.

    The ledger is charged by the terms, and noise is added under the configuration: a difference would be a release at
    another cost than was booked, or without any noise.
    """
    same_work = all(getattr(terms, name) == getattr(config, name) for name in OF_TRAINING)
    return same_work and all(getattr(terms, name) == getattr(config.protection, name) for name in OF_PROTECTION)


def _trained_privately(config: TrainingConfig) -> tuple[str, ...]:
    """The release whose noise this app adds to gradients."""
    return (str(config.protection.release),) if config.protection.clips_examples else ()


def _trained_model(side: ClientSide, start: Vector, terms: ClientTerms) -> Vector:
    """The model after this client's round, from the same random streams as in training on one machine.

    Where noise is on gradients it is added here, in every step, at the cost that was just reserved:
    PrivateUpload has made sure that the terms name this very protection (`_trains_as`).
    """
    config, data, position = side.config, side.data, side.position
    work = local_work(side.num_examples, config, data.names[position])
    batches = batches_with_augmentation(config, work, data.members[position], terms.round_index, position)
    noise = None
    if config.protection.clips_examples:
        noise = GradientNoise(config.protection, work, terms.budget, client=data.names[position])
    weights = torch.from_numpy(start.copy())
    layers_seed = int(stream(config.stream_seed, "layers", terms.round_index, position).integers(2**62))
    cpu = torch.device("cpu")
    table = table_for(config, to_device(data.features, cpu).to(weights.dtype), to_device(data.labels, cpu))
    side.model.module.to(weights.dtype)
    descent = Descent(config.learning_rate, config.momentum)
    update = local_update(side.model, ClientSlot(weights, batches, noise, layers_seed), table, descent)
    trained: Vector = (weights + update.to(weights.dtype)).numpy()
    return trained


# ---- the server -----------------------------------------------------------------------------------------------------


def experiment_server() -> ServerApp:
    """A Flower server that trains as its experiment file says.

    The run's configuration names the files: `experiment`, `state` (a folder of the server's own), `keys` (the registry;
    empty trusts the names that nodes declare), and the timeouts `wait-seconds` and `round-seconds`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        error = ""
        try:
            _serve(grid, context)
        except BaseException as fault:
            error = f"{type(fault).__name__}: {fault}"
            raise
        finally:  # whoever started the app reads it: Flower's own status says only that it failed
            if state := str(context.run_config.get("state", "")):
                write_whole(Path(state) / ENDED, json.dumps({"error": " ".join(error.split())}).encode())

    return app


def _serve(grid: Grid, context: Context) -> None:
    settings = context.run_config
    path, state, keys = (str(settings.get(name, "")) for name in ("experiment", "state", "keys"))
    if not path or not state:
        raise BadInput("the run's configuration must name `experiment` and `state`. `mppfl deploy local` does that.")
    _limit_threads()
    (case,) = prepare(deployed_experiment(path))
    model = flat_model(model_of(case.experiment, case.data))
    strategy = PricedFedAvg(
        case.solution.plan,
        case.data.names,
        case.config,
        folder=Path(state),
        registry=Registry.read(keys) if keys else None,
        num_examples=dict(zip(case.data.names, map(len, case.data.members), strict=True)),
        data_fingerprint=case.data.fingerprint,
        name=case.name,
        wait_seconds=float(settings.get("wait-seconds", 120.0)),
    )
    weights = first_model(model, case.config)
    cpu, dtype = torch.device("cpu"), torch.from_numpy(weights).dtype
    model.module.to(dtype)
    test = Table(to_device(case.data.test_features, cpu).to(dtype), to_device(case.data.test_labels, cpu))

    def evaluate_round(round_index: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round_index == 0:
            return None
        accuracy, loss = evaluate(model, torch.from_numpy(vector_of(arrays)), test)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    timeout = float(settings.get("round-seconds", 600.0))
    strategy.start(grid, to_arrays(model, weights), timeout=timeout, evaluate_fn=evaluate_round)
