"""An experiment file as a deployment: the one training it describes, seen by the server, and by one client."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from mppfl.data import ClientData, fixed_features, load_data
from mppfl.errors import BadFile, BadInput, UnknownClient
from mppfl.experiment import Case, Experiment, aggregations_of, model_of, network_of, prepare, read_experiment, split_of
from mppfl.files import write_whole
from mppfl.flower.identity import NODE_KEY, NodeSettings, Registry, read_node
from mppfl.flower.state import ENDED
from mppfl.flower.strategy import PricedFedAvg
from mppfl.flower.upload import PrivateUpload
from mppfl.flower.wire import RoundTerms, Vector, terms_in, vector_of
from mppfl.network import to_device
from mppfl.training import (
    Descent,
    FlatModel,
    GradientNoise,
    Lane,
    Table,
    TrainingConfig,
    evaluate,
    flat_model,
    local_update,
    local_work,
    looks_of_round,
    stream,
    table_for,
)

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

    from mppfl.flower.wire import Vector


def deployed_experiment(path: str | Path) -> Experiment:
    """The experiment in the file, if it describes one training. Refuses several: nodes have one ledger each."""
    experiment = read_experiment(path)
    for name, many in (
        ("mechanisms", experiment.mechanisms),
        ("seeds", experiment.seeds),
        ("aggregations", aggregations_of(experiment)),
    ):
        if len(many) > 1:
            raise BadInput(f"{path}: a deployment is one training, and {name} lists {len(many)}. Keep one of them.")
    return experiment


def server_case(experiment: Experiment) -> Case:
    """What the server needs: plan, names, configuration, and the test examples."""
    (case,) = prepare(experiment)
    return case


@dataclass(frozen=True, eq=False, slots=True)
class ClientSide:
    """What one client needs: its own rows of the table of examples, its place, and how to train.

    position  of the client in the split, which decides its stream of batches as in training on one machine
    """

    data: ClientData
    position: int
    config: TrainingConfig
    model: FlatModel

    @property
    def num_examples(self) -> int:
        return len(self.data.members[self.position])


def client_side(experiment: Experiment, client: str) -> ClientSide:
    """The data of one client and its training. The game, and what others' privacy costs them, play no part here."""
    chosen, seed = experiment.data, experiment.seeds[0]
    dataset = fixed_features(load_data(chosen.name, chosen.folder, source=chosen.source), chosen.features)
    data = split_of(experiment, dataset, network_of(experiment, seed), seed)
    if client not in data.names:
        raise UnknownClient(
            f"client {client!r} is none of the experiment's {data.num_clients}. Check the node's settings."
        )
    config = replace(experiment.training.config, seed=experiment.seed_of("training", seed))
    return ClientSide(data, data.names.index(client), config, flat_model(model_of(experiment, data)))


def to_arrays(model: FlatModel, vector: Vector) -> ArrayRecord:
    """A flat vector as Flower carries it, by the names of the model's parameters."""
    from collections import OrderedDict

    from flwr.app import Array, ArrayRecord

    parts = model.parts(torch.from_numpy(np.ascontiguousarray(vector)))
    return ArrayRecord(OrderedDict((name, Array(np.ascontiguousarray(part.numpy()))) for name, part in parts.items()))


def first_model(model: FlatModel, config: TrainingConfig) -> Vector:
    """Where training starts, in the precision of the configuration."""
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    weights: Vector = model.initial_weights(config.seed).to(dtype).numpy()
    return weights


def one_thread() -> None:
    """Many nodes on one machine, each with as many threads as there are cores, would only wait for each other."""
    torch.set_num_threads(int(os.environ.get("MPPFL_NODE_THREADS", "1")))


# ---- The client app of an experiment: local training as on one machine, behind PrivateUpload ------------------------

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
    batches = looks_of_round(config, work, data.members[at], terms.round_index, at)
    noise = None
    if config.mechanism.noise_on != "update":
        noise = GradientNoise(
            config.mechanism, terms.clip_norm, work, config.noise, terms.budget, client=data.names[at]
        )
    weights = torch.from_numpy(start.copy())
    layers_seed = int(stream(config.seed, "layers", terms.round_index, at).integers(2**62))
    lane = Lane(weights, batches, noise, layers_seed)
    here = torch.device("cpu")
    table = table_for(config, to_device(data.features, here).to(weights.dtype), to_device(data.labels, here))
    model = side.model
    model.module.to(weights.dtype)
    update = local_update(model, lane, table, Descent(config.learning_rate, config.momentum))
    trained: Vector = (weights + update).numpy()
    return trained


# ---- The server app of an experiment: its plan priced round by round, its model tested after every round ------------


def experiment_server() -> ServerApp:
    """A Flower server that trains as its experiment file says.

    The run's configuration names the files: `experiment`, `state` (a folder of the server's own), `keys` (the registry;
    empty believes the names that nodes declare), and `wait-seconds` and `round-seconds`, the patience with nodes.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        state = str(context.run_config.get("state", ""))
        try:
            _serve(grid, context)
        except BaseException as fault:
            _note_end(state, f"{type(fault).__name__}: {fault}")
            raise
        _note_end(state, "")

    return app


def _note_end(state: str, error: str) -> None:
    """Leaves word of how the app ended for whoever started it: Flower's own status says only that it failed."""
    if state:
        write_whole(Path(state) / ENDED, json.dumps({"error": " ".join(error.split())}).encode())


def _serve(grid: Grid, context: Context) -> None:
    given = context.run_config
    path, state = str(given.get("experiment", "")), str(given.get("state", ""))
    if not path or not state:
        raise BadInput("the run's configuration must name `experiment` and `state`. `mppfl deploy local` does that.")
    one_thread()
    case = server_case(deployed_experiment(path))
    model = flat_model(model_of(case.experiment, case.data))
    keys = str(given.get("keys", ""))
    strategy = PricedFedAvg(
        case.solution.plan,
        case.data.names,
        case.config,
        folder=Path(state),
        registry=Registry.read(keys) if keys else None,
        num_examples=dict(zip(case.data.names, map(len, case.data.members), strict=True)),
        data_fingerprint=case.data.fingerprint,
        name=case.name,
        wait_seconds=float(given.get("wait-seconds", 120.0)),
    )
    weights = first_model(model, case.config)
    here, dtype = torch.device("cpu"), torch.from_numpy(weights).dtype
    model.module.to(dtype)
    test = Table(to_device(case.data.test_features, here).to(dtype), to_device(case.data.test_labels, here))

    def tested(round_index: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round_index == 0:
            return None
        accuracy, loss = evaluate(model, torch.from_numpy(vector_of(arrays)), test)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    strategy.start(
        grid,
        to_arrays(model, weights),
        timeout=float(given.get("round-seconds", 600.0)),
        evaluate_fn=tested,
    )
