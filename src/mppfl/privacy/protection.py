"""Protection: what is protected, from whom, and how, as one value that carries its behaviour.

Budgets are ρ-zCDP (Bun & Steinke 2016): Gaussian noise of standard deviation σ on a query that one neighbouring data
set moves by at most Δ in ℓ2 costs Δ²/(2σ²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from mppfl.errors import BadInput
from mppfl.fields import About, Spec, documented

if TYPE_CHECKING:
    from mppfl.arrays import Array

Unit = Literal["record", "client"]
Trust = Literal["local", "secure_sum", "server"]
Release = Literal["gradient", "steps", "update"]
Batches = Literal["whole", "shuffled", "poisson"]
Adjacency = Literal["replace_one", "zero_out"]
NoiseKind = Literal["simulated", "gaussian", "discrete"]
CLIP_RATE = 0.2  # by which a round's noisy count moves the logarithm of the clip norm (Andrew et al. 2021)


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What one client does in one round, as far as privacy depends on it. All of it must be public.

    num_examples  n = |D_i|
    local_epochs  passes over the data
    num_steps     noisy full-batch steps
    batch_size    examples per step
    """

    num_examples: int
    local_epochs: int = 1
    num_steps: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        from mppfl.arrays import require_count  # NumPy waits until somebody computes

        for name in ("num_examples", "local_epochs", "num_steps", "batch_size"):
            require_count(getattr(self, name), name)

    @property
    def num_batches(self) -> int:
        """Steps of a round that goes through the data in batches: local_epochs · ⌈n / batch_size⌉."""
        return self.local_epochs * -(-self.num_examples // self.batch_size)

    @property
    def sampling_rate(self) -> float:
        """Chance of a record to be in a Poisson-sampled batch: batch_size / n. Raises where that is above 1."""
        if self.batch_size > self.num_examples:
            raise BadInput(
                f"batch_size={self.batch_size} is more than num_examples={self.num_examples}, so it is no Poisson "
                "sample. Use smaller batches."
            )
        return self.batch_size / self.num_examples


@documented
@dataclass(frozen=True, slots=True, repr=False)
class Protection(Spec):
    """What is protected, from whom, and how.

    The default hides every single record of a client from everybody, the server included: one gradient a round, each
    record's share of it shortened, and noise on the mean.

    Args:
        {fields}

    Raises:
        BadInput: A value is out of its range, or two do not go together; the message names the field.

    Example:
        >>> from mppfl import Protection
        >>> protection = Protection(unit="client", clip_norm=1.0)
        >>> protection.guarantee
        'ρ-zCDP for all data of a client, against everybody who sees its update'
        >>> protection.noise_std(0.5, LocalWork(num_examples=100))
        2.0
    """

    TABLE: ClassVar[str] = "protection"

    unit: Annotated[Unit, About("What a guarantee hides: one record of a client, or all its data.")] = "record"
    trust: Annotated[
        Trust,
        About(
            "Who is trusted: nobody but the client itself (local); nobody, as the server sees only the sum of a round "
            "(secure_sum); the server, which adds the noise (server)."
        ),
    ] = "local"
    release: Annotated[
        Release | None,
        About(
            "What leaves a client in a round: one gradient over all its data, the result of several noisy steps, or a "
            "whole update; left out, gradient for records and update for clients."
        ),
    ] = None
    adjacency: Annotated[
        Adjacency | None,
        About(
            "What the guarantee compares with: the unit's data replaced by others, or replaced by nothing while all "
            "counts stay public; left out, replace_one, and zero_out for samples of records or clients."
        ),
    ] = None
    batches: Annotated[
        Batches, About("What each of several noisy steps sees: all data, shuffled batches or Poisson samples.")
    ] = "whole"
    clip_norm: Annotated[float, About("𝒮, length to which gradients of records, or updates, are shortened.", "", 0)] = (
        1.0
    )
    clip_quantile: Annotated[
        float | None,
        About(
            "Share of records, or of clients' updates, that are shorter than the clip norm in the end: it starts at "
            "clip_norm, best a small one, and each round's noisy count of those that were shorter moves it. Left out, "
            "it stays.",
            "",
            0,
            1,
        ),
    ] = None
    clip_share: Annotated[float, About("Part of each round's budget that pays for this count.", "", 0, 1)] = 0.02
    noise: Annotated[
        NoiseKind,
        About("simulated, from a seed, protects nobody; gaussian and discrete come from the operating system."),
    ] = "simulated"
    total_epsilon: Annotated[
        float | None,
        About(
            "ε at dp_delta at which the client that gives most ends, over the whole plan: budget_unit is then the "
            "largest that keeps it.",
            "",
            1e-6,
            1e3,
            closed=True,
        ),
    ] = None
    dp_delta: Annotated[float, About("δ of every ε that is reported.", "", 0, 1)] = 1e-5
    budget_unit: Annotated[float, About("ρ of the training = budget_unit · budget of the game.", "", 0)] = 1.0
    client_rate: Annotated[
        float,
        About(
            "Chance of a client to be in a round's sum, drawn in secret. Below 1 the plan's budgets are turned into "
            "noise by privacy loss distributions, and clients that are not drawn send nothing but noise.",
            "",
            0,
            1,
            closed=True,
        ),
    ] = 1.0
    cohorts: Annotated[
        int,
        About(
            "b public cohorts, drawn from the seed, that join sums in turns, each every b-th round. Noise takes back "
            "part of that in the b - 1 rounds before, so that less adds up. 1: everybody joins every round.",
            "",
            1,
        ),
    ] = 1
    dropouts: Annotated[
        int, About("secure_sum: clients that may fail in a round; noise is enough without them.", "", 0)
    ] = 0
    colluding: Annotated[
        int, About("secure_sum: clients that may tell the server their noise; what the others add is enough.", "", 0)
    ] = 0

    def _check(self) -> None:
        for name, usual in self._usual().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)
        self._require_unit_and_release()
        self._require_trust()
        self._require_clipping()
        self._require_participation()
        if self.total_epsilon is not None and self.budget_unit != 1.0:
            raise BadInput(
                f"total_epsilon={self.total_epsilon:g} chooses the unit of budgets, and budget_unit="
                f"{self.budget_unit:g} gives it. Keep one of them."
            )

    def _usual(self) -> dict[str, str]:
        """What follows from the rest where it is left out."""
        return {
            "release": "gradient" if self.unit == "record" else "update",
            "adjacency": "replace_one" if self.is_zcdp else "zero_out",
        }

    def changed(self) -> dict[str, Any]:
        """The values that are not the default, by name; without those that follow from the others."""
        usual = self._usual().items()
        return {name: value for name, value in Spec.changed(self).items() if (name, value) not in usual}

    def _require_unit_and_release(self) -> None:
        if (self.unit == "client") != (self.release == "update"):
            raise BadInput(
                f"release={self.release!r} does not hide a {self.unit}: a record hides in a gradient or in noisy "
                "steps, a client in its whole update. Leave release out, or change unit."
            )
        if self.batches != "whole" and self.release != "steps":
            raise BadInput(f"batches={self.batches!r} is for release='steps'. Give that, or leave batches out.")
        if not self.is_zcdp and self.adjacency != "zero_out":
            raise BadInput("samples are accounted for under adjacency='zero_out'. Leave adjacency out.")

    def _require_trust(self) -> None:
        if self.trust != "local" and self.release == "steps":
            raise BadInput(
                f"trust={self.trust!r} opens one sum a round, and release='steps' has several. Use release='gradient' "
                "with more rounds."
            )
        if self.trust != "secure_sum" and (self.dropouts or self.colluding):
            raise BadInput("dropouts and colluding are for trust='secure_sum'. Leave them out.")
        if self.trust == "secure_sum" and self.noise == "gaussian":
            raise BadInput(
                "noise='gaussian' does not add up exactly on the grid of a secure sum. Use noise='discrete'."
            )

    def _require_clipping(self) -> None:
        if self.clip_quantile is not None and self.release == "steps":
            raise BadInput(
                f"clip_quantile={self.clip_quantile:g} asks for one count a round, and release='steps' clips in every "
                "step. Use release='gradient' with more rounds, or leave clip_quantile out."
            )
        if self.clip_quantile is not None and self.cohorts > 1:
            raise BadInput(
                f"clip_quantile={self.clip_quantile:g} gives each round a norm, and cohorts={self.cohorts} take "
                "back noise of rounds before. Leave one of them out."
            )
        if self.clip_quantile is None and "clip_share" in Spec.changed(self):
            raise BadInput(f"clip_share={self.clip_share:g} pays for the count of clip_quantile. Give that, too.")

    def _require_participation(self) -> None:
        if self.client_rate == 0 or (self.client_rate < 1 and not self.opens_sums):
            raise BadInput(
                f"client_rate={self.client_rate:g} must be above 0, and 1 under trust='local', where everybody sees "
                "who is in a round. Use trust='secure_sum' or 'server'."
            )
        if self.cohorts > 1 and (self.client_rate < 1 or not self.opens_sums):
            raise BadInput(
                f"cohorts={self.cohorts} join sums in public turns. Use trust='secure_sum' or 'server' with "
                "client_rate=1, or cohorts=1."
            )

    # ---- behaviour

    @property
    def name(self) -> str:
        """Trust, unit and release in words, as the ledger notes them."""
        of = {"shuffled": " over shuffled batches", "poisson": " over Poisson batches"}.get(self.batches, "")
        sampled = " of sampled clients" if self.client_rate < 1 else ""
        turns = f" in {self.cohorts} cohorts" if self.cohorts > 1 else ""
        adaptive = ", adaptive clip norm" if self.clip_quantile is not None else ""
        return f"{self.trust} {self.unit} {self.release}{of}{sampled}{turns}{adaptive}".replace("_", " ")

    @property
    def clips_examples(self) -> bool:
        """Whether every record's gradient is shortened, and not the update of a whole round."""
        return self.release != "update"

    @property
    def sees_all(self) -> bool:
        """Whether every step sees all data of a client."""
        return self.clips_examples and self.batches == "whole"

    @property
    def opens_sums(self) -> bool:
        """Whether the server gets sums of all clients, and no upload of a single one."""
        return self.trust != "local"

    @property
    def is_zcdp(self) -> bool:
        """Whether its cost is a zCDP budget, which adds over rounds."""
        return self.batches != "poisson" and self.client_rate == 1

    def sampling(self, work: LocalWork) -> tuple[float, int]:
        """Chance of a record, or client, to be in a noisy answer, and how many of these a round has."""
        return (work.sampling_rate, work.num_batches) if self.batches == "poisson" else (self.client_rate, 1)

    @property
    def is_simulated(self) -> bool:
        """Whether noise comes from a seed, and protects nobody."""
        return self.noise == "simulated"

    @property
    def hides_samples(self) -> bool:
        """Whether the guarantee rests on nobody knowing which records were sampled."""
        return self.batches == "poisson" and not self.is_simulated

    @property
    def answers_sums(self) -> bool:
        """Whether noise is on the sum over a batch, not on a mean over all data or on an update."""
        return self.batches != "whole"

    def num_answers(self, work: LocalWork) -> int:
        """Noisy answers that leave a client in a round."""
        if self.release != "steps":
            return 1
        return work.num_steps if self.batches == "whole" else work.num_batches

    def queries(self, work: LocalWork) -> int:
        """How many of them one record or client influences; Poisson samples are counted by their accountant."""
        return {"whole": self.num_answers(work), "shuffled": work.local_epochs, "poisson": 1}[self.batches]

    def reach(self) -> float:
        """How far apart two vectors of length at most `longest` can be, or one and 0."""
        return self.longest if self.adjacency == "zero_out" else 2 * self.longest

    @property
    def count_size(self) -> float:
        """What a vector's last entry is where the clip norm follows a quantile: this where the vector was too long to
        stay, minus this where it was not. Else 0, and there is no such entry.

        It is 𝒮√(share/(1 − share)): squared it is just the share of what the whole vector may be, and a cost goes by
        squares. One noise on vector and count then splits ρ as asked, and so it does with the noise of samples.
        """
        if self.clip_quantile is None:
            return 0.0
        return self.clip_norm * math.sqrt(self.clip_share / (1 - self.clip_share))

    @property
    def longest(self) -> float:
        """Length of a vector after clipping, the entry that counts included."""
        return math.hypot(self.clip_norm, self.count_size)

    def num_entries(self, num_parameters: int) -> int:
        """Entries of a vector that gets noise: one a parameter, and one for the count where there is one."""
        return num_parameters + (self.clip_quantile is not None)

    def sensitivity(self, work: LocalWork) -> float:
        """Δ: how far one neighbouring data set moves one noisy answer at most, in ℓ2."""
        return self.reach() / self.answer_divisor(work)

    def answer_divisor(self, work: LocalWork) -> int:
        """What the sum of clipped gradients is divided by before noise is added."""
        return work.num_examples if self.sees_all else 1

    def step_divisor(self, work: LocalWork) -> int:
        """What a noisy answer is divided by to be a step: the public batch size where the answer is a sum."""
        return work.batch_size if self.answers_sums else 1

    def noise_std(self, budget: float, work: LocalWork) -> float:
        """Standard deviation of the noise on each answer for a budget of ρ in this round: Δ√(queries/(2ρ))."""
        rho = require_budget(budget)
        if not self.is_zcdp:
            raise BadInput(
                "samples have no noise from the zCDP budget of one round; poisson_noise_of_plan finds it for a plan."
            )
        return 0.0 if math.isinf(rho) else self.sensitivity(work) * math.sqrt(self.queries(work) / (2 * rho))

    def charged(self, budget: float, work: LocalWork) -> float:
        """ρ that a round with this budget costs, whatever the data."""
        return require_budget(budget)

    @property
    def has_clip_norm(self) -> bool:
        """Whether `clip_norm` is settled before the first round."""
        return True

    def with_clip_norm(self, clip_norm: float) -> Self:
        """The same protection with another length to shorten to."""
        return replace(self, clip_norm=clip_norm)

    def with_clip_norm_after(self, count: float) -> Self:
        """The same for the next round: 𝒮 · exp(-0.2 (b − quantile)), where b is the share that was shorter (Andrew et
        al. 2021, Alg. 1). Noise may move it no farther than e^±0.2.

        count  the last entry of the round's noisy mean: `count_size` times the share of the longer less the others
        """
        if self.clip_quantile is None:
            return self
        surplus = (1 - count / self.count_size) / 2 - self.clip_quantile
        return self.with_clip_norm(self.clip_norm * math.exp(-CLIP_RATE * min(1.0, max(-1.0, surplus))))

    def with_clip_norm_of(self, lengths: Array) -> Self:
        """The same with the length that the raw updates of a first round tell, where it was not settled before."""
        return self

    @property
    def accounting(self) -> str:
        """The tightest method of accounting that holds for its noise."""
        if not self.is_zcdp:
            return "pld"
        return "rdp" if self.noise == "discrete" or self.opens_sums else "exact"  # noise of sums is discrete

    @property
    def guarantee(self) -> str:
        """What a budget of ρ promises, in a sentence."""
        promise = "ρ-zCDP" if self.is_zcdp else "(ε, δ)-DP"
        hidden = "each record of a client" if self.unit == "record" else "all data of a client"
        against = {
            "local": f"everybody who sees its {self.release if self.release != 'steps' else 'update'}",
            "secure_sum": "everybody who sees the sum of a round",
            "server": "everybody but the server",
        }[self.trust]
        return f"{promise} for {hidden}, against {against}"


def require_budget(budget: float) -> float:
    """The budget as a float above 0 (infinity means no noise), small or large enough to compute with."""
    try:
        rho = float(budget)
    except (TypeError, ValueError) as cause:
        raise BadInput(f"budget={budget!r} is not a number.") from cause
    if not rho > 0:
        raise BadInput(f"budget={rho:g} must be above 0; a client with budget 0 takes no part and releases nothing.")
    if not (1e-150 < rho < 1e150 or math.isinf(rho)):
        raise BadInput(f"budget={rho:g} is beyond what can be computed with. Use a budget between 1e-150 and 1e150.")
    return rho
