"""The Last.fm experiment: three trust models over budgets, mechanisms, and what friends' profiles and updates leak.

Figures are means over splits of every user's list, for users on whom no constant was chosen. Every release is paid in a
ledger of its own, for arms and splits are different worlds: nobody releases its profile more than once in any of them.
The audit of updates simulates its noise and charges no ledger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from examples.lastfm import leakage
from examples.lastfm.aggregation import Sums, protection_of_sum
from examples.lastfm.budgets import TRIMMED_BELOW, TrainingJob, Weighting, arms_of, game_of_friends
from examples.lastfm.data import HeldOut, Listening, hold_out, set_apart
from examples.lastfm.profiles import Account, Level, ReleasedProfiles, account_of, clean_profiles, release_profiles
from examples.lastfm.scoring import Quality, quality
from examples.lastfm.server import (
    CONSTANTS,
    SUM_CONSTANTS,
    Constants,
    SumConstants,
    noiseless_scores,
    popularity_scores,
    prepare,
    scores_on_devices,
    taste_from_profiles,
    taste_from_sums,
)
from examples.lastfm.updates import UpdateAudit, audit_updates

from mppfl.arrays import Array, BoolArray, require_count
from mppfl.leakage import r_model
from mppfl.privacy import NoiseKind
from mppfl.privacy.ledger import PrivacyLedger

Tell = Callable[[str], None]
TRUST_MODELS = {
    "record": "record level, nobody trusted",
    "secure": "client level, secure aggregation",
    "client": "client level, nobody trusted",
}
VALIDATION_STREAM, SPLIT_STREAM, NOISE_STREAM, GAME_STREAM, LEAK_STREAM, UPDATE_STREAM = range(6)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is run; the defaults are the published experiment.

    validation_share  of the users, on whom alone constants were chosen; figures are over the others
    budgets           ρ at which the three trust models are compared, the same for every user
    record_budget, secure_budget   MPPFL's mean ρ in the comparison of mechanisms
    public_share      of the users, on whose lists the attacker learns
    update_budgets    mean ρ at which a trained model's updates are audited; infinite for no noise, empty for no audit
    update_rounds     rounds that share such a budget where updates of more than one are read
    """

    num_splits: int = 5
    test_share: float = 0.2
    validation_share: float = 0.2
    budgets: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    record_budget: float = 1.0
    secure_budget: float = 0.53
    preset: str = "paper-like"
    dp_delta: float = 1e-5
    hops: int = 4
    public_share: float = 0.3
    leak_draws: int = 4
    degree_groups: tuple[int, ...] = (1, 3, 6, 11, 21, 41)
    update_budgets: tuple[float, ...] = (0.53, 3.0, 30.0, math.inf)
    update_rounds: int = 5
    noise: NoiseKind = "simulated"
    seed: int = 0

    def stream(self, *place: int) -> np.random.Generator:
        """A generator of its own for every purpose, so that one more arm changes nothing in the others."""
        return np.random.default_rng([self.seed, *place])


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of one arm, mean over splits, and what it cost: budgets of all users, ε by the ledger.

    ndcg_sd         standard deviation over splits
    dp_epsilon      of the user who spent most; `median_epsilon` of the middle one
    """

    name: str
    ndcg: float
    ndcg_sd: float
    hit_rate: float
    recall: float
    ndcg_of_splits: tuple[float, ...]
    mean_budget: float
    median_budget: float
    dp_epsilon: float
    median_epsilon: float


@dataclass(frozen=True, eq=False)
class Leakage:
    """Everything measured about neighbours, on profiles released at record level under MPPFL's budgets."""

    mean_budget: float
    similarity: tuple[leakage.Measured, ...]
    similarity_null: tuple[leakage.Measured, ...]
    popularity_precision: leakage.Measured
    attacks: tuple[leakage.HopAttack, ...]
    attacks_without_noise: tuple[leakage.HopAttack, ...]
    side: leakage.SideLeak
    degree_of_leak: tuple[leakage.DegreeGroup, ...]
    degree_of_gain: tuple[leakage.DegreeGroup, ...]
    degree_of_r_model: tuple[leakage.DegreeGroup, ...]
    degree_of_r_leak: tuple[leakage.DegreeGroup, ...]
    rankings: dict[str, leakage.Measured]


@dataclass(frozen=True, eq=False)
class Outcome:
    """All figures of one run; `updates` is None where they were not audited."""

    settings: Settings
    num_users: int
    num_artists: int
    num_friendships: int
    num_records: int
    scored_users: int
    popularity: Score
    noiseless: Score
    curves: dict[str, tuple[Score, ...]]
    arms: dict[str, tuple[Score, ...]]
    leakage: Leakage
    updates: UpdateAudit | None
    seconds: float
    stages: dict[str, float] = field(default_factory=dict)


