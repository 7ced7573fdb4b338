"""The client's mod: what leaves a client, what never does, and what it costs."""

import math
from dataclasses import fields

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from scipy import stats

from mppfl.errors import BadFile, BadInput
from mppfl.flower import (
    REPORT,
    WHO,
    NodeSettings,
    PrivateUpload,
    digest_of,
    read_node,
    report_in,
    vector_of,
    with_terms,
)
from mppfl.privacy.ledger import PrivacyLedger
from tests.flower.federation import arrays, moved, private_app, terms

MODEL = arrays(1.0, 2.0, 3.0, 4.0, 5.0)
GRADIENT = {"unit": "record", "release": "gradient"}
STEPS = {"unit": "record", "release": "steps"}
POISSON = {**STEPS, "batches": "poisson", "adjacency": "zero_out"}


def sent(app, kind="train", **records):
    message = Message(RecordDict(records), 11, kind)
    message.metadata.__dict__["_message_id"] = "m"
    return app(message, Context(7, 11, {}, RecordDict(), {}))


def ask(app, model=MODEL, kind="train", **changes):
    return sent(app, kind, arrays=model, config=with_terms({"lr": 0.1}, terms(**changes)))


def reported(app, **changes):
    """Outcome, reason, budget and what the run has cost so far, as the client reports them."""
    report = report_in(ask(app, **changes).content)
    return report.outcome, report.reason, report.budget, report.run_spent


def node_in(folder, **changes):
    return NodeSettings(client="ann", ledger=folder / "ledger.sqlite", **changes)


@pytest.fixture
def node(tmp_path):
    return node_in(tmp_path)


def events_of(node):
    with PrivacyLedger.open(node.ledger) as ledger:
        return list(ledger.events())


def share_below(upload):
    """How unlikely small an upload of 4,000 coordinates is where it is noise alone.

    σ = 2𝒮/√(2ρ) = 2 at 𝒮 = 1, ρ = ½: χ² within 6 standard deviations is between 1e-9 and 1 - 1e-9.
    """
    return stats.chi2(4_000).cdf((vector_of(upload).astype(float) ** 2).sum() / 4)


def test_what_leaves_is_the_noisy_update_and_its_report_and_nothing_else(node):
    reply = ask(private_app(node))
    assert set(reply.content) == {"arrays", REPORT}  # the training function also gave metrics
    report = report_in(reply.content)
    assert set(reply.content[REPORT]) == {field.name for field in fields(report)}
    assert report.num_examples == 10
    assert (report.client, report.outcome, report.budget, report.run_spent) == ("ann", "released", 0.5, 0.5)
    assert report.model == digest_of(MODEL)
    assert list(reply.content["arrays"]) == ["first", "rest"]
    (event,) = events_of(node)  # and the ledger holds it
    columns = ("run", "round_index", "protection", "budget", "noise_kind", "status")
    assert [event[name] for name in columns] == ["run-1", 1, "local client update", 0.5, "gaussian", "sent"]


def test_noise_has_the_spread_that_the_budget_buys_and_is_never_the_same(node):
    model = ArrayRecord([np.zeros(4_000, dtype=np.float64)])
    app = private_app(node, train=lambda record: record)
    uploads = [ask(app, model, round_index=round_index).content["arrays"] for round_index in (1, 2)]
    assert all(1e-9 < share_below(upload) < 1 - 1e-9 for upload in uploads)
    assert not np.array_equal(*map(vector_of, uploads))


def test_a_long_update_is_clipped_before_noise_and_a_zero_update_is_released(tmp_path):
    node = node_in(tmp_path, without_noise=True)
    for round_index, (by, length) in enumerate(((100.0, 1.0), (0.0, 0.0)), start=1):
        app = private_app(node, train=lambda record, by=by: moved(record, by))
        upload = ask(app, budget=math.inf, round_index=round_index).content["arrays"]
        assert np.linalg.norm(vector_of(upload)) == pytest.approx(length, rel=1e-6)


def test_a_message_that_comes_again_gets_the_same_bytes_and_costs_nothing_more(node):
    trained = []
    app = private_app(node, train=lambda record: trained.append(1) or moved(record, 0.1))
    first = ask(app)
    for model in (MODEL, moved(MODEL, 1.0)):  # the stored upload names the model that it was computed from
        again = ask(app, model)
        assert vector_of(first.content["arrays"]).tobytes() == vector_of(again.content["arrays"]).tobytes()
        assert report_in(first.content) == report_in(again.content)
    for change in ({"budget": 0.6}, {"clip_norm": 2.0, "budget": 0.25}, {"noise": "discrete"}):
        assert reported(app, **change)[1] == "other terms for the same round"
    assert len(events_of(node)) == len(trained) == 1


def test_a_round_whose_upload_was_lost_after_the_charge_is_refused_and_says_what_it_cost(node, monkeypatch):
    app = private_app(node)

    def dies_after_the_charge(self, *given):
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(PrivacyLedger, "store_upload", dies_after_the_charge)
        with pytest.raises(KeyboardInterrupt):
            ask(app)
    assert reported(app)[:3] == ("refused", "reserved before, upload lost", 0.5)
    assert len(events_of(node)) == 1  # counted once, released never


