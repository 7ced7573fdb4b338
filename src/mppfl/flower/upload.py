"""PrivateUpload: the client's side of a round, as a Flower mod around any training function.

The client checks terms against its own settings (identity.py) and its own ledger; the cost is on its disk before
anything leaves; noise comes from the operating system. Of what the training function returns only the clipped and noisy
update leaves: no metrics, no loss, no error text.

A round of a run is released once. The noisy upload is stored before it is sent, so a message that comes again gets the
same bytes again, which say nothing new and cost nothing new. If the client died after it had reserved the budget and
before it stored the upload, the round is refused from then on: fresh noise for it would be a second release.

Some protections put their noise on every gradient, where no mod can reach. They are refused unless the author of the
training function declares that it adds the noise (`trains_privately`): what it returns under them leaves as it is.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from mppfl.errors import BadFile, BadInput, BudgetExceeded, MppflError
from mppfl.fields import require_known
from mppfl.flower.identity import RELEASES, NodeSettings, node_of
from mppfl.flower.wire import (
    REPORT,
    WHO,
    ClientTerms,
    UploadReport,
    Vector,
    cost_of,
    digest_of,
    protection_of,
    record_like,
    terms_in,
    vector_of,
    work_of,
)
from mppfl.privacy import Protection, ReleaseCost, release_updates
from mppfl.privacy.ledger import CAP_SLACK, PrivacyLedger

log = logging.getLogger(__name__)

Train = Callable[[Message, Context], Message]


class Refused(MppflError):
    """A round in which this client releases nothing; the text is the word or two that the server gets."""


class PrivateUpload:
    """Flower mod that makes what a training function returns private, on the client's own terms.

    Given to the whole ClientApp it also refuses evaluation, whose figures would be a release that nobody accounts for.

    Args:
        num_examples: of this client, which counts as public: a number, or a function of Flower's context.
        node: the client's settings; default: the file that Flower's node configuration names.
        arrays_key: where the model lies in messages, as in the strategy.
        trains_privately: releases with noise on gradients, "gradient" or "steps", that the training function itself
            carries out at the terms' budget: names, or a function of Flower's context. A declaration, which nothing
            here can check: what the function returns under such terms leaves without further clipping and noise.
        fits: whether the training function will do what the terms say, where its own settings decide that.

    Raises:
        BadInput: where `trains_privately` names no known release.

    Example (in a Flower ClientApp):
        app = ClientApp(mods=[PrivateUpload(num_examples=1200)])

        @app.train()
        def train(message, context): ...  # as before: returns the trained model
    """

    def __init__(
        self,
        num_examples: int | Callable[[Context], int],
        node: NodeSettings | Callable[[Context], NodeSettings] | None = None,
        arrays_key: str = "arrays",
        trains_privately: Collection[str] | Callable[[Context], Collection[str]] = (),
        fits: Callable[[ClientTerms, Context], bool] = lambda terms, context: True,
    ) -> None:
        self.num_examples, self.node, self.arrays_key = num_examples, node, arrays_key
        self.trains_privately = trains_privately if callable(trains_privately) else _releases(trains_privately)
        self.fits = fits

    def __repr__(self) -> str:
        size = self.num_examples if isinstance(self.num_examples, int) else "function of the context"
        return f"PrivateUpload(num_examples={size})"

    def __call__(self, message: Message, context: Context, call_next: Train) -> Message:
        """Answers a message as a mod: trains and releases under its terms, or refuses."""
        try:
            return self._answer(message, context, call_next)
        except Exception:  # Flower would send the error's text, which may say something of this machine or its data
            log.exception("nothing is released")
            return Message(Error(0, "the client cannot answer; its own log says why"), reply_to=message)

    def _answer(self, message: Message, context: Context, call_next: Train) -> Message:
        node = self.node
        if not isinstance(node, NodeSettings):
            node = node_of(context) if node is None else node(context)
        if WHO in message.content:
            return Message(RecordDict({WHO: ConfigRecord({"client": node.client})}), reply_to=message)
        if message.metadata.message_type.split(".")[0] != "train":
            # Figures computed from raw data, such as a local accuracy, would be a release that nobody accounts for.
            return Message(Error(0, "only training is released"), reply_to=message)
        with PrivacyLedger.open(node.ledger) as ledger:
            return _ClientRound(self, node, ledger, message, context).answer(call_next)


def _releases(names: Collection[str]) -> tuple[str, ...]:
    """The declared releases. An unknown name would declare nothing, and nobody would notice."""
    declared = (names,) if isinstance(names, str) else tuple(names)
    require_known(declared, RELEASES, "trains_privately")
    return declared


@dataclass(frozen=True, slots=True)
class _StoredUpload:
    """An upload as the ledger keeps it: the noisy update, and the digest of the model it was computed from."""

    update: Vector
    model: str

    def to_bytes(self) -> bytes:
        content = io.BytesIO()
        np.savez(content, update=self.update, model=np.array(self.model))
        return content.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> _StoredUpload:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return cls(file["update"], str(file["model"]))


class _ClientRound:
    """One client's round, from the terms to the answer."""

    def __init__(
        self, mod: PrivateUpload, node: NodeSettings, ledger: PrivacyLedger, message: Message, context: Context
    ) -> None:
        self.mod, self.node, self.ledger, self.message, self.context = mod, node, ledger, message, context
        arrays: Any = message.content[mod.arrays_key]
        self.model: ArrayRecord = arrays
        self.base = vector_of(self.model)
        self.terms = terms_in(message.content)
        size = mod.num_examples
        self.num_examples = int(size if isinstance(size, int) else size(context))

    def answer(self, call_next: Train) -> Message:
        try:
            protection = self._accepted()
            work = work_of(self.terms, protection, self.num_examples)
            try:
                cost = cost_of(self.terms, protection, work, self.base.size)
            except BadInput as cause:
                log.warning("%s", cause)
                raise Refused("terms that cannot be met") from cause
            stored = self._stored_before(cost) or self._released(protection, cost, call_next)
            self.ledger.mark_sent(self.terms.run, self.terms.round_index, self.node.client)
        except Refused as refusal:
            log.warning("round %s of %s refused: %s", self.terms.round_index, self.terms.run, refusal)
            return self._reply(str(refusal), None)
        return self._reply("", stored)

    def _accepted(self) -> Protection:
        """The protection of the terms, if the client releases under it at all."""
        terms, node = self.terms, self.node
        if terms.client != node.client:
            raise Refused("terms of another client")
        try:
            protection = protection_of(terms)
        except BadInput as cause:
            raise Refused("unknown protection") from cause
        if terms.release not in node.accept or not protection.is_zcdp or not self._adds_noise(protection):
            raise Refused("protection not accepted")
        if not self.mod.fits(terms, self.context):
            raise Refused("terms of another training")
        if protection.is_simulated:
            raise Refused("noise that protects no one")
        if math.isinf(terms.budget) and not node.without_noise:
            raise Refused("no upload without noise")
        if node.cap_per_round is not None and terms.budget > node.cap_per_round:
            raise Refused("over the cap of a round")
        return protection

    def _adds_noise(self, protection: Protection) -> bool:
        """Whether noise is added: by this mod to updates, or by a training function that declares it, to gradients."""
        if not protection.clips_examples:
            return True
        declared = self.mod.trains_privately
        if protection.release in _releases(declared(self.context) if callable(declared) else declared):
            return True
        log.warning(
            "release %r has noise on gradients; PrivateUpload(trains_privately=...) lacks it", protection.release
        )
        return False

    def _stored_before(self, cost: ReleaseCost) -> _StoredUpload | None:
        """The upload of this very round, if it was made before; None where the round is new.

        The terms must be the same: the ledger compares them when the same round is reserved again.
        """
        run, round_index, client = self.terms.run, self.terms.round_index, self.node.client
        try:
            content = self.ledger.stored_upload(run, round_index, client)
        except BadFile:
            raise
        except BadInput:
            return None  # the ledger has no such round
        try:
            self.ledger.reserve(run, round_index, [cost])
        except BadInput as cause:
            raise Refused("other terms for the same round") from cause
        if content is None:
            raise Refused("reserved before, upload lost")
        return _StoredUpload.from_bytes(content)

    def _released(self, protection: Protection, cost: ReleaseCost, call_next: Train) -> _StoredUpload:
        """Trains, charges the ledger and adds noise, in the protection's order; the upload is stored on return."""
        node, terms = self.node, self.terms
        if node.cap is not None:
            self.ledger.set_cap(node.client, node.cap, protection.unit)
            if self.ledger.spent(node.client, protection.unit) + terms.budget > node.cap * (1 + CAP_SLACK):
                raise Refused("over the cap")  # before the work; the ledger decides again when it is charged
        if not protection.clips_examples:
            update = _finite(self._trained(call_next))
            self._reserve(cost)
            noisy = release_updates(
                update,
                [terms.budget],
                protection,
                work=work_of(terms, protection, self.num_examples),
                clients=[node.client],
                round_index=terms.round_index,
                run=terms.run,
            )
            if noisy.costs[0] != cost:
                raise MppflError(
                    f"the release cost {noisy.costs[0]}, but {cost} was reserved. This is a fault; report it."
                )
            update = noisy.updates
        else:  # training itself releases, as was declared, so the ledger comes first
            self._reserve(cost)
            update = self._trained(call_next)
        stored = _StoredUpload(update, digest_of(self.model))
        self.ledger.store_upload(terms.run, terms.round_index, node.client, stored.to_bytes())
        return stored

    def _reserve(self, cost: ReleaseCost) -> None:
        """Charges the client's own ledger. The charge is on the disk when this returns."""
        try:
            outcome = self.ledger.reserve(self.terms.run, self.terms.round_index, [cost]).outcomes[self.node.client]
        except BudgetExceeded as cause:
            raise Refused("over the cap") from cause
        except BadInput as cause:
            log.warning("%s", cause)
            raise Refused("cannot be added to the account") from cause
        if outcome != "reserved":  # another process of this client is at the same round
            raise Refused("reserved before, upload lost")

    def _trained(self, call_next: Train) -> Vector:
        """How far the training function moved the model. Its errors and its figures stay on this machine."""
        try:
            reply = call_next(self.message, self.context)
            if reply.has_error():
                raise BadInput(f"the training function answered with an error: {reply.error.reason}")
            arrays: Any = reply.content[self.mod.arrays_key]
            trained = vector_of(arrays)
            if trained.shape != self.base.shape or trained.dtype != self.base.dtype:
                raise BadInput(f"the training function returned {trained.size:,} numbers for {self.base.size:,}.")
        except Exception as cause:
            log.exception("training failed")
            raise Refused("training failed") from cause
        with np.errstate(invalid="ignore", over="ignore"):
            return trained - self.base

    def _reply(self, reason: str, stored: _StoredUpload | None) -> Message:
        terms, client = self.terms, self.node.client
        budgets = budgets_in_run(self.ledger, terms.run, client)
        report = UploadReport(
            client=client,
            run=terms.run,
            round_index=terms.round_index,
            outcome="refused" if stored is None else "released",
            reason=reason,
            budget=sum((budget for round_index, budget in budgets if round_index == terms.round_index), 0.0),
            num_examples=self.num_examples,
            model="" if stored is None else stored.model,
            run_spent=sum((budget for _, budget in budgets), 0.0),
        )
        content = RecordDict({REPORT: report.to_record()})
        if stored is not None:
            content[self.mod.arrays_key] = record_like(self.model, stored.update)
        return Message(content, reply_to=self.message)


def _finite(update: Vector) -> Vector:
    """The update, or zeros where training ended in NaN or infinity.

    A refusal would tell the server something about the data that no noise covers and no budget pays for. So the round
    goes on as any other, and only this machine's log mentions it.
    """
    if np.isfinite(update).all():
        return update
    log.warning("training gave NaN or infinity: zeros go out in its place, with noise and charged like any update")
    return np.zeros_like(update)


def budgets_in_run(ledger: PrivacyLedger, run: str, client: str) -> list[tuple[int, float]]:
    """Round and ρ of every release that the ledger holds for one client in one run, by round."""
    events = [event for event in ledger.events() if event["run"] == run and event["client"] == client]
    return sorted((event["round_index"], float(event["budget"] or 0.0)) for event in events)
