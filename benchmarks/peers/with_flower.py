"""The same round by Flower's simulation: one single-threaded worker per core."""

import os
from pathlib import Path

import torch
from lap import Stopwatch, Workload, hand_in, task_from_command_line
from torch_models import layers_of, put

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}


def main() -> None:
    task = task_from_command_line()
    here = str(Path(__file__).parent)
    os.environ |= QUIET | {"PYTHONPATH": here, "RACE_WORKLOAD": str(task.workload)}  # before Flower reads them
    import flower_client
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    torch.set_num_threads(1)
    workload, clock = Workload.load(task.workload), Stopwatch()
    clients = workload.num_clients
    module = torch.nn.Sequential(*layers_of(workload.model))
    put(workload.weights, module)
    server, latest = ServerApp(), {}

    @server.main()
    def serve(grid, context) -> None:
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )

        def after_round(number, arrays):
            if number == 0:
                clock.start()
            else:
                clock.lap(last=number == task.rounds)
                latest["arrays"] = arrays
            return MetricRecord({"seen": 0.0})

        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(module.state_dict()),
            num_rounds=task.rounds,
            evaluate_fn=after_round,
        )

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=clients,
        backend_config={
            "init_args": {"num_cpus": task.cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    weights = {name: value.numpy() for name, value in latest["arrays"].to_torch_state_dict().items()}
    hand_in(task, clock, weights, "flwr", "ray", "torch", "numpy", note=f"{task.cores} workers of 1 thread")


if __name__ == "__main__":
    main()
