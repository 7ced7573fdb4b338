"""FedAvg as a plain PyTorch loop: one client after another, torch.optim.SGD, weights added up in place."""

import torch
from lap import Stopwatch, Workload, hand_in, task_from_command_line
from torch import nn
from torch.nn.functional import cross_entropy
from torch_models import layers_of, put, taken


def main() -> None:
    task = task_from_command_line()
    torch.set_num_threads(task.cores)
    workload, clock = Workload.load(task.workload), Stopwatch()
    module = train(workload, task.rounds, clock)
    hand_in(task, clock, taken(module), "torch", "numpy", note=f"{task.cores} threads")


def train(workload: Workload, rounds: int, clock: Stopwatch, device: str = "cpu") -> nn.Module:
    features, labels = (torch.from_numpy(array).to(device) for array in (workload.features, workload.labels))
    module = nn.Sequential(*layers_of(workload.model))
    put(workload.weights, module)
    module.to(device)
    local = list(module.parameters())
    optimizer = torch.optim.SGD(local, workload.learning_rate)
    server = [value.detach().clone() for value in local]
    batches = workload.batches()
    clock.start()
    for number in range(rounds):
        total = [torch.zeros_like(value) for value in server]
        for client in range(workload.num_clients):
            with torch.no_grad():
                torch._foreach_copy_(local, server)
            for rows in batches:
                optimizer.zero_grad()
                cross_entropy(module(features[client, rows]), labels[client, rows]).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, local)  # every client has as many examples
        server = [value / workload.num_clients for value in total]
        if device == "cuda":
            torch.cuda.synchronize()
        clock.lap(last=number == rounds - 1)
    with torch.no_grad():
        torch._foreach_copy_(local, server)
    return module


if __name__ == "__main__":
    main()