def run_experiment(listening: Listening, settings: Settings | None = None, tell: Tell = lambda line: None) -> Outcome:
    """Runs everything; `tell` hears one line after each part."""
    chosen = Settings() if settings is None else settings
    require_count(chosen.num_splits, "num_splits")
    began = time.perf_counter()
    stages: dict[str, float] = {}

    def done(part: str) -> None:
        stages[part] = time.perf_counter() - began - sum(stages.values())
        tell(f"{part}: {stages[part]:.1f} s")

    scored = ~validation_users(listening, chosen)
    splits = [
        hold_out(listening, chosen.test_share, chosen.stream(SPLIT_STREAM, at)) for at in range(chosen.num_splits)
    ]
    world = World(listening, splits, scored, chosen)
    popularity = world.reference("popularity", popularity_scores)
    noiseless = world.reference("no noise", noiseless_scores)
    done("references")
    game = game_of_friends(listening.graph, chosen.preset, chosen.stream(GAME_STREAM))
    ours = next(arm for arm in arms_of(game, chosen.record_budget) if arm.weighting == "noise_aware")
    index = r_model(game.propagation, ours.budgets)
    attacker = attacker_among(listening, chosen)
    leaked = measure_leakage(listening, chosen, attacker, ours.budgets, index)
    done("leakage")
    updates = None
    if chosen.update_budgets:
        updates = audit_updates(
            attacker,
            _whole_lists(listening),
            splits[0],
            scored,
            shape=ours.budgets,
            index=index,
            degrees=listening.degrees,
            mean_budgets=chosen.update_budgets,
            num_rounds=chosen.update_rounds,
            dp_delta=chosen.dp_delta,
            seed=(chosen.seed, UPDATE_STREAM),
        )
        done("updates")
    curves = {}
    everybody = np.ones(listening.num_users)
    for trust, what in TRUST_MODELS.items():
        curves[trust] = tuple(
            world.score(trust, TrainingJob(f"ρ = {rho:g}", rho * everybody, "noise_aware")) for rho in chosen.budgets
        )
        done(what)
    arms = {}
    for trust, mean in (("record", chosen.record_budget), ("secure", chosen.secure_budget)):
        arms[trust] = tuple(world.score(trust, arm) for arm in arms_of(game, mean))
        done(f"mechanisms, {TRUST_MODELS[trust]}")
    return Outcome(
        chosen,
        listening.num_users,
        listening.num_artists,
        int(listening.degrees.sum()) // 2,
        int(listening.listens.nnz),
        int(scored.sum()),
        popularity,
        noiseless,
        curves,
        arms,
        leaked,
        updates,
        time.perf_counter() - began,
        stages,
    )


def validation_users(listening: Listening, settings: Settings) -> BoolArray:
    """Those on whom constants are chosen, and who are never scored otherwise."""
    return set_apart(listening.num_users, settings.validation_share, settings.stream(VALIDATION_STREAM))


@dataclass(frozen=True, eq=False)
class World:
    """The same users, splits and noise for every arm, so that arms differ by nothing else."""

    listening: Listening
    splits: Sequence[HeldOut]
    scored: BoolArray
    settings: Settings
    constants: Constants = CONSTANTS
    sum_constants: SumConstants = SUM_CONSTANTS

    def reference(self, name: str, score: Callable[[Array], Array]) -> Score:
        """A recommender that reads everybody's clean list, or only counts them: nobody is protected."""
        found = [quality(score(split.known), split, self.scored) for split in self.splits]
        return _score(name, found, np.full(self.listening.num_users, np.inf), np.inf, np.inf)

    def score(self, trust: str, arm: TrainingJob) -> Score:
        """One arm on every split."""
        answers = self._from_sums(arm) if trust == "secure" else self._from_profiles(trust, arm)
        found: list[Quality] = []
        accounts: list[Account] = []
        for split, (scores, paid) in zip(self.splits, answers, strict=True):
            found.append(quality(scores, split, self.scored))
            accounts.append(paid)
        account = accounts[0]  # budgets are public and the same on every split, and so are their prices
        return _score(arm.name, found, account.budgets, account.dp_epsilon, account.median_epsilon)

    def _from_profiles(self, trust: str, arm: TrainingJob) -> Iterator[tuple[Array, Account]]:
        """Scores [users, artists] that devices compute on each split, and the account of all that left them."""
        level: Level = "record" if trust == "record" else "client"
        prepared = None
        for at, split in enumerate(self.splits):
            released = release_profiles(
                split.known,
                arm.budgets,
                level,
                users=self.listening.users,
                noise=self.settings.noise,
                rng=self.settings.stream(NOISE_STREAM, at),
                dp_delta=self.settings.dp_delta,
            )
            if prepared is None:
                prepared = prepare(
                    released.variances, arm.weighting, self.listening.graph, split.known.shape[1], level, self.constants
                )
            model = taste_from_profiles(released, prepared, self.constants)
            yield scores_on_devices(clean_profiles(split.known, level), model), released.account

    def _from_sums(self, arm: TrainingJob) -> Iterator[tuple[Array, Account]]:
        budgets, users = contributed(arm.budgets, arm.weighting), self.listening.users
        for at, split in enumerate(self.splits):
            rng = self.settings.stream(NOISE_STREAM, at)
            with PrivacyLedger.in_memory() as ledger:
                sums = Sums(budgets, users, ledger, self.settings.noise, rng, "sums")
                model, profiles = taste_from_sums(sums, split.known, self.sum_constants)
                account = account_of(
                    ledger, users, budgets, protection_of_sum(self.settings.noise), self.settings.dp_delta
                )
            yield scores_on_devices(profiles, model), account


