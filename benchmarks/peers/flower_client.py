"""What a Flower client runs: a module of its own, so that Flower's workers can load it."""

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lap import Workload
from torch import nn
from torch.nn.functional import cross_entropy
from torch_models import layers_of

WORKLOAD = "RACE_WORKLOAD"  # environment variable with the workload's path
app = ClientApp()


@cache
def prepared() -> tuple[Workload, torch.Tensor, torch.Tensor, nn.Module]:
    torch.set_num_threads(1)  # there is a worker for every core
    workload = Workload.load(Path(os.environ[WORKLOAD]))
    features, labels = torch.from_numpy(workload.features), torch.from_numpy(workload.labels)
    return workload, features, labels, nn.Sequential(*layers_of(workload.model))


@app.train()
def train(message: Message, context: Context) -> Message:
    workload, features, labels, module = prepared()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(module.parameters(), workload.learning_rate)
    for rows in workload.batches():
        optimizer.zero_grad()
        cross_entropy(module(features[client, rows]), labels[client, rows]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": workload.num_examples}),
    }
    return Message(content=RecordDict(content), reply_to=message)