@pytest.mark.parametrize(
    ("settings", "given", "reason"),
    [
        ({"cap": 0.4}, {}, "over the cap"),
        ({"cap_per_round": 0.4}, {}, "over the cap of a round"),
        ({}, {"client": "bob"}, "terms of another client"),
        ({"accept": ("gradient", "steps")}, {}, "protection not accepted"),
        ({"accept": ("update",)}, GRADIENT, "protection not accepted"),
        ({}, GRADIENT, "protection not accepted"),  # nobody declares to add the noise
        ({}, {"release": "trust me"}, "unknown protection"),
        ({}, {"unit": "record"}, "unknown protection"),  # no record hides in a whole update
        ({}, {"noise": "simulated"}, "noise that protects no one"),
        ({}, {"budget": math.inf}, "no upload without noise"),
        ({"cap": 9.0, "without_noise": True}, {"budget": math.inf}, "over the cap"),
        ({}, {"budget": -1.0}, "terms that cannot be met"),
    ],
)  # fmt: skip
def test_a_client_refuses_what_it_does_not_allow_and_spends_nothing(tmp_path, settings, given, reason):
    node, trained = node_in(tmp_path, **settings), []
    app = private_app(node, train=trained.append)
    assert reported(app, **given) == ("refused", reason, 0.0, 0.0)
    assert "arrays" not in ask(app, **given).content
    assert not trained
    assert not events_of(node)


def test_the_cap_counts_every_run_and_is_filled_to_the_brim(tmp_path):
    app = private_app(node_in(tmp_path, cap=0.3))
    outcomes = [reported(app, run=f"run-{number}", budget=0.1)[0] for number in range(4)]
    assert outcomes == ["released", "released", "released", "refused"]


@pytest.mark.parametrize("train", [lambda record: {}["the patient"], lambda record: arrays(1.0, 2.0, 3.0)])
def test_a_training_that_fails_is_refused_without_a_word_of_its_error_and_costs_nothing(node, train):
    reply = ask(private_app(node, train=train))
    assert report_in(reply.content).reason == "training failed"
    assert "patient" not in str(reply)
    assert not events_of(node)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_whether_training_ran_into_nan_or_infinity_does_not_show_in_the_answer(node, caplog, value):
    # As for an update of zeros; charged and reported like any other.
    model = ArrayRecord([np.zeros(4_000, dtype=np.float32)])
    reply = ask(private_app(node, train=lambda record: moved(record, value)), model)
    report = report_in(reply.content)
    assert (report.outcome, report.reason, report.budget, report.run_spent) == ("released", "", 0.5, 0.5)
    assert 1e-9 < share_below(reply.content["arrays"]) < 1 - 1e-9
    assert [event["budget"] for event in events_of(node)] == [0.5]
    assert "NaN or infinity" in caplog.text
    assert "NaN" not in str(reply)


@pytest.mark.parametrize("declared", [("steps",), "steps", lambda context: "steps"])
def test_a_declared_training_function_is_trusted_with_the_releases_it_declares_and_no_other(node, declared):
    app = private_app(node, trains_privately=declared)
    for round_index, batches in enumerate(("whole", "shuffled"), start=1):
        trusted = ask(app, **STEPS, batches=batches, round_index=round_index)
        assert vector_of(trusted.content["arrays"]) == pytest.approx(np.full(5, 0.1), rel=1e-5)
    for other in (GRADIENT, POISSON):  # Poisson samples have no zCDP budget that a cap could hold
        assert reported(app, **other, round_index=3)[:2] == ("refused", "protection not accepted")
    with pytest.raises(BadInput, match=r"'trains_privately\.step' is not known\. Did you mean 'steps'"):
        private_app(node, trains_privately="step")


def test_noise_in_gradients_is_charged_before_training_and_stays_charged_if_that_fails(node):
    charged = []

    def train(record):
        charged.extend(events_of(node))
        raise ValueError

    app = private_app(node, train=train, trains_privately=("gradient",))
    assert reported(app, **GRADIENT)[::2] == ("refused", 0.5)
    assert len(charged) == 1


def test_a_client_that_cannot_answer_says_so_and_not_why(tmp_path, node):
    app = ClientApp(mods=[PrivateUpload(10, node)])
    app.evaluate()(lambda message, context: Message(RecordDict(), reply_to=message))
    assert ask(app, kind="evaluate").has_error()  # no evaluation on private data leaves
    unpriced = sent(private_app(node), arrays=MODEL, config=ConfigRecord({}))
    assert unpriced.has_error()  # a server that does not price gets nothing
    assert dict(sent(private_app(node), **{WHO: ConfigRecord({})}).content[WHO]) == {"client": "ann"}  # only a name
    node.ledger.write_text("not a ledger")
    broken = ask(private_app(node))
    assert broken.has_error()
    assert str(tmp_path) not in str(broken.error)


def test_node_settings_read_back_as_they_were_written(tmp_path):
    node = node_in(tmp_path, cap=1.5, accept=("update",), without_noise=True)
    (tmp_path / "node.toml").write_text(node.to_toml())
    assert read_node(tmp_path / "node.toml") == node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('client = "ann"', "ledger=None must be text"),
        ('client = "ann"\nledger = "l"\ncapp = 1', "Did you mean 'cap'"),
        ('client = "ann"\nledger = "l"\ncap = true', "cap=True is of the wrong kind"),
        ('client = "ann"\nledger = "l"\ncap = -1', "cap=-1 must lie in"),
        ('client = "ann"\nledger = "l"\naccept = ["trust"]', "'accept.trust' is not known"),
        ("client = ", "not TOML"),
    ],
)
def test_bad_node_settings_are_told_in_one_line_with_the_file(tmp_path, text, said):
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(BadFile, match=said) as refused:
        read_node(tmp_path / "node.toml")
    assert str(tmp_path / "node.toml") in str(refused.value)
