"""The same round by mppfl's engine, as it chooses it itself."""

from typing import Any

import numpy as np
import torch
from lap import Stopwatch, Workload, hand_in, task_from_command_line

from mppfl.privacy import Protection
from mppfl.training import (
    ClientSlot,
    TrainingConfig,
    WeightedMean,
    flat_model,
    flattened,
    make_model,
    server_step,
)
from mppfl.training.engines import Engine


def main() -> None:
    task = task_from_command_line()
    workload, clock = Workload.load(task.workload), Stopwatch()
    weights, engine = train(workload, task.rounds, clock, processes=task.cores)
    hand_in(task, clock, weights, "mppfl", "torch", "numpy", note=engine)


def train(workload: Workload, rounds: int, clock: Stopwatch, **chosen: Any) -> tuple[dict[str, torch.Tensor], str]:
    """Weights after the rounds by the names of parameters, and what computed them."""
    clients, examples = workload.num_clients, workload.num_examples
    shape = workload.features.shape[2:]
    model = flat_model(make_model(workload.model, shape, 10))
    weights = flattened(torch.from_numpy(workload.weights[name]) for name in model.shapes)
    config = TrainingConfig(
        learning_rate=workload.learning_rate, batch_size=workload.batch_size, local_epochs=1,
        aggregation="num_examples", protection=Protection(unit="client"),
        **chosen,
    )  # fmt: skip
    weights = weights.to(config.device)
    features, labels = workload.features.reshape(-1, *shape), workload.labels.reshape(-1)
    rows = np.arange(clients * examples).reshape(clients, examples)
    engine = Engine(model, features, labels, config, clients)
    clock.start()
    for number in range(rounds):
        slots = [ClientSlot(weights, [own[batch] for batch in workload.batches()]) for own in rows]
        mean = WeightedMean("num_examples", [examples] * clients, np.zeros(clients), model.num_parameters)
        rows_of_clients = (row for rows in engine.updates(slots) for row in rows)
        with engine.server_arithmetic():
            for client, row in enumerate(rows_of_clients):
                mean.add(client, row)
            weights, _ = server_step(weights, mean.result()[0].to(weights), {}, config)
        if config.device == "cuda":
            torch.cuda.synchronize()
        clock.lap(last=number == rounds - 1)
    return model.parts(weights.cpu()), engine.name


if __name__ == "__main__":
    main()
