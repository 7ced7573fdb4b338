"""PricedFedAvg: Flower's FedAvg with a price on every round.

    strategy = PricedFedAvg(plan, clients, config, folder="server", registry=Registry.read("keys.json"))
    strategy.start(grid, initial_arrays)

Every client of the plan gets its own terms. What comes back is checked (honesty.py), booked (accounts.py), weighed and
averaged as in training on one machine, and the state is on the disk before the next round (server_state.py). Started
again on the same folder, it goes on after the last round that was finished.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from mppfl.arrays import require_count
from mppfl.errors import BadInput, MppflError
from mppfl.flower.accounts import Accounts, Entry, Settlement
from mppfl.flower.honesty import FALSE_ALARM_RATE, fault_of, honest_upload
from mppfl.flower.identity import Attendance, Registry
from mppfl.flower.server_state import ServerFolder, ServerState, after_round, first_state, run_key
from mppfl.flower.vector import Vector, digest_of, record_like, uploaded_vector, vector_of
from mppfl.flower.watchful import WatchfulGrid
from mppfl.flower.wire import Report, RoundTerms, report_in, with_terms
from mppfl.game import Plan
from mppfl.privacy import LocalWork, round_cost
from mppfl.privacy.ledger import name_of
from mppfl.training import TrainingConfig, noise_in_update, weights_of_updates

log = logging.getLogger(__name__)

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True, slots=True)
class _Taken:
    """An upload that was taken."""

    client: str
    update: Vector
    num_examples: int
    noise_std: float


class PricedFedAvg(FedAvg):
    """Federated averaging under a plan.

    plan               reward rates and budgets of every round
    clients            names, in the order of the plan's budgets
    config             mechanism, clip norm, unit of budgets, noise, aggregation and server optimiser
    folder             where the server keeps its state and its accounts
    registry           which key belongs to whom; None believes the names that nodes declare
    num_examples       of every client, where the server knows them: an upload that declares another number is rejected.
                       None believes the first number that each declares, and rejects another one later
    data_fingerprint   of all clients' data, where the server knows it: a run does not go on with other data. Empty
                       leaves it to the clients that theirs stay the same
    name               of the run, to which a random part is added
    wait_seconds       how long the first round waits for everybody; later ones take who is there
    false_alarm_rate   chance of an honest upload to be rejected for its length
    fraction_evaluate  of Flower's evaluation on clients' data. What it returns has no noise: leave it at 0
    """

    def __init__(
        self,
        plan: Plan,
        clients: Sequence[str],
        config: TrainingConfig,
        *,
        folder: str | Path,
        registry: Registry | None = None,
        num_examples: Mapping[str, int] | None = None,
        data_fingerprint: str = "",
        name: str = "training",
        wait_seconds: float = 120.0,
        false_alarm_rate: float = FALSE_ALARM_RATE,
        fraction_evaluate: float = 0.0,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        super().__init__(
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=1,
            min_available_nodes=1,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
        )
        require_deployable(plan, clients, config)
        self.plan, self.clients, self.config, self.name = plan, tuple(clients), config, name
        self.folder, self.attendance = ServerFolder(folder), Attendance(clients, registry)
        self.num_examples = None if num_examples is None else _sizes(num_examples, clients)
        self.data_fingerprint = data_fingerprint
        self.wait_seconds, self.false_alarm_rate = wait_seconds, false_alarm_rate
        self._state: ServerState | None = None
        self._accounts: Accounts | None = None
        self._form = ArrayRecord()
        self._asked: list[tuple[str, Message]] = []
        self._began = 0.0
        self._timeout = 3600.0

    # ---- the whole run ------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 0,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Runs the plan's rounds that are left, or the next `num_rounds` of them, and returns Flower's result."""
        with ExitStack() as open_things:
            open_things.enter_context(self.folder.locked())
            self._accounts = open_things.enter_context(Accounts.open(self.folder.accounts))
            self._form, self._timeout = initial_arrays, timeout
            state = self._begin(initial_arrays)
            left = len(self.plan) - state.rounds_done
            rounds = left if num_rounds == 0 else min(num_rounds, left)
            log.info("run %s: %d rounds done, %d to go", state.run, state.rounds_done, left)
            shown = record_like(initial_arrays, state.handed_out)
            noted = self._noting(evaluate_fn, state.rounds_done)
            found = super().start(WatchfulGrid(grid), shown, rounds, timeout, train_config, evaluate_config, noted)
            if rounds == 0:
                found.arrays = shown
            return found

    def _begin(self, initial_arrays: ArrayRecord) -> ServerState:
        """The state in the folder, or a new one. Raises where the folder is that of another training."""
        weights = vector_of(initial_arrays)
        key = run_key(self.plan, self.clients, self.config, weights, self.data_fingerprint)
        state = self.folder.state()
        if state is None:
            state = first_state(self.name, key, self.plan, self.clients, weights)
            self.folder.keep(state)  # before anything is asked: the run's name must outlive a crash in the first round
        elif state.key != key:
            raise BadInput(
                f"{self.folder.path} holds run {state.run!r} with another plan, configuration, model, other data or "
                "other clients. Undo the change, or choose another folder."
            )
        self._state = state
        return state

    def _noting(self, evaluate_fn: Evaluate | None, rounds_before: int) -> Evaluate | None:
        """The evaluation, told the round's true number, with its figures in the log."""
        if evaluate_fn is None:
            return None

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            round_index = rounds_before + server_round
            found = evaluate_fn(round_index, arrays)
            if found is not None and round_index > 0:
                self.folder.note(round_index, dict(found))
            return found

        return evaluate

    # ---- one round ----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every client of the plan who is here and gives something, each with a record of its own."""
        state = self._now()
        self._began = time.monotonic()
        terms = self.plan[state.rounds_done]
        asked = self.config.budget_unit * terms.budgets
        wanted = {name for name, budget in zip(self.clients, asked, strict=True) if budget > 0}
        nodes = self._gather(grid, wanted, patiently=state.rounds_done == 0)
        prices = np.broadcast_to(np.asarray(terms.prices, dtype=np.float64), len(self.clients))
        model = record_like(self._form, state.weights)
        entries, messages = [], []
        for at, client in enumerate(self.clients):
            if client not in wanted or client not in nodes:
                continue
            entry = Entry(
                state.run, terms.round_index, client, float(prices[at]), float(terms.budgets[at]), float(asked[at])
            )
            pays = entry.price * entry.game_budget if math.isfinite(entry.game_budget) else 0.0
            own_config = with_terms({**config, "server-round": terms.round_index}, self._terms(entry, pays))
            own = RecordDict({self.arrayrecord_key: model, self.configrecord_key: own_config})
            entries.append(entry)
            messages.append((client, Message(own, nodes[client], MessageType.TRAIN)))
        self._accounts_now().ask(entries)  # on the disk before anything is sent
        self._asked = messages
        absent = sorted(wanted - nodes.keys())
        self.folder.note(
            terms.round_index, {"reward_rate": terms.reward_rate, "asked": len(messages), "absent": absent}
        )
        return [message for _, message in messages]

    def _terms(self, entry: Entry, pays: float) -> RoundTerms:
        config = self.config
        return RoundTerms(
            run=entry.run,
            round_index=entry.round_index,
            client=entry.client,
            budget=entry.budget,
            pays=float(pays),
            privacy=config.privacy,
            adjacency=config.mechanism.adjacency,
            clip_norm=float(config.clip_norm),
            noise=config.noise,
            local_epochs=config.local_epochs,
            num_steps=config.num_steps,
            batch_size=config.batch_size,
        )

    def _gather(self, grid: Grid, wanted: set[str], patiently: bool) -> dict[str, int]:
        """The nodes of those who are wanted; waits for all of them in the first round, for anybody in later ones."""
        deadline = time.monotonic() + self.wait_seconds
        while True:
            nodes = self.attendance.here(grid, self._timeout)
            missing = wanted - nodes.keys()
            enough = not missing or (not patiently and len(missing) < len(wanted))
            if enough or time.monotonic() > deadline:
                return nodes
            time.sleep(1.0)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Checks, books and averages what came back; the state after the round is on the disk when this returns."""
        state = self._now()
        terms = self.plan[state.rounds_done]
        ends, taken = self._judged(replies, terms.round_index)
        mean = self._mean(taken)  # before anything is booked: what cannot be averaged must not be paid
        ends += self._left_open(state.run, terms.round_index, ends)
        self._accounts_now().settle(state.run, terms.round_index, ends)
        declared = {each.client: each.num_examples for each in taken}
        self._state = after_round(state, mean, self.config, declared)
        self.folder.keep(self._state)
        by_state = {
            name: sorted(end.client for end in ends if end.state == name) for name in ("refused", "rejected", "lost")
        }
        for end in ends:
            if end.state != "paid":
                log.warning("round %d: client %r %s (%s)", terms.round_index, end.client, end.state, end.reason)
        paid = [entry for entry in self._accounts_now().entries(state.run) if entry.round_index == terms.round_index]
        figures = {"taking_part": len(taken), "payments": sum(entry.amount for entry in paid)}
        seconds = time.monotonic() - self._began
        reasons = {end.client: end.reason for end in ends if end.reason}
        self.folder.note(terms.round_index, {**figures, **by_state, "reasons": reasons, "seconds": seconds})
        counts = {name: len(clients) for name, clients in by_state.items()}
        return record_like(self._form, self._state.handed_out), MetricRecord({**figures, **counts})

    def _judged(self, replies: Iterable[Message], round_index: int) -> tuple[list[Settlement], list[_Taken]]:
        """How the round ended for everybody who was asked, and the uploads that are taken.

        An error comes from the SuperLink, not from the node it is about, so answers are matched by the message they
        answer.
        """
        by_message = {message.metadata.message_id: client for client, message in self._asked}
        answers: dict[str, Message] = {}
        for reply in replies:
            client = by_message.get(reply.metadata.reply_to_message_id)
            if client is not None:
                answers.setdefault(client, reply)
        ends, taken = [], []
        for client, _ in self._asked:
            end, upload = self._judge(client, answers.get(client), round_index)
            ends.append(end)
            taken += [] if upload is None else [upload]
        self._asked = []
        return ends, taken

    def _left_open(self, run: str, round_index: int, ends: Sequence[Settlement]) -> list[Settlement]:
        """Those whom a launch that was killed had asked and who are not here now that the round is repeated."""
        judged = {end.client for end in ends}
        return [
            Settlement(entry.client, "lost", "asked before an interruption, absent when the round was repeated")
            for entry in self._accounts_now().entries(run)
            if entry.round_index == round_index and entry.state == "asked" and entry.client not in judged
        ]

    def _judge(self, client: str, reply: Message | None, round_index: int) -> tuple[Settlement, _Taken | None]:
        """How the round ended for one client."""
        if reply is None:
            return Settlement(client, "lost", "no answer in time"), None
        if reply.has_error():
            return Settlement(client, "lost", f"error {reply.error.code}: {reply.error.reason:.200}"), None
        says: float | None = None
        try:
            report = report_in(reply.content)
            says = report.run_spent
            if report.client != client:
                raise BadInput(f"declares to be {report.client!r:.60}, and its key is that of {client!r}")
            if report.outcome == "refused":
                # A client whose ledger was charged and whose upload is lost has spent, and says so.
                reason = report.reason[:200].encode("utf-8", "replace").decode()  # SQLite takes no half of a character
                return Settlement(client, "lost" if report.budget > 0 else "refused", reason, says), None
            return Settlement(client, "paid", "", says), self._checked(client, report, reply.content, round_index)
        except BadInput as fault:
            return Settlement(client, "rejected", str(fault), says), None

    def _checked(self, client: str, report: Report, content: RecordDict, round_index: int) -> _Taken:
        """The upload, if everything about it can be honest. Raises BadInput with what cannot."""
        state, config = self._now(), self.config
        asked = config.budget_unit * float(self.plan[state.rounds_done].budgets[self.clients.index(client)])
        if (report.run, report.round_index) != (state.run, round_index):
            raise BadInput(f"is for round {report.round_index} of {report.run!r:.60}")
        if report.budget != asked:
            raise BadInput(f"says it cost {report.budget:g}, and {asked:g} was asked for")
        self._require_own_size(client, report.num_examples)
        arrays = content.get(self.arrayrecord_key)
        if not isinstance(arrays, ArrayRecord):
            raise BadInput("has no arrays in it")
        update = uploaded_vector(arrays, self._form)
        if report.model != digest_of(record_like(self._form, state.weights)):
            raise BadInput("was computed from another model")
        work = work_of(config, report.num_examples)
        cost = round_cost(
            config.mechanism,
            asked,
            float(config.clip_norm),
            work,
            config.noise,
            update.size,
            client,
            round_index,
            state.run,
        )
        fault = fault_of(update, honest_upload(config, work, cost, update.size), self.false_alarm_rate)
        if fault:
            raise BadInput(fault)
        return _Taken(client, update, report.num_examples, noise_in_update(config, work, cost))

    def _require_own_size(self, client: str, declared: int) -> None:
        """Raises where a client declares examples that it cannot have: the number weighs it in the mean."""
        if not 0 < declared < 2**53:
            raise BadInput(f"declares {declared} examples")
        if self.num_examples is not None and declared != self.num_examples[client]:
            raise BadInput(f"declares {declared} examples, and the server knows of {self.num_examples[client]}")
        before = self._now().num_examples.get(client, declared)
        if self.num_examples is None and declared != before:
            raise BadInput(f"declares {declared} examples, and declared {before} before")

    def _mean(self, taken: Sequence[_Taken]) -> Vector | None:
        """The weighted mean of the uploads that were taken, exactly as in training on one machine."""
        if not taken:
            return None
        rows = torch.from_numpy(np.stack([each.update for each in taken]))
        theta, _ = weights_of_updates(
            self.config.aggregation, [each.num_examples for each in taken], [each.noise_std for each in taken], rows
        )
        mean: Vector = (torch.from_numpy(theta).to(rows) @ rows).numpy()
        return mean

    def _now(self) -> ServerState:
        if self._state is None:
            raise MppflError("the strategy has not begun. Call start.")
        return self._state

    def _accounts_now(self) -> Accounts:
        if self._accounts is None:
            raise MppflError("the strategy has not begun. Call start.")
        return self._accounts


def work_of(config: TrainingConfig, num_examples: int) -> LocalWork:
    """What a client with so many examples does in a round, as far as privacy depends on it."""
    whole = config.privacy in ("full_batch", "full_batch_steps")
    size = num_examples if whole else config.batch_size
    return LocalWork(num_examples, config.local_epochs, config.num_steps, size)


def _sizes(num_examples: Mapping[str, int], clients: Sequence[str]) -> dict[str, int]:
    """One number of examples for every client."""
    for client in clients:
        if client not in num_examples:
            raise BadInput(f"num_examples has no number for client {client!r}. Give one for every client.")
    return {client: require_count(num_examples[client], f"num_examples[{client!r}]") for client in clients}


def require_deployable(plan: Plan, clients: Sequence[str], config: TrainingConfig) -> None:
    """Raises where a training makes sense on one machine only."""
    if len(clients) != plan.num_clients or len(set(clients)) != len(clients):
        raise BadInput(f"{len(set(clients))} different names for the plan's {plan.num_clients} clients; give one each.")
    for client in clients:
        name_of(client)
    if isinstance(config.clip_norm, str):
        raise BadInput(
            f"clip_norm={config.clip_norm!r} looks at raw updates, which never leave a client. Give clip_norm a number."
        )
    if config.noise == "seeded":
        raise BadInput("noise='seeded' protects no one. Clients draw their own: use noise='gaussian' or 'discrete'.")
    if not config.mechanism.is_zcdp:
        raise BadInput(
            f"privacy={config.privacy!r} has no budget that a client could hold against its cap. Use another mechanism."
        )


__all__ = ["PricedFedAvg", "require_deployable", "work_of"]
