"""The same round by apple's pfl, PyTorch, in one process."""

from itertools import cycle

import torch
from lap import Stopwatch, Workload, hand_in, task_from_command_line
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy
from torch_models import layers_of, put, taken


class Model(nn.Sequential):
    """With the two methods that pfl asks of a module."""

    def loss(self, inputs, labels, is_eval=False):
        self.train()
        return cross_entropy(self(inputs), labels)

    def metrics(self, inputs, labels, is_eval=False):
        self.eval()
        with torch.no_grad():
            return {"loss": Weighted(cross_entropy(self(inputs), labels, reduction="sum").item(), len(labels))}


class Laps(TrainingProcessCallback):
    def __init__(self, clock: Stopwatch, rounds: int) -> None:
        self.clock, self.rounds = clock, rounds

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.clock.lap(last=central_iteration == self.rounds - 1)
        return False, Metrics()


def main() -> None:
    task = task_from_command_line()
    torch.set_num_threads(task.cores)
    workload, clock = Workload.load(task.workload), Stopwatch()
    module = train(workload, task.rounds, clock)
    hand_in(task, clock, taken(module), "pfl", "torch", "numpy", note=f"{task.cores} threads")


def train(workload: Workload, rounds: int, clock: Stopwatch) -> nn.Module:
    """Runs the rounds where pfl itself wants to compute: on a GPU where there is one."""
    features, labels = torch.from_numpy(workload.features), torch.from_numpy(workload.labels)
    module = Model(*layers_of(workload.model))
    put(workload.weights, module)
    module.to("cuda" if torch.cuda.is_available() else "cpu")
    clients = cycle(range(workload.num_clients))
    data = FederatedDataset(
        lambda client: Dataset(raw_data=[features[client], labels[client]], user_id=client), lambda: next(clients)
    )
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    clock.start()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,  # it evaluates in the first round whatever we say: that one warms up
            train_cohort_size=workload.num_clients,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.learning_rate, local_batch_size=workload.batch_size
        ),
        callbacks=[Laps(clock, rounds)],
        send_metrics_to_platform=False,
    )
    return module


if __name__ == "__main__":
    main()
