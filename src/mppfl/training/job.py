"""TrainingJob: one training as it is asked for; TrainingState: where it stands between two rounds."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mppfl.arrays import Array
from mppfl.data import ClientData
from mppfl.device import find_device
from mppfl.errors import BadInput
from mppfl.game import Plan
from mppfl.privacy import LocalWork, ReleaseCost, poisson_noise_of_plan
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.spec import TrainingConfig
from mppfl.training.aggregate import server_step
from mppfl.training.budget_unit import plan_in_turns, with_budget_unit
from mppfl.training.client import as_array, local_work, require_gradients_of_examples
from mppfl.training.models import FlatModel, flat_model, normalises_over_examples, seeded_layers
from mppfl.training.records import Checkpoint

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object, in the print of a module: another one in every process
# What does not decide where a training goes: a checkpoint may be taken up with another of these.
NOT_IN_KEY = ("engine", "device", "clients_at_once", "processes", "evaluate_every",
              "model", "norm", "hidden")  # fmt: skip
# Jobs that agree in these, and in their data, can be computed in one batch.
COMPUTED_ALIKE = ("learning_rate", "momentum", "batch_size", "augmentation", "engine", "device", "precision",
                  "clients_at_once", "processes")  # fmt: skip


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One training job: a plan on clients' data, under one configuration.

    Args:
        name: of the training, and of its run in the ledger.
        plan: what every client is offered in each round; under a protection with cohorts it becomes what those are
            offered whose turn it is.
        data: the clients' examples and the test data.
        config: how clients train, what protects them and how updates are aggregated.
        ledger: None for one in memory. Give jobs that are alternatives ledgers of their own, and the same one to those
            that add up.
        resume: where to continue from; it must come from the same training.
        total_epsilon: ε that noise drawn again after an interruption may not pass; left out, the configuration's.

    Example:
        >>> import numpy as np
        >>> from mppfl.data import client_data
        >>> from mppfl.game import RoundTerms, plan_from_rounds
        >>> x, y = np.zeros((4, 3)), np.arange(4) % 2
        >>> data = client_data(x, y, [[0, 1], [2, 3]], x, y)
        >>> plan = plan_from_rounds("by hand", [RoundTerms(1, 2.0, 2.0, np.array([0.5, 1.0]))])
        >>> TrainingJob("half precision", plan, data, TrainingConfig(batch_size=2)).name
        'half precision'
    """

    name: str
    plan: Plan
    data: ClientData
    config: TrainingConfig
    ledger: PrivacyLedger | None = None
    resume: Checkpoint | None = None
    run: str = ""
    total_epsilon: float | None = None

    @property
    def run_in_ledger(self) -> str:
        """The name of its run in the ledger."""
        return self.run or self.name

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", plan_in_turns(self.plan, self.config))

    @property
    def computed_with(self) -> tuple[object, ...]:
        """Jobs with the same value are computed in one batch."""
        protection = self.config.protection
        table = (id(self.data.features), id(self.data.labels))
        alike = tuple(getattr(self.config, name) for name in COMPUTED_ALIKE)
        # Simulated noise may be drawn on a device, and no other.
        gradients = (protection.release, protection.batches, protection.clip_norm, protection.is_simulated)
        follows = protection.clip_quantile is not None and self.name  # a clip norm of its own
        return (*alike, *table, protection.clips_examples and (*gradients, follows))


