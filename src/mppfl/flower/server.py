"""The server app of an experiment: its plan priced round by round, its model tested after every round."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from mppfl.errors import BadInput
from mppfl.experiment import model_of
from mppfl.files import write_whole
from mppfl.flower.experiment_case import deployed_experiment, first_model, one_thread, server_case, to_arrays
from mppfl.flower.identity import Registry
from mppfl.flower.server_state import ENDED
from mppfl.flower.strategy import PricedFedAvg
from mppfl.flower.vector import vector_of
from mppfl.network import to_device
from mppfl.training import Table, evaluate, flat_model


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
