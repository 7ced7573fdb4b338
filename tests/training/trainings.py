"""Small trainings for tests: random pictures, unequal clients, plans by hand, and a protection of one's own."""

import numpy as np
import torch
from reproduction.paper_noise import PaperNoise
from torch import nn

from mppfl.data import ClientData, client_data
from mppfl.fields import hints
from mppfl.game import Plan, RoundTerms, plan_from_rounds
from mppfl.privacy import Protection
from mppfl.training import RoundRecord, Stack, TrainingConfig, make_model, train_rounds

FREE = (np.inf, np.inf, np.inf)  # budgets that buy no noise
BUDGETS = (0.5, 0.0, 2.0)
QUICK = {"batch_size": 4, "local_epochs": 1, "learning_rate": 0.1, "clip_norm": 0.5}

# Every way to protect whose cost is a zCDP budget, each with noise of a client's own; and sums of a round.
STEPS, SHUFFLED, POISSON = ({"release": "steps", "batches": name} for name in ("whole", "shuffled", "poisson"))
CLIENT = {"unit": "client"}
LOCAL = {"gradient": {}, "steps": STEPS, "shuffled": SHUFFLED, "client": CLIENT}
SUMS = {
    f"{trust} {unit}": {"trust": trust, "unit": unit}
    for trust in ("secure_sum", "server")
    for unit in ("record", "client")
}


NOMINAL = {"kind": PaperNoise}  # a protection of one's own, which nothing in the package has to know
COHORTS = {"trust": "server", "unit": "client", "cohorts": 2}
WAYS = {**LOCAL, "poisson": POISSON, "nominal": NOMINAL, **SUMS, "cohorts": COHORTS}


def pictures(sizes=(9, 5, 12), shape=(1, 8, 8), num_classes=4, num_test=40, seed=0) -> ClientData:
    """Clients of these sizes, with pictures whose mean grows with the label, so that something can be learned."""
    rng = np.random.default_rng(seed)
    total = sum(sizes) + num_test
    labels = rng.integers(0, num_classes, total)
    patterns = rng.standard_normal((num_classes, *shape))
    features = (patterns[labels] + rng.standard_normal((total, *shape))).astype(np.float32)
    order, members = rng.permutation(sum(sizes)), []
    for size in sizes:
        members.append(order[:size])
        order = order[size:]
    return client_data(
        features[num_test:], labels[num_test:], members, features[:num_test], labels[:num_test], num_classes=num_classes
    )


def plan_with(budgets, num_rounds=2) -> Plan:
    """The same budgets in every round, at a reward rate of 2."""
    budgets = np.asarray(budgets, dtype=np.float64)
    return plan_from_rounds("by hand", [RoundTerms(t + 1, 2.0, 2.0, budgets) for t in range(num_rounds)])


def softmax_on(data) -> Stack:
    return make_model("softmax", data.input_shape, data.num_classes)


def configured(kind: type[Protection] = Protection, **changed) -> TrainingConfig:
    """The configuration with these values, whether they are of the protection, which is of this kind, or its own."""
    inside = {name: value for name, value in changed.items() if name in hints(kind)}
    outside = {name: value for name, value in changed.items() if name not in inside}
    return TrainingConfig(**outside, protection=kind(**inside))


def trained(
    budgets=BUDGETS,
    num_rounds=3,
    *,
    model=None,
    data=None,
    plan=None,
    ledger=None,
    run="training",
    resume=None,
    **changed,
) -> list[RoundRecord]:
    """The records of a short training: softmax on random pictures, `QUICK`, unless something else is asked for."""
    data = pictures() if data is None else data
    model = softmax_on(data) if model is None else model
    plan = plan_with(budgets, num_rounds) if plan is None else plan
    config = configured(**{**QUICK, **changed})
    return list(train_rounds(model, data, plan, config, ledger=ledger, run=run, resume=resume))


def small_cnn(num_classes=4) -> Stack:
    """Every kind of layer the engines know, small enough for float64 on one core."""
    model = Stack(
        nn.Conv2d(1, 4, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.GroupNorm(3, 6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.ReLU(),
        nn.Linear(8, num_classes),
    )
    model.draw(3)
    return model


def batch_normed(num_classes=4, channels=4, depth=1) -> Stack:
    """As small, with BatchNorm after each of `depth` convolutions."""
    layers: list[nn.Module] = []
    for before in [1, *[channels] * (depth - 1)]:
        layers += [
            nn.Conv2d(before, channels, 3, padding=1), nn.BatchNorm2d(channels, track_running_stats=False), nn.ReLU()
        ]  # fmt: skip
    model = Stack(
        *layers,
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * channels, num_classes),
    )
    model.draw(4)
    return model


class TwoPaths(nn.Module):
    """A user's own module that is no row of layers."""

    def __init__(self, num_classes=4) -> None:
        super().__init__()
        self.first = nn.Linear(64, num_classes)
        self.second = nn.Conv2d(1, 2, 3, padding=1)
        self.out = nn.Linear(128, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x.flatten(1)) + self.out(torch.tanh(self.second(x)).flatten(1))


class Remembers(nn.Module):
    """What it has seen comes back in its answers: in a buffer, or in an attribute that PyTorch knows nothing of."""

    def __init__(self, in_buffer: bool) -> None:
        super().__init__()
        self.layer, self.in_buffer, self.seen = nn.Linear(64, 4), in_buffer, 0.0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_buffer and self.training:
            self.total.add_(x.sum().detach())
        elif self.training:
            self.seen += float(x.detach().sum())
        return self.layer(x.flatten(1)) + self.total + self.seen