def training_key(model: nn.Module, job: TrainingJob) -> str:
    """Fingerprint of what decides a training's course: configuration, plan, data and initial model.

    Of the model it takes all parameters and buffers, trained or not, and its layers as PyTorch prints them.
    """
    config = {k: v for k, v in job.config.values().items() if k not in NOT_IN_KEY}
    config["protection"] = repr(job.config.protection)
    config["seed"] = job.config.stream_seed
    facts = json.dumps(
        [job.name, config, job.data.names, job.data.fingerprint], sort_keys=True, default=lambda number: number.item()
    )
    digest = hashlib.sha256(facts.encode())
    for terms in job.plan:
        digest.update(np.array([terms.round_index, terms.reward_rate], dtype=np.float64).tobytes())
        digest.update(
            np.ascontiguousarray([terms.budgets, np.broadcast_to(terms.prices, len(terms.budgets))]).tobytes()
        )
    flat = flat_model(model)
    flat.initial_weights(job.config.stream_seed)  # drawn into the module, where it is a named one
    for name, value in (*flat.module.named_parameters(), *flat.module.named_buffers()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(as_array(value.detach().reshape(-1).view(torch.uint8)).tobytes())
    digest.update(ADDRESS.sub("", repr(flat.module)).encode())
    return digest.hexdigest()


def _first_example(model: FlatModel, data: ClientData) -> Tensor:
    parameter = next(model.module.parameters())
    return torch.from_numpy(np.array(data.features[:1])).to(parameter.device, parameter.dtype)


def _require_shapes(model: FlatModel, data: ClientData) -> None:
    """Raises where the model cannot take the data's inputs, or has fewer outputs than the data have classes."""
    example = _first_example(model, data)
    try:
        with seeded_layers(0, example.device), torch.no_grad():
            outputs = tuple(model.module(torch.zeros_like(example).repeat(2, *[1] * (example.ndim - 1))).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as cause:
        reason = " ".join(str(cause).split())[:120]
        raise BadInput(
            f"the model cannot take inputs of shape {data.input_shape} ({reason}). Make it for this shape, as "
            f"make_model(..., {data.input_shape}, {data.num_classes}) does."
        ) from cause
    if len(outputs) != 2 or outputs[1] < data.num_classes:
        raise BadInput(
            f"the model answers 2 inputs with shape {outputs}, and the data have {data.num_classes} classes: it must "
            f"give (2, {data.num_classes}). Make it with num_classes={data.num_classes}."
        )


def require_fitting(model: FlatModel, job: TrainingJob) -> list[LocalWork]:
    """What each client computes in a round. Raises where plan, data, model and configuration do not fit together."""
    config, data = job.config, job.data
    if job.plan.num_clients != data.num_clients:
        raise BadInput(f"the plan has {job.plan.num_clients} clients, the data {data.num_clients}.")
    require_private(model, data, config)
    if config.average_rounds > len(job.plan):
        raise BadInput(
            f"average_rounds={config.average_rounds} is more than the plan's {len(job.plan)} rounds. Use fewer."
        )
    return [local_work(int(size), config, name) for size, name in zip(data.num_examples, data.names, strict=True)]


def require_private(model: FlatModel, data: ClientData, config: TrainingConfig) -> None:
    """Raises where the model cannot take the data, or no noise of this protection would protect what it learns."""
    _require_shapes(model, data)
    if model.remembers(_first_example(model, data).repeat(2, *[1] * (len(data.input_shape)))):
        raise BadInput(
            "the model keeps something of the examples it has seen beside its trained weights, as running statistics "
            "and spectral norms do, and no noise would protect that. Use layers without memory, such as GroupNorm."
        )
    if config.protection.clips_examples and normalises_over_examples(model.module):
        raise BadInput(
            "a layer that normalises over the batch undoes the protection of single records. Use norm='group', or "
            "Protection(unit='client')."
        )
    if config.protection.clips_examples:
        require_gradients_of_examples(model, torch.zeros_like(_first_example(model, data)))
    if config.protection.hides_samples and model.draws_on(_first_example(model, data)):
        raise BadInput(
            "the model draws at random, as Dropout does, which breaks batches='poisson': draws go by place in "
            "the sample, so one record more changes the others'. Leave it out, or use batches='shuffled'."
        )


class TrainingState:
    """Where one job stands between two rounds: the model, the server's memory, the protection, the ledger.

    `account` is what each client has paid in this training so far. The ledger may know more of other runs.
    `past_noise` is what the next sum is given.
    """

    def __init__(self, model: FlatModel, job: TrainingJob) -> None:
        config, data = with_budget_unit(job.config, job.plan, model.num_parameters), job.data
        self.job, self.config, self.model = job, config, model
        self.works = require_fitting(model, job)
        self.ledger = PrivacyLedger.in_memory() if job.ledger is None else job.ledger
        self.key = None if job.ledger is None and job.resume is None else training_key(model.module, job)
        self.position = 0
        self.protection = config.protection
        self.memory: dict[str, Tensor] = {}
        self.account = {name: np.zeros(data.num_clients) for name in ("spent", "extra_delta")}
        asked = job.config.protection.total_epsilon
        self.total_epsilon = asked if job.total_epsilon is None else job.total_epsilon
        self.past_noise: tuple[Array, ...] = ()
        device = find_device(config.device)
        if job.resume is None:
            self._require_own_run(taken_up=False)
            self._pay_for_standing()
            dtype = torch.float64 if config.precision == "float64" else torch.float32
            self.weights = model.initial_weights(config.stream_seed).to(device, dtype)
            self.handed_out = self.weights
            return
        if job.resume.key != self.key:
            raise BadInput(
                f"the checkpoint of {job.name!r} belongs to another training: its configuration, plan, data or initial "
                "model differ. Start anew, or resume with what it was started with."
            )
        self._require_own_run(taken_up=True)
        self.handed_out = torch.from_numpy(job.resume.weights).to(device)
        kept = dict(job.resume.server)
        clip_norm = float(kept.pop("clip_norm", job.resume.clip_norm))
        self.account = {name: kept.pop(f"account.{name}").copy() for name in self.account}
        self.past_noise = tuple(kept.pop(name) for name in sorted(kept) if name.startswith("noise."))
        self.memory = {name: torch.from_numpy(value).to(device) for name, value in kept.items()}
        self.weights = self.memory.pop("current", self.handed_out)
        self.position = job.resume.rounds_done
        if math.isfinite(clip_norm):
            self.protection = self.protection.with_clip_norm(clip_norm)
        self._pay_for_standing()

    def _require_own_run(self, *, taken_up: bool) -> None:
        """Raises where the ledger knows this run as another training, before anything is paid or trained."""
        if self.job.ledger is not None and self.key is not None:
            # Noise that protects is paid for again in every round that stands there, whoever made it.
            is_paid_again = not self.config.protection.is_simulated
            self.ledger.require_run(self.job.run_in_ledger, self.key, taken_up=taken_up or is_paid_again)

    def _pay_for_standing(self) -> None:
        """Noise that is drawn anew is paid each time: what stands in the ledger counts, whatever became of it."""
        if self.protection.is_simulated or not self.standing:
            return
        places = {name: k for k, name in enumerate(self.job.data.names)}
        clients = [places[event["client"]] for event in self.standing]
        for name, term in (("spent", "budget"), ("extra_delta", "extra_delta")):
            paid = np.bincount(clients, [event[term] or 0.0 for event in self.standing], len(places))
            self.account[name] = np.maximum(self.account[name], paid)

    def pay(self, client: int, cost: ReleaseCost) -> None:
        """Adds a cost that stands in the ledger to this training's own account."""
        self.account["spent"][client] += 0.0 if cost.budget is None else cost.budget
        self.account["extra_delta"][client] += cost.extra_delta

    @property
    def is_done(self) -> bool:
        return self.position == len(self.job.plan)

    @property
    def clip_norm(self) -> float:
        """𝒮 of the next round; NaN where it is still to be found."""
        return self.protection.clip_norm if self.protection.has_clip_norm else math.nan

    @cached_property
    def standing(self) -> list[dict[str, Any]]:
        """Releases of this run that the ledger held when the training began, or was taken up."""
        return list(self.ledger.events(self.job.run_in_ledger))

    @cached_property
    def reserved_before(self) -> dict[int, set[str]]:
        """Who stands in the ledger for each round of this run, from before an interruption."""
        names: dict[int, set[str]] = {}
        for event in self.standing:
            names.setdefault(event["round_index"], set()).add(event["client"])
        return names

    @cached_property
    def noise_multipliers(self) -> list[Array]:
        """Noise of every round of each client whose records, or who itself, is sampled: σ/Δ of an answer."""
        asked = self.protection.budget_unit * np.array([terms.budgets for terms in self.job.plan])
        return [
            poisson_noise_of_plan(asked[:, k], *self.protection.sampling(work), self.protection.dp_delta)
            if asked[:, k].any()
            else asked[:, k]
            for k, work in enumerate(self.works)
        ]

    def move(self, mean_update: Tensor | None) -> None:
        """The next model, from the mean update of the round; None where nobody participated."""
        if mean_update is not None:
            averaged = {name: value for name, value in self.memory.items() if name == "average"}
            self.weights, memory = server_step(self.weights, mean_update, self.memory, self.config)
            self.memory = memory | averaged
        self.position += 1
        self.handed_out = self.weights
        averaged_rounds = self.position - (len(self.job.plan) - self.config.average_rounds)
        if self.config.average_rounds > 1 and averaged_rounds > 0:
            before = self.memory.get("average", torch.zeros_like(self.weights))
            self.memory["average"] = before + (self.weights - before) / averaged_rounds
            self.handed_out = self.memory["average"]

    def server_memory(self) -> dict[str, Array]:
        """All that a resumed training needs beside the model that was handed out."""
        kept = {name: as_array(value).copy() for name, value in self.memory.items()}
        kept |= {f"account.{name}": value.copy() for name, value in self.account.items()}
        if self.protection.clip_quantile is not None:
            kept["clip_norm"] = np.array(self.clip_norm)
        if not self.is_done:  # whoever has it can take the noise out of sums
            kept |= {f"noise.{age:06}": noise for age, noise in enumerate(self.past_noise)}
        if self.handed_out is not self.weights:
            kept["current"] = as_array(self.weights).copy()
        return kept
