"""PricedFedAvg: Flower's FedAvg with a price on every round (alone: the public strategy).

Every client of the plan gets its own terms. What comes back is checked, booked (accounts.py), weighed and averaged as
in training on one machine, and the state is on the disk before the next round (state.py). Started again on the same
folder, it goes on after the last finished round.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput
from mppfl.flower.accounts import Accounts, Entry, Settlement
from mppfl.flower.identity import Attendance, Registry
from mppfl.flower.state import ServerFolder, ServerState, after_round, first_state, run_key
from mppfl.flower.wire import (
    OF_PROTECTION,
    OF_TRAINING,
    ClientTerms,
    UploadReport,
    Vector,
    cost_of,
    digest_of,
    record_like,
    report_in,
    uploaded_vector,
    vector_of,
    with_terms,
    work_of,
)
from mppfl.game import Plan
from mppfl.privacy import LocalWork, Protection, ReleaseCost, grid_of
from mppfl.privacy.ledger import name_of
from mppfl.training import TrainingConfig, noise_in_update, times_counted, weights_of_updates, with_budget_unit

log = logging.getLogger(__name__)

FALSE_ALARM_RATE = 1e-9  # of one honest upload
FLOAT32_ROUNDING = 1 + 2.0**-22

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True, slots=True)
class _Upload:
    """An upload that was accepted."""

    client: str
    update: Vector
    num_examples: int
    noise_std: float


class PricedFedAvg(FedAvg):
    """Flower strategy: federated averaging in which every client gets its own price and privacy budget per round.

    Args:
        plan: reward rates and budgets of every round.
        clients: names, in the order of the plan's budgets.
        config: protection, unit of budgets or total ε, aggregation and server optimiser.
        folder: where the server keeps its state and its accounts.
        registry: which key belongs to which client; None trusts the names that nodes declare.
        num_examples: of every client, where the server knows them: an upload that declares another number is rejected.
            None accepts the first number that each client declares, and rejects another one later.
        data_fingerprint: of all clients' data, where the server knows it: a run is not resumed with other data.
        name: of the run, to which a random part is added.
        wait_seconds: how long the first round waits for all clients; later rounds take those that are connected.
        false_alarm_rate: probability that an honest upload is rejected for its length.
        fraction_evaluate: of Flower's evaluation on clients' data. Its results have no noise: leave it at 0.
        arrayrecord_key, configrecord_key: where model and configuration lie in messages, as in FedAvg.

    Raises:
        BadInput: where names do not match the plan, or the training makes sense on one machine only.

    Example (in a Flower ServerApp):
        plan = mppfl.solve(game, "mppfl", num_rounds=30).plan
        config = mppfl.TrainingConfig(protection={"unit": "client", "noise": "gaussian", "total_epsilon": 8})
        strategy = PricedFedAvg(plan, clients, config, folder="server", registry=Registry.read("keys.json"))
        result = strategy.start(grid, initial_arrays)
    """

    poll_seconds = 1.0  # between two looks for answers
    look_seconds = 5.0  # between two looks at the nodes

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
        _require_deployable(plan, clients, config)
        self.plan, self.clients, self.config, self.name = plan, tuple(clients), config, name
        self.folder, self.attendance = ServerFolder(folder), Attendance(clients, registry)
        self.num_examples = None if num_examples is None else _sizes(num_examples, clients)
        self.data_fingerprint = data_fingerprint
        self.wait_seconds, self.false_alarm_rate = wait_seconds, false_alarm_rate
        self._asked: list[tuple[ClientTerms, Message]] = []
        self._state: ServerState
        self._training: TrainingConfig
        self._accounts: Accounts

    def __repr__(self) -> str:
        return f"PricedFedAvg({len(self.clients)} clients, {len(self.plan)} rounds, folder={str(self.folder.path)!r})"

    # ---- the whole run ----------------------------------------------------------------------------------------------

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
        """Runs the plan's remaining rounds and returns Flower's result.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: the model before the first round, all float32 or all float64.
            num_rounds: at most so many rounds; 0 runs all that remain.
            timeout: seconds that a round waits for answers.
            train_config, evaluate_config: Flower's, sent to every client.
            evaluate_fn: tests a model on the server, given the number of the round.

        Raises:
            BadInput: where the folder holds a run with another plan, configuration, model or data, or where the plan
                cannot keep the configuration's total ε.
            BadFile: where a file of the folder is damaged.
            MppflError: where another server uses the folder.
        """
        with ExitStack() as resources:
            resources.enter_context(self.folder.locked())
            self._accounts = resources.enter_context(Accounts.open(self.folder.accounts))
            self._form, self._timeout = initial_arrays, timeout
            weights = vector_of(initial_arrays)
            self._training = with_budget_unit(self.config, self.plan, weights.size)
            self._state = state = self._begin(weights)
            remaining = len(self.plan) - state.rounds_done
            rounds = remaining if num_rounds == 0 else min(num_rounds, remaining)
            log.info("run %s: %d rounds done, %d to go", state.run, state.rounds_done, remaining)
            shown = record_like(initial_arrays, state.handed_out)
            patient: Any = _PatientGrid(grid, self.poll_seconds, self.look_seconds)
            evaluate = None if evaluate_fn is None else self._noting(evaluate_fn, state.rounds_done)
            result = super().start(patient, shown, rounds, timeout, train_config, evaluate_config, evaluate)
            if rounds == 0:
                result.arrays = shown
            return result

    def _begin(self, weights: Vector) -> ServerState:
        """The state in the folder, or a new one. Raises where the folder is that of another training."""
        key = run_key(self.plan, self.clients, self._training, weights, self.data_fingerprint)
        state = self.folder.state()
        if state is None:
            state = first_state(self.name, key, self.plan, self.clients, weights)
            self.folder.keep(state)  # before anything is asked: the run's name must outlive a crash in the first round
        elif state.key != key:
            raise BadInput(
                f"{self.folder.path} holds run {state.run!r} with another plan, configuration, model, other data or "
                "other clients. Undo the change, or choose another folder."
            )
        return state

    def _noting(self, evaluate_fn: Evaluate, rounds_before: int) -> Evaluate:
        """The evaluation, given the true number of the round, with its results in the log."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            round_index = rounds_before + server_round
            metrics = evaluate_fn(round_index, arrays)
            if metrics is not None and round_index > 0:
                self.folder.note(round_index, dict(metrics))
            return metrics

        return evaluate

    # ---- one round --------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message, with terms of its own, to every connected client whose budget in this round is not 0."""
        state, training = self._state, self._training
        self._began = time.monotonic()
        terms = self.plan[state.rounds_done]
        budgets = training.protection.budget_unit * terms.budgets
        invited = {name for name, budget in zip(self.clients, budgets, strict=True) if budget > 0}
        nodes = self._gather(grid, invited, wait_for_all=state.rounds_done == 0)
        prices = np.broadcast_to(np.asarray(terms.prices, dtype=np.float64), len(self.clients))
        model = record_like(self._form, state.weights)
        entries, self._asked = [], []
        for position, client in enumerate(self.clients):
            if client not in invited or client not in nodes:
                continue
            price, game_budget = float(prices[position]), float(terms.budgets[position])
            entry = Entry(state.run, terms.round_index, client, price, game_budget, float(budgets[position]))
            client_terms = ClientTerms(
                run=state.run,
                round_index=terms.round_index,
                client=client,
                budget=entry.budget,
                pays=price * game_budget if math.isfinite(game_budget) else 0.0,
                **{name: getattr(training, name) for name in OF_TRAINING},
                **{name: getattr(training.protection, name) for name in OF_PROTECTION},
            )
            client_config = with_terms({**config, "server-round": terms.round_index}, client_terms)
            content = RecordDict({self.arrayrecord_key: model, self.configrecord_key: client_config})
            entries.append(entry)
            self._asked.append((client_terms, Message(content, nodes[client], MessageType.TRAIN)))
        self._accounts.ask(entries)  # on the disk before anything is sent
        facts = {"reward_rate": terms.reward_rate, "asked": len(entries), "absent": sorted(invited - nodes.keys())}
        self.folder.note(terms.round_index, facts)
        return [message for _, message in self._asked]

    def _gather(self, grid: Grid, invited: set[str], wait_for_all: bool) -> dict[str, int]:
        """Nodes of connected clients. Waits at most `wait_seconds` for all invited clients, or for one of them."""
        deadline = time.monotonic() + self.wait_seconds
        while True:
            nodes = self.attendance.here(grid, self._timeout)
            missing = invited - nodes.keys()
            enough = not missing or (not wait_for_all and len(missing) < len(invited))
            if enough or time.monotonic() > deadline:
                return nodes
            time.sleep(1.0)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Checks, books and averages the replies; the state after the round is on the disk when this returns."""
        state, round_index = self._state, self.plan[self._state.rounds_done].round_index
        settlements, uploads = self._judge_all(round_index, replies)
        mean = self._mean(uploads)  # before anything is booked: what cannot be averaged must not be paid
        self._accounts.settle(state.run, round_index, settlements)
        declared = {upload.client: upload.num_examples for upload in uploads}
        self._state = after_round(state, mean, self._training, declared)
        self.folder.keep(self._state)
        by_state: dict[str, list[str]] = {"refused": [], "rejected": [], "lost": []}
        for end in sorted(settlements, key=lambda settlement: settlement.client):
            if end.state != "paid":
                by_state[end.state].append(end.client)
                log.warning("round %d: client %r %s (%s)", round_index, end.client, end.state, end.reason)
        booked = [entry for entry in self._accounts.entries(state.run) if entry.round_index == round_index]
        figures = {"participating": len(uploads), "payments": sum(entry.amount for entry in booked)}
        reasons = {end.client: end.reason for end in settlements if end.reason}
        seconds = time.monotonic() - self._began
        self.folder.note(round_index, {**figures, **by_state, "reasons": reasons, "seconds": seconds})
        counts = {name: len(clients) for name, clients in by_state.items()}
        return record_like(self._form, self._state.handed_out), MetricRecord({**figures, **counts})

    def _judge_all(self, round_index: int, replies: Iterable[Message]) -> tuple[list[Settlement], list[_Upload]]:
        """How the round ended for everybody who was asked, and the uploads that are accepted.

        Errors come from the SuperLink, not from the node that they are about, so replies are matched by message.
        Clients asked before a crash that are offline when the round is retried are lost.
        """
        answers: dict[str, Message] = {}
        for reply in replies:
            answers.setdefault(reply.metadata.reply_to_message_id, reply)
        ends = {t.client: self._judge(t, answers.get(message.metadata.message_id)) for t, message in self._asked}
        self._asked = []
        gone = "asked before an interruption, absent when the round was repeated"
        for entry in self._accounts.entries(self._state.run):
            if entry.round_index == round_index and entry.state == "asked" and entry.client not in ends:
                ends[entry.client] = Settlement(entry.client, "lost", gone), None
        uploads = [upload for _, upload in ends.values() if upload is not None]
        return [settlement for settlement, _ in ends.values()], uploads

    def _judge(self, terms: ClientTerms, reply: Message | None) -> tuple[Settlement, _Upload | None]:
        """How the round ended for one client."""
        client = terms.client
        if reply is None:
            return Settlement(client, "lost", "no answer in time"), None
        if reply.has_error():
            return Settlement(client, "lost", f"error {reply.error.code}: {reply.error.reason:.200}"), None
        client_says: float | None = None
        try:
            report = report_in(reply.content)
            client_says = report.run_spent
            if report.client != client:
                raise BadInput(f"declares to be {report.client!r:.60}, and its key is that of {client!r}")
            if report.outcome == "refused":
                # A client whose ledger was charged and whose upload is lost has spent, and says so.
                reason = report.reason[:200].encode("utf-8", "replace").decode()  # SQLite takes no lone surrogates
                return Settlement(client, "lost" if report.budget > 0 else "refused", reason, client_says), None
            return Settlement(client, "paid", "", client_says), self._checked(terms, report, reply.content)
        except BadInput as fault:
            return Settlement(client, "rejected", str(fault), client_says), None

    def _checked(self, terms: ClientTerms, report: UploadReport, content: RecordDict) -> _Upload:
        """The upload, if everything about it can be honest. Raises BadInput with what cannot."""
        config = self._training
        if (report.run, report.round_index) != (terms.run, terms.round_index):
            raise BadInput(f"is for round {report.round_index} of {report.run!r:.60}")
        if report.budget != terms.budget:
            raise BadInput(f"says it cost {report.budget:g}, and {terms.budget:g} was asked for")
        self._require_known_size(terms.client, report.num_examples)
        arrays = content.get(self.arrayrecord_key)
        if not isinstance(arrays, ArrayRecord):
            raise BadInput("has no arrays in it")
        update = uploaded_vector(arrays, self._form)
        if report.model != digest_of(record_like(self._form, self._state.weights)):
            raise BadInput("was computed from another model")
        work = work_of(config, config.protection, report.num_examples)
        cost = cost_of(terms, config.protection, work, update.size)
        fault = fault_of(update, honest_upload(config, work, cost, update.size), self.false_alarm_rate)
        if fault:
            raise BadInput(fault)
        return _Upload(terms.client, update, report.num_examples, noise_in_update(config, work, cost))

    def _require_known_size(self, client: str, declared: int) -> None:
        """Raises where a client declares a number of examples that it cannot have: the mean is weighted by it."""
        if not 0 < declared < 2**53:
            raise BadInput(f"declares {declared} examples")
        if self.num_examples is not None and declared != self.num_examples[client]:
            raise BadInput(f"declares {declared} examples, and the server knows of {self.num_examples[client]}")
        before = self._state.num_examples.get(client, declared)
        if self.num_examples is None and declared != before:
            raise BadInput(f"declares {declared} examples, and declared {before} before")

    def _mean(self, uploads: Sequence[_Upload]) -> Vector | None:
        """The weighted mean of the accepted uploads, exactly as in training on one machine."""
        if not uploads:
            return None
        rows = torch.from_numpy(np.stack([upload.update for upload in uploads]))
        sizes, noises = [upload.num_examples for upload in uploads], [upload.noise_std for upload in uploads]
        theta, _ = weights_of_updates(self._training.aggregation, sizes, noises, rows)
        mean: Vector = (torch.from_numpy(theta).to(rows) @ rows).numpy()
        return mean


def _sizes(num_examples: Mapping[str, int], clients: Sequence[str]) -> dict[str, int]:
    """One number of examples for every client."""
    for client in clients:
        if client not in num_examples:
            raise BadInput(f"num_examples has no number for client {client!r}. Give one for every client.")
    return {client: require_count(num_examples[client], f"num_examples[{client!r}]") for client in clients}


def _require_deployable(plan: Plan, clients: Sequence[str], config: TrainingConfig) -> None:
    """Raises where a training makes sense on one machine only."""
    if len(clients) != plan.num_clients or len(set(clients)) != len(clients):
        raise BadInput(f"{len(set(clients))} different names for the plan's {plan.num_clients} clients; give one each.")
    for client in clients:
        name_of(client)
    protection = config.protection
    if type(protection) is not Protection:
        raise BadInput(
            f"{type(protection).__name__} is a protection of your own, which clients do not know: terms carry the "
            "values of Protection. Use that."
        )
    if protection.is_simulated:
        raise BadInput("noise='simulated' protects nobody. Clients draw their own: use noise='gaussian' or 'discrete'.")
    if protection.opens_sums:
        raise BadInput(
            f"trust={protection.trust!r} is simulated only; uploads on Flower carry noise of their own. Use "
            "trust='local'."
        )
    if protection.clip_quantile is not None:
        raise BadInput("clip_quantile is for mppfl's own trainings. Leave it out: clip_norm stays as it is.")
    if not protection.is_zcdp:
        raise BadInput(
            "Poisson batches have no budget that a client could hold against its cap. Use batches='shuffled'."
        )


class _PatientGrid:
    """Flower's grid, which also gives up on messages that died with their node's process.

    Flower reports a message as lost while its node is offline. A node that was killed and came back between two polls
    is online as before, but the message died with the old process: the round would wait for it until its timeout. So
    this grid also looks at when each node was last activated: after a restart, it does not answer earlier messages.
    """

    def __init__(self, grid: Grid, poll_seconds: float, look_seconds: float) -> None:
        self.grid, self.poll_seconds, self.look_seconds = grid, poll_seconds, look_seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Replies to these messages: until all are in, or those that are missing cannot come, or the time is up."""
        sent = list(messages)
        if not sent:
            return []
        before = self._activations()
        pushed = set(self.grid.push_messages(sent))
        waiting = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
        waiting = {message_id: node for message_id, node in waiting.items() if message_id in pushed}
        replies: list[Message] = []
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        last_look, suspects = time.monotonic(), set[str]()
        while waiting:
            for reply in self.grid.pull_messages(set(waiting)):
                replies.append(reply)
                waiting.pop(reply.metadata.reply_to_message_id, None)
            if not waiting or time.monotonic() > deadline:
                break
            if time.monotonic() - last_look > self.look_seconds:
                last_look, now = time.monotonic(), self._activations()
                restarted = {
                    message_id for message_id, node in waiting.items() if node in now and now[node] != before.get(node)
                }
                for message_id in restarted & suspects:  # seen twice, so a reply on its way has had time to arrive
                    log.warning("node %d was restarted and will not answer", waiting.pop(message_id))
                suspects = restarted
            time.sleep(self.poll_seconds)
        return replies

    def _activations(self) -> dict[int, str]:
        """When each connected node was last activated, according to the SuperLink."""
        return {int(node.node_id): str(getattr(node, "last_activated_at", "")) for node in self.grid.get_nodes()}


