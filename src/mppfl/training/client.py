"""One client's round, plain: what a lone device would run, and what the fast engines are held equal to.

Random streams start anew for each round and client, so a training does not depend on how many processes compute it, on
who else participates, or on where it was interrupted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadInput
from mppfl.privacy import (
    NORM_GUARD,
    LocalWork,
    Protection,
    answer_cost,
    noisy_answer,
    system_words,
)
from mppfl.spec import TrainingConfig
from mppfl.training.models import FlatModel, flattened, normalises_over_examples, seeded_layers, trained_parameters

log = logging.getLogger(__name__)

PURPOSES = {"batches": 1, "noise": 2, "layers": 3, "views": 4, "sum": 5, "cohorts": 6}
SMALLEST_FACTOR = 1e-35
TESTED_AT_ONCE = 1000  # examples; a batch norm takes their statistics
LARGEST_STACK = 2**24  # entries of per-example gradients held at once: 64 MB in float32, and 128 MB more in float64
MARGIN = 4  # pixels in each direction, as is usual for pictures of 32 × 32
SHIFTS = 2 * MARGIN + 1
VIEWS = 2 * SHIFTS**2


# ---- batches: which examples a client sees in which step ----------------------------------------------------------


def stream(seed: int, purpose: str, round_index: int, client: int) -> np.random.Generator:
    """The random stream of one client in one round, for one purpose."""
    return np.random.default_rng([seed, PURPOSES[purpose], round_index, client])


def local_work(num_examples: int, config: TrainingConfig, client: str) -> LocalWork:
    """What a client with so many examples does in a round. Raises where its data do not fill one batch."""
    whole = config.protection.sees_all
    if not whole and config.batch_size > num_examples:
        raise BadInput(
            f"batch_size={config.batch_size} is more than the {num_examples} examples of client {client!r}. Use at "
            f"most {num_examples}, or a split with larger clients."
        )
    return LocalWork(num_examples, config.local_epochs, config.num_steps, num_examples if whole else config.batch_size)


def batches_of_round(work: LocalWork, protection: Protection, rng: np.random.Generator | None) -> list[IntArray]:
    """Positions of the examples of each step, as the protection asks for them.

    Shuffled epochs of disjoint batches, the last one short if need be; Poisson samples; or everything in every step.
    Without `rng` Poisson samples come from the system's randomness, so that nobody can draw them again.
    """
    size, per_batch = work.num_examples, work.batch_size
    if protection.sees_all:
        return [np.arange(size)] * protection.num_answers(work)
    if protection.batches == "poisson":
        draw = system_uniform if rng is None else rng.random
        return [np.flatnonzero(draw(size) < per_batch / size) for _ in range(work.num_batches)]
    if rng is None:
        raise BadInput("batches that hide nothing are drawn from a seed; give rng.")
    batches: list[IntArray] = []
    for _ in range(work.local_epochs):
        order = rng.permutation(size)
        batches += [order[start : start + per_batch] for start in range(0, size, per_batch)]
    return batches


def system_uniform(count: int) -> Array:
    """Uniform numbers from [0, 1) that no seed gives again."""
    return (system_words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def batches_with_augmentation(
    config: TrainingConfig, work: LocalWork, members: IntArray, round_index: int, client: int
) -> list[IntArray]:
    """Rows of the table for each step of a client's round, with a view each where the training augments.

    members  rows of the client's own examples
    client   its position, which decides its random streams
    """
    # No stream of the seed where a real guarantee rests on the secrecy of the samples.
    rng = None if config.protection.hides_samples else stream(config.stream_seed, "batches", round_index, client)
    rows = [members[batch] for batch in batches_of_round(work, config.protection, rng)]
    if config.augmentation == "none":
        return rows
    return with_views(rows, stream(config.stream_seed, "views", round_index, client))


def with_views(batches: Sequence[IntArray], rng: np.random.Generator) -> list[IntArray]:
    """The same examples, each with a view drawn for it."""
    if not batches:
        return []
    rows = np.concatenate(batches)
    ends = np.cumsum([len(batch) for batch in batches[:-1]])
    return np.split(rows * VIEWS + rng.integers(VIEWS, size=len(rows)), ends)


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """The examples that batches point into, on the device where they are computed."""

    features: Tensor
    labels: Tensor

    def take(self, rows: IntArray) -> tuple[Tensor, Tensor]:
        index = torch.as_tensor(rows, device=self.features.device)
        return self.features[index], self.labels[index]

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Examples and labels at the rows [*shape], as [*shape, ...]."""
        flat = rows.flatten()
        inputs = self.features.index_select(0, flat).view(*rows.shape, *self.features.shape[1:])
        return inputs, self.labels.index_select(0, flat).view(rows.shape)


