"""TrainingConfig: how clients train, what protects them, and how the server puts their updates together."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Literal

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy import MECHANISMS, Adjacency, NoiseKind, PrivacyMechanism, privacy_mechanism

EngineName = Literal["auto", "loop", "processes", "dense", "batched", "vmap"]
Precision = Literal["float32", "tf32", "bf16", "float64"]
Aggregation = Literal["num_examples", "uniform", "noise_aware"]
ServerOptimizer = Literal["sgd", "momentum", "adam"]
Augmentation = Literal["none", "crop_and_flip"]
FIRST_ROUND_MEDIAN = "first_round_median"

CHOICES: dict[str, tuple[str, ...]] = {
    "privacy": tuple(MECHANISMS),
    "noise": ("seeded", "gaussian", "discrete"),
    "aggregation": ("num_examples", "uniform", "noise_aware"),
    "server_optimizer": ("sgd", "momentum", "adam"),
    "augmentation": ("none", "crop_and_flip"),
    "engine": ("auto", "loop", "processes", "dense", "batched", "vmap"),
    "precision": ("float32", "tf32", "bf16", "float64"),
}


@dataclass(frozen=True, slots=True, repr=False)
class TrainingConfig:
    """How a federated training runs. The defaults are the paper's where it states them.

    learning_rate         η of local SGD
    momentum              of local SGD, forgotten between rounds
    batch_size            examples per local step
    local_epochs          L, passes over a client's data in a round
    augmentation          "crop_and_flip" shows pictures shifted by up to 4 pixels and mirrored, anew at every look
    num_steps             full-batch steps in a round (privacy="full_batch_steps")
    privacy               named mechanism of mppfl.privacy
    adjacency             None for the mechanism's own; "add-remove" is possible with privacy="client"
    clip_norm             𝒮, length to which updates or gradients are shortened; "first_round_median" takes the median
                          length of the first round's updates before clipping (not a private choice; reports say so)
    budget_unit           ρ of the training = budget_unit · ρ of the game
    noise                 "seeded" for simulation, "gaussian" or "discrete" for noise that protects
    dp_delta              δ of every ε that is reported
    aggregation           weights of clients' updates: "num_examples", "uniform" or "noise_aware"
    server_optimizer      what the server does with the mean update: "sgd", "momentum" or "adam"
    average_rounds        the model handed out at the end is the mean of the last so many rounds' (0: the last one)
    seed                  of the initial weights, the order of examples and seeded noise
    engine                how clients are computed; "auto" chooses by model and device
    device                "cpu", "cuda" or "cuda:1"
    precision             of the arithmetic inside local training; weights are float32 (float64 with "float64")
    clients_at_once       how many clients are computed at once; None chooses from the memory there is
    processes             processes of engine "processes"; None takes one per core
    evaluate_every        rounds between evaluations on the test data; the last round is always evaluated

    Raises:
        BadInput: if a value is out of its range, or two do not go together; the message names the field.

    Example:
        >>> TrainingConfig(privacy="client", clip_norm=1.0, noise="discrete")
        TrainingConfig(privacy='client', clip_norm=1.0, noise='discrete')
    """

    learning_rate: float = 0.01
    momentum: float = 0.0
    batch_size: int = 32
    local_epochs: int = 5
    augmentation: Augmentation = "none"
    num_steps: int = 1
    privacy: str = "paper"
    adjacency: Adjacency | None = None
    clip_norm: float | Literal["first_round_median"] = "first_round_median"
    budget_unit: float = 1.0
    noise: NoiseKind = "seeded"
    dp_delta: float = 1e-5
    aggregation: Aggregation = "noise_aware"
    server_optimizer: ServerOptimizer = "sgd"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.9
    average_rounds: int = 0
    seed: int = 0
    engine: EngineName = "auto"
    device: str = "cpu"
    precision: Precision = "float32"
    clients_at_once: int | None = None
    processes: int | None = None
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        _require_counts(self)
        _require_numbers(self)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(f"{name}={getattr(self, name)!r} is not known. Known: {', '.join(choices)}.")
        if not isinstance(self.device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise BadInput(f"device={self.device!r} is not known. Use 'cpu', 'cuda' or 'cuda:1'.")
        if self.mechanism.noise_on != "update" and self.clip_norm == FIRST_ROUND_MEDIAN:
            raise BadInput(
                f"clip_norm='first_round_median' is defined for whole updates; {self.privacy} clips every example's "
                "gradient. Give clip_norm a number."
            )
        if self.hides_samples and self.augmentation != "none":
            raise BadInput(
                f"augmentation={self.augmentation!r} breaks privacy='dpsgd_poisson': views are drawn by place in the "
                "sample, so one record more changes how the others are seen. Use augmentation='none', or "
                "privacy='dpsgd_shuffle'."
            )

    def __repr__(self) -> str:
        """The fields that are not as by default."""
        changed = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"TrainingConfig({', '.join(changed)})"

    @property
    def hides_samples(self) -> bool:
        """Whether a real guarantee rests on nobody knowing which records were sampled."""
        return self.privacy == "dpsgd_poisson" and self.noise != "seeded"

    @property
    def mechanism(self) -> PrivacyMechanism:
        """The privacy mechanism that `privacy` and `adjacency` name."""
        return privacy_mechanism(self.privacy, self.adjacency)


def _require_counts(config: TrainingConfig) -> None:
    for name in ("batch_size", "local_epochs", "num_steps", "evaluate_every"):
        require_count(getattr(config, name), name)
    for name in ("clients_at_once", "processes"):
        if getattr(config, name) is not None:
            require_count(getattr(config, name), name)
    for name in ("seed", "average_rounds"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise BadInput(f"{name}={value!r} must be a whole number from 0 to 2⁶³ − 1.")


def _require_numbers(config: TrainingConfig) -> None:
    for name in ("learning_rate", "server_learning_rate", "budget_unit", "momentum", "server_momentum", "dp_delta"):
        value = getattr(config, name)
        if isinstance(value, (str, bytes, bool)):
            raise BadInput(f"{name}={value!r} must be a number, not {type(value).__name__}.")
    for name in ("learning_rate", "server_learning_rate", "budget_unit"):
        require_number(getattr(config, name), name, 0.0, math.inf)
    for name in ("momentum", "server_momentum"):
        require_number(getattr(config, name), name, 0.0, 1.0, open_ends=False)
    require_number(config.dp_delta, "dp_delta", 0.0, 1.0)
    if not isinstance(config.clip_norm, str):
        require_number(config.clip_norm, "clip_norm", 0.0, math.inf)
    elif config.clip_norm != FIRST_ROUND_MEDIAN:
        raise BadInput(f"clip_norm={config.clip_norm!r} must be a number above 0, or 'first_round_median'.")