# ---- what an honest upload can be -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HonestUpload:
    """Bound on the length of an honest upload, from public values alone.

    An upload is a clipped update c with |c| ≤ L plus Gaussian noise of standard deviation σ in each of p coordinates.
    Then |c + z|²/σ² is a noncentral χ² with p degrees of freedom and noncentrality at most (L/σ)², and (Birgé 2001,
    Lemma 8.1)

        P( X ≥ p + b + 2√((p + 2b)x) + 2x ) ≤ e^(−x),      b = (L/σ)², x = ln(1/false_alarm_rate).

    Where noise goes into every gradient, later gradients depend on earlier noise, and only |c + z| ≤ L + |z| holds; |z|
    is bounded by the same lemma with b = 0. The bound catches uploads that would move the model further than their
    price allows, and clients who add more noise than they are paid for. It does not catch a lie within the bound.

    length      L, the maximum ℓ2 norm of the update without noise
    noise_std   σ
    rounding    the most that rounding to the grid of the noise can add to the length
    adapts      whether the update may depend on the noise, as where every gradient has some
    """

    length: float
    noise_std: float
    rounding: float
    adapts: bool

    def longest(self, num_parameters: int, false_alarm_rate: float = FALSE_ALARM_RATE) -> float:
        """The length that an honest upload exceeds with probability at most `false_alarm_rate`."""
        rate = require_number(false_alarm_rate, "false_alarm_rate", 0.0, 1.0)
        if self.noise_std == 0:
            return self.length * FLOAT32_ROUNDING
        x, p = math.log(1 / rate), float(num_parameters)
        b = 0.0 if self.adapts else (self.length / self.noise_std) ** 2
        noisy = self.noise_std * math.sqrt(p + b + 2 * math.sqrt((p + 2 * b) * x) + 2 * x)
        return ((self.length if self.adapts else 0.0) + noisy + self.rounding) * FLOAT32_ROUNDING


