"""An experiment file as a deployment: the one training it describes, seen by the server, and by one client."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mppfl.data import ClientData, fixed_features, load_data
from mppfl.errors import BadInput, UnknownClient
from mppfl.experiment import Case, Experiment, aggregations_of, model_of, network_of, prepare, read_experiment, split_of
from mppfl.training import FlatModel, TrainingConfig, flat_model

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

    from mppfl.flower.vector import Vector


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