def contributed(budgets: Array, weighting: Weighting) -> Array:
    """What each user's contribution to a secure sum costs it.

    By √ρ_i everybody spends what it gives. Equal weights under one common noise let nobody spend more than the most
    careful who contributes: everyone, or all but those the trimming leaves out.
    """
    if weighting == "noise_aware":
        return budgets
    part = budgets >= TRIMMED_BELOW * budgets.mean() if weighting == "trimmed" else budgets > 0
    return np.where(part, budgets[part].min(), 0.0)


def _score(name: str, found: Sequence[Quality], budgets: Array, dp_epsilon: float, median_epsilon: float) -> Score:
    ndcg = np.array([each.ndcg for each in found])
    return Score(
        name,
        float(ndcg.mean()),
        float(ndcg.std(ddof=1)) if len(ndcg) > 1 else float("nan"),
        float(np.mean([each.hit_rate for each in found])),
        float(np.mean([each.recall for each in found])),
        tuple(ndcg.tolist()),
        float(budgets.mean()),
        float(np.median(budgets)),
        dp_epsilon,
        median_epsilon,
    )


# ---- what leaks ---------------------------------------------------------------------------------------------------


def attacker_among(listening: Listening, settings: Settings) -> leakage.FieldAttacker:
    """Who learns on the public users on which side of the main axis of taste people stand, and how friends share it."""
    lists = _whole_lists(listening)
    public = set_apart(len(lists), settings.public_share, settings.stream(LEAK_STREAM, 0))
    _, sides = leakage.taste_axis(lists, public)
    return leakage.field_attacker(listening.graph, sides, public, settings.stream(LEAK_STREAM, 4))


def _whole_lists(listening: Listening) -> Array:
    return np.asarray(listening.listens.toarray(), dtype=np.float64)


def measure_leakage(
    listening: Listening, settings: Settings, attacker: leakage.FieldAttacker, budgets: Array, index: Array
) -> Leakage:
    """The neighbour attack on whole lists released at record level with `budgets`; `index` is R_model of them."""
    lists, public = _whole_lists(listening), attacker.public

    def released(rho: Array, at: int) -> ReleasedProfiles:
        rng = settings.stream(LEAK_STREAM, 1, at)
        return release_profiles(lists, rho, "record", users=listening.users, noise=settings.noise, rng=rng)

    draws = [released(budgets, at) for at in range(settings.leak_draws)]
    clean = [released(np.full(len(lists), np.inf), 0)]
    apart = leakage.distances(listening.graph)
    order = settings.stream(LEAK_STREAM, 2).permutation(len(lists))
    attacks = leakage.attack_by_hop(draws[:1], lists, apart, public, settings.hops, settings.stream(LEAK_STREAM, 3))
    bare = leakage.attack_by_hop(clean, lists, apart, public, settings.hops, settings.stream(LEAK_STREAM, 3))
    side = leakage.side_leak(attacker, draws, lists)
    degrees, firsts = listening.degrees, settings.degree_groups
    hidden = ~public
    guessed = hidden & (lists.sum(axis=1) >= leakage.GUESSES)
    gains = attacks[0].gains
    pairs = {
        "R_model with the leak in nats": (index[hidden], side.nats),
        "R_leak with the leak in nats": (side.predicted, side.nats),
        "degree with the leak in nats": (degrees[hidden], side.nats),
        "R_model with the gain of ten guesses": (index[guessed], gains),
        "degree with the gain of ten guesses": (degrees[guessed], gains),
    }
    return Leakage(
        float(budgets.mean()),
        leakage.similarity_by_hop(lists, apart, settings.hops),
        leakage.similarity_by_hop(lists[order], apart, settings.hops),
        leakage.measured(attacks[0].precision_by_popularity),
        attacks,
        bare,
        side,
        leakage.by_degree(side.nats, degrees[hidden], firsts),
        leakage.by_degree(gains, degrees[guessed], firsts),
        leakage.by_degree(index[hidden], degrees[hidden], firsts),
        leakage.by_degree(side.predicted, degrees[hidden], firsts),
        {name: leakage.ranking(*pair) for name, pair in pairs.items()},
    )