def honest_upload(config: TrainingConfig, work: LocalWork, cost: ReleaseCost, num_parameters: int) -> HonestUpload:
    """The bound under the terms of a round."""
    clip = config.protection.clip_norm
    rounding = grid_of(cost.noise_std, config.protection.noise) * math.sqrt(num_parameters)
    if not config.protection.clips_examples:
        return HonestUpload(clip, cost.noise_std, rounding, adapts=False)
    # Each step moves the weights by the rate times a mean of gradients whose norm is at most the clip norm.
    reach = config.learning_rate * sum(times_counted(config, work))
    return HonestUpload(clip * reach, noise_in_update(config, work, cost), rounding * reach, adapts=True)


def fault_of(upload: Vector, honest: HonestUpload, false_alarm_rate: float = FALSE_ALARM_RATE) -> str:
    """Why the upload is rejected, in one line; empty if it is not."""
    if not np.isfinite(upload).all():
        return f"holds {int((~np.isfinite(upload)).sum()):,} entries that are NaN or infinite"
    values = upload.astype(np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    length = largest * float(np.linalg.norm(values / largest)) if largest else 0.0
    longest = honest.longest(upload.size, false_alarm_rate)
    if length > longest:
        return (
            f"measures {length:.4g}; an honest one exceeds {longest:.4g} with a chance of at most {false_alarm_rate:g}"
        )
    return ""