class ViewTable(Table):
    """A table of pictures whose rows are examples with a view each: shifted by up to MARGIN pixels, perhaps mirrored.

    What lies outside a shifted picture is 0.
    """

    __slots__ = ()

    def take(self, rows: IntArray) -> tuple[Tensor, Tensor]:
        return self.at(torch.as_tensor(rows, device=self.features.device))

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        example, view = rows // VIEWS, rows % VIEWS
        height, width = self.features.shape[2:]
        across, down = torch.arange(width, device=rows.device), torch.arange(height, device=rows.device)
        is_mirrored = (view % 2 == 1)[..., None]
        i = down + (view // (2 * SHIFTS))[..., None] - MARGIN  # [..., H]
        j = torch.where(is_mirrored, across.flip(0), across) + (view // 2 % SHIFTS)[..., None] - MARGIN  # [..., W]
        inside = ((i >= 0) & (i < height))[..., :, None] & ((j >= 0) & (j < width))[..., None, :]
        i, j = i.clamp(0, height - 1)[..., :, None], j.clamp(0, width - 1)[..., None, :]
        pixels = self.features[example[..., None, None], :, i, j]  # [..., H, W, C]
        return (pixels * inside[..., None]).movedim(-1, -3), self.labels[example]


def table_for(config: TrainingConfig, features: Tensor, labels: Tensor) -> Table:
    """The table that the configuration's batches point into."""
    if config.augmentation == "none":
        return Table(features, labels)
    if features.ndim != 4:
        raise BadInput(
            f"augmentation={config.augmentation!r} shifts pictures (channels, height, width), and the examples have "
            f"shape {tuple(features.shape[1:])}. Use augmentation='none'."
        )
    return ViewTable(features, labels)


# ---- local training -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class GradientNoise:
    """How one client makes each answer of a round private: every example clipped, noise on the mean or the sum.

    budget            ρ of the whole round; infinite for no noise, or for noise that is added to a sum of all clients;
                      None for Poisson batches
    noise_multiplier  of Poisson batches, None for the others
    rng               stream of simulated noise
    """

    protection: Protection
    work: LocalWork
    budget: float | None
    noise_multiplier: float | None = None
    rng: np.random.Generator | None = None
    client: str = ""

    @property
    def clip_norm(self) -> float:
        return self.protection.clip_norm

    @property
    def answer_divisor(self) -> int:
        return self.protection.answer_divisor(self.work)

    @property
    def step_divisor(self) -> int:
        return self.protection.step_divisor(self.work)

    @property
    def adds_nothing(self) -> bool:
        """Whether answers get no noise here."""
        return self.budget == math.inf

    def noise_std(self, num_parameters: int) -> float:
        """Standard deviation of the noise on each answer."""
        if self.adds_nothing:
            return 0.0
        cost = answer_cost(
            self.protection, self.budget, self.work, num_parameters, noise_multiplier=self.noise_multiplier
        )
        return cost.noise_std

    def next_seed(self) -> int:
        """A seed for noise that is drawn elsewhere, from this client's stream."""
        if self.rng is None:
            raise BadInput("simulated noise needs a stream of its own.")
        return int(self.rng.integers(2**62))

    def with_count(self, clipped_sum: Tensor, num_long: Tensor, num_examples: int) -> Tensor:
        """The sum with its count behind it, where the clip norm follows a quantile.

        The count has the sign of a gradient, which a step turns round: see `Protection.count_size`.
        """
        size = self.protection.count_size
        return torch.cat([clipped_sum, size * (num_examples - 2 * num_long)]) if size else clipped_sum

    def gradient(self, clipped_sum: Tensor) -> Tensor:
        """The noisy mean gradient from the sum of clipped ones, which `clip_factors` asks to be in float64."""
        answer = (clipped_sum / self.answer_divisor).cpu().numpy()
        if not np.isfinite(answer).all():
            raise BadInput(
                f"A gradient of client {self.client!r} holds NaN or infinity and is not released. Check its training."
            )
        if self.adds_nothing:
            return clipped_sum / (self.answer_divisor * self.step_divisor)
        noisy, _ = noisy_answer(
            answer, self.budget, self.protection, self.work, self.rng, noise_multiplier=self.noise_multiplier
        )
        return torch.from_numpy(noisy).to(clipped_sum) / self.step_divisor


@dataclass(frozen=True, eq=False, slots=True)
class ClientSlot:
    """One client of one training in one round, as engines compute it.

    start        the server's weights [parameters]
    batches      rows of the table of examples, step by step
    noise        how each gradient is made private; None where the whole update is, after training
    layers_seed  for layers that draw at random themselves
    epochs       how often the batches pass over the client's examples; more than 1 may save an engine work
    """

    start: Tensor
    batches: Sequence[IntArray]
    noise: GradientNoise | None = None
    layers_seed: int = 0
    epochs: int = 1

    @property
    def num_visits(self) -> int:
        """How many examples it sees in the round, each counted as often as it is seen."""
        return sum(map(len, self.batches))


@dataclass(frozen=True, slots=True)
class Descent:
    """Stochastic gradient descent of all clients: w ← w − η v, v ← momentum · v + gradient."""

    learning_rate: float
    momentum: float = 0.0


def local_update(model: FlatModel, slot: ClientSlot, table: Table, descent: Descent) -> Tensor:
    """What one round of a client gives: how far its training moves the weights, w_i − w, or under release gradient
    −η times its mean gradient, in float64 [parameters], with its count behind it where there is one.

    Whatever the module draws at random, in a layer or in code of its own, comes from the slot's seed.
    """
    with seeded_layers(slot.layers_seed, slot.start.device):
        if slot.noise is None:
            return plain_descent(model, slot, table, descent) - slot.start
        if slot.noise.protection.release == "gradient":
            inputs, labels = table.take(slot.batches[0])
            total, num_long = clipped_sum(model, slot.start, inputs, labels, slot.noise.clip_norm)
            return -descent.learning_rate * slot.noise.gradient(slot.noise.with_count(total, num_long, len(inputs)))
        return private_descent(model, slot, slot.noise, table, descent) - slot.start


def plain_descent(model: FlatModel, slot: ClientSlot, table: Table, descent: Descent) -> Tensor:
    """Weights after stochastic gradient descent on the mean cross-entropy of each batch [parameters]."""
    model.load(slot.start)
    weights = trained_parameters(model.module)
    optimizer = torch.optim.SGD(weights, descent.learning_rate, descent.momentum)
    for rows in slot.batches:
        inputs, labels = table.take(rows)
        optimizer.zero_grad()
        cross_entropy(model.module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad()
    return flattened(weights)


def private_descent(model: FlatModel, slot: ClientSlot, noise: GradientNoise, table: Table, descent: Descent) -> Tensor:
    """The same with every example's gradient clipped and noise in every step [parameters]."""
    weights, velocity = slot.start.clone(), torch.zeros_like(slot.start)
    for rows in slot.batches:
        inputs, labels = table.take(rows)
        gradient = noise.gradient(clipped_sum(model, weights, inputs, labels, noise.clip_norm)[0]).to(weights)
        velocity = descent.momentum * velocity + gradient
        weights = weights - descent.learning_rate * velocity
    return weights


def clipped_sum(
    model: FlatModel, weights: Tensor, inputs: Tensor, labels: Tensor, clip_norm: float
) -> tuple[Tensor, Tensor]:
    """Sum of the examples' gradients, shortened to `clip_norm` in ℓ2 [parameters], and how many were; in float64."""
    parts = model.parts(weights)

    def loss_of_one(parts: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(model.logits(parts, example[None]), label[None])

    gradients = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    total, num_long = torch.zeros_like(weights, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    at_once = max(1, LARGEST_STACK // weights.numel())
    for start in range(0, len(inputs), at_once):
        stack = gradients(parts, inputs[start : start + at_once], labels[start : start + at_once])
        rows = torch.cat([part.flatten(1) for part in stack.values()], 1)  # [examples, parameters]
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        factors = clip_factors(norms, clip_norm, len(inputs))
        if warn_of_overflow(norms):
            rows = torch.where(factors[:, None] > 0, rows, 0.0)  # 0 times infinity is no number
        total += factors @ rows.double()
        num_long += (factors < 1).sum().cpu()
    return total, num_long.to(total.device)


def require_gradients_of_examples(model: FlatModel, example: Tensor) -> None:
    """Raises where PyTorch cannot give the gradient of a single example [1, ...], which clipping asks for."""
    weights = flattened(trained_parameters(model.module)).detach()
    try:
        with seeded_layers(0, example.device):
            clipped_sum(model, weights, example, torch.zeros(1, dtype=torch.long, device=example.device), 1.0)
    except RuntimeError as cause:
        reason = str(cause).split(". ")[0].strip()
        if "vmap" not in reason:
            raise
        raise BadInput(
            f"this privacy clips every example's gradient, and PyTorch cannot find them for this model ({reason}). "
            "Replace the layer or the code that it names, or use Protection(unit='client')."
        ) from cause


def warn_of_overflow(norms: Tensor) -> bool:
    """Whether some gradients are no numbers. The log of this machine alone says so: what is released must not tell."""
    wrong = int((~torch.isfinite(norms)).sum())
    if wrong:
        log.warning("%d gradients of single examples hold NaN or infinity; each counts as 0", wrong)
    return wrong > 0


def clip_factors(norms: Tensor, clip_norm: float, num_summed: int = 1) -> Tensor:
    """What to multiply vectors of these lengths by: 1, or less where they are longer than `clip_norm`; in float64.

    Sums of `num_summed` such vectors are then as sensitive as declared if they are taken in float64 and stay there
    until noise is on them. engines/layered.py adds few of them in less and has a guard of its own.

    Where the length is no number, or so large that the factor is below SMALLEST_FACTOR, the vector is left out: 0 is
    within every clip norm. One example cannot stop a training, which would tell that it is there.
    """
    longest = rounding_guard(num_summed) * clip_norm
    factors = torch.where(norms <= longest, 1.0, longest / norms.double())
    return torch.where(factors >= SMALLEST_FACTOR, factors, 0.0)


def rounding_guard(num_summed: int) -> float:
    """By what a clip norm is multiplied, so that rounding cannot carry a sum of clipped vectors past its sensitivity.

    In whatever order n vectors are added up, each is in the sum with an error of at most n + 3 roundings: of its
    factor, of its product and of the sums. Where one vector is exchanged, the errors of all others may change, so two
    sums of vectors no longer than S differ by up to 2S (1 + n (n + 3) u). In float32, u = 2⁻²⁴, that is 6 % too much
    for n = 1,000, which is why sums are in float64: u = 2⁻⁵³ needs less than half of what NORM_GUARD leaves, up to
    n = 2¹⁴, and the other half is far more than float64 can have mistaken the lengths by.
    """
    return min(NORM_GUARD, 1 - num_summed * (num_summed + 3) * 2.0**-52)


def evaluate(model: FlatModel, weights: Tensor, table: Table, at_once: int = TESTED_AT_ONCE) -> tuple[float, float]:
    """Accuracy and mean cross-entropy over a table of examples, in blocks of like size.

    A batch norm takes a block's own mean and deviation, so blocks are then drawn: files are often sorted by class.
    """
    parts, num_right, loss = model.parts(weights), 0, 0.0
    count = len(table.labels)
    blocks = np.array_split(np.arange(count), -(-count // at_once))
    if normalises_over_examples(model.module):
        blocks = np.array_split(np.random.default_rng(0).permutation(count), len(blocks))
    model.module.eval()
    try:
        with torch.no_grad():
            for rows in blocks:
                inputs, labels = table.take(rows)
                logits = model.logits(parts, inputs)
                num_right += int((logits.argmax(1) == labels).sum())
                loss += float(cross_entropy(logits.double(), labels, reduction="sum"))
    finally:
        model.module.train()
    return num_right / count, loss / count


def as_array(tensor: Tensor) -> Array:
    """The tensor as a numpy array of this process."""
    return tensor.detach().cpu().numpy()
