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
    ClientTerms,
    NodeSettings,
    PrivateUpload,
    digest_of,
    read_node,
    report_in,
    vector_of,
    with_terms,
)
from mppfl.privacy.ledger import PrivacyLedger
from tests.flower.federation import arrays, moved, private_app

MODEL = arrays(1.0, 2.0, 3.0, 4.0, 5.0)


def terms(**changes):
    base = {
        "run": "run-1", "round_index": 1, "client": "ann", "budget": 0.5, "pays": 1.0, "privacy": "client",
        "adjacency": "replace-one", "clip_norm": 1.0, "noise": "gaussian", "local_epochs": 1, "num_steps": 1,
        "batch_size": 1,
    }  # fmt: skip
    return ClientTerms(**(base | changes))


def ask(app, given, model=MODEL, kind="train"):
    content = RecordDict({"arrays": model, "config": with_terms({"lr": 0.1}, given)})
    message = Message(content, 11, kind)
    message.metadata.__dict__["_message_id"] = "m"
    return app(message, Context(7, 11, {}, RecordDict(), {}))


def node_in(folder, **changes):
    return NodeSettings(client="ann", ledger=folder / "ledger.sqlite", **changes)


def events_of(node):
    with PrivacyLedger.open(node.ledger) as ledger:
        return list(ledger.events())


def test_what_leaves_is_the_noisy_update_and_its_report_and_nothing_else(tmp_path):
    node = node_in(tmp_path)
    reply = ask(private_app(node), terms())
    assert set(reply.content) == {"arrays", REPORT}  # the training function also gave metrics
    report = report_in(reply.content)
    assert set(reply.content[REPORT]) == {field.name for field in fields(report)}
    assert report.num_examples == 10
    assert (report.client, report.outcome, report.budget, report.run_spent) == ("ann", "released", 0.5, 0.5)
    assert report.model == digest_of(MODEL)
    assert list(reply.content["arrays"]) == ["first", "rest"]
    (event,) = events_of(node)  # and the ledger holds it
    columns = ("run", "round_index", "budget", "noise_kind", "status")
    assert [event[name] for name in columns] == ["run-1", 1, 0.5, "gaussian", "sent"]


def test_noise_has_the_spread_that_the_budget_buys_and_is_never_the_same(tmp_path):
    # σ = 2𝒮/√(2ρ) = 2 at 𝒮 = 1, ρ = ½. 4,000 coordinates: χ² within 6 standard deviations.
    model = ArrayRecord([np.zeros(4_000, dtype=np.float64)])
    app = private_app(node_in(tmp_path), train=lambda record: record)
    uploads = [vector_of(ask(app, terms(round_index=at), model).content["arrays"]) for at in (1, 2)]
    for upload in uploads:
        assert stats.chi2(4_000).sf((upload**2).sum() / 4) > 1e-9
        assert stats.chi2(4_000).cdf((upload**2).sum() / 4) > 1e-9
    assert not np.array_equal(*uploads)


def test_a_long_update_is_clipped_before_noise_and_a_zero_update_is_released(tmp_path):
    node = node_in(tmp_path, without_noise=True)
    free = terms(budget=math.inf)
    long = ask(private_app(node, train=lambda record: moved(record, 100.0)), free)
    assert np.linalg.norm(vector_of(long.content["arrays"])) == pytest.approx(1.0, rel=1e-6)
    still = ask(private_app(node, train=lambda record: record), terms(budget=math.inf, round_index=2))
    assert not vector_of(still.content["arrays"]).any()


def test_a_message_that_comes_again_gets_the_same_bytes_and_costs_nothing_more(tmp_path):
    node, trained = node_in(tmp_path), []
    app = private_app(node, train=lambda record: trained.append(1) or moved(record, 0.1))
    first = ask(app, terms())
    for model in (MODEL, moved(MODEL, 1.0)):  # the stored upload names the model that it was computed from
        again = ask(app, terms(), model)
        assert vector_of(first.content["arrays"]).tobytes() == vector_of(again.content["arrays"]).tobytes()
        assert report_in(first.content) == report_in(again.content)
    assert len(events_of(node)) == len(trained) == 1


@pytest.mark.parametrize("change", [{"budget": 0.6}, {"clip_norm": 2.0, "budget": 0.25}, {"noise": "discrete"}])
def test_other_terms_for_the_same_round_are_refused(tmp_path, change):
    node = node_in(tmp_path)
    app = private_app(node)
    ask(app, terms())
    assert report_in(ask(app, terms(**change)).content).reason == "other terms for the same round"
    assert len(events_of(node)) == 1


def test_a_round_whose_upload_was_lost_after_the_charge_is_refused_and_says_what_it_cost(tmp_path, monkeypatch):
    node = node_in(tmp_path)
    app = private_app(node)

    def dies_after_the_charge(self, *given):
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(PrivacyLedger, "store_upload", dies_after_the_charge)
        with pytest.raises(KeyboardInterrupt):
            ask(app, terms())
    report = report_in(ask(app, terms()).content)
    assert (report.outcome, report.reason, report.budget) == ("refused", "reserved before, upload lost", 0.5)
    assert len(events_of(node)) == 1  # counted once, released never


@pytest.mark.parametrize(
    ("settings", "given", "reason"),
    [
        ({"cap": 0.4}, {}, "over the cap"),
        ({"cap_per_round": 0.4}, {}, "over the cap of a round"),
        ({}, {"client": "bob"}, "terms of another client"),
        ({}, {"privacy": "paper"}, "mechanism not accepted"),
        ({"accept": ("paper", "dpsgd_poisson")}, {"privacy": "dpsgd_poisson", "adjacency": "add-remove"},
         "mechanism not accepted"),
        ({}, {"privacy": "full_batch"}, "mechanism not accepted"),
        ({}, {"privacy": "full_batch_steps"}, "mechanism not accepted"),
        ({"accept": ("dpsgd_shuffle",)}, {"privacy": "dpsgd_shuffle"}, "mechanism not accepted"),
        ({}, {"privacy": "trust me"}, "unknown mechanism"),
        ({}, {"noise": "seeded"}, "noise that protects no one"),
        ({}, {"budget": math.inf}, "no upload without noise"),
        ({"cap": 9.0, "without_noise": True}, {"budget": math.inf}, "over the cap"),
        ({}, {"budget": -1.0}, "terms that cannot be met"),
        ({}, {"clip_norm": 0.0}, "terms that cannot be met"),
    ],
)  # fmt: skip
def test_a_client_refuses_what_it_does_not_allow_and_spends_nothing(tmp_path, settings, given, reason):
    node, trained = node_in(tmp_path, **settings), []
    reply = ask(private_app(node, train=trained.append), terms(**given))
    report = report_in(reply.content)
    assert (report.outcome, report.reason, report.budget, report.run_spent) == ("refused", reason, 0.0, 0.0)
    assert "arrays" not in reply.content
    assert not trained
    assert not events_of(node)


def test_the_cap_counts_every_run_and_is_filled_to_the_brim(tmp_path):
    node = node_in(tmp_path, cap=0.3)
    app = private_app(node)
    outcomes = [report_in(ask(app, terms(run=f"run-{at}", budget=0.1)).content).outcome for at in range(4)]
    assert outcomes == ["released", "released", "released", "refused"]


def test_the_papers_mechanism_is_released_where_the_client_accepts_it_by_name(tmp_path):
    node = node_in(tmp_path, accept=("paper",))
    assert report_in(ask(private_app(node), terms(privacy="paper")).content).outcome == "released"
    assert events_of(node)[0]["worst_case_budget"] == 0.5 * 10**2


@pytest.mark.parametrize("fault", ["raises", "shape"])
def test_a_training_that_fails_is_refused_without_a_word_of_its_error_and_costs_nothing(tmp_path, fault):
    def train(record):
        if fault == "raises":
            raise ValueError("record 17 of the patient is odd")
        return arrays(1.0, 2.0, 3.0)

    node = node_in(tmp_path)
    reply = ask(private_app(node, train=train), terms())
    assert report_in(reply.content).reason == "training failed"
    assert "patient" not in str(reply)
    assert not events_of(node)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_whether_training_ran_into_nan_or_infinity_does_not_show_in_the_answer(tmp_path, caplog, value):
    # σ = 2 in each of 4,000 coordinates, as for an update of zeros; charged and reported like any other.
    model = ArrayRecord([np.zeros(4_000, dtype=np.float32)])
    node = node_in(tmp_path)
    reply = ask(private_app(node, train=lambda record: moved(record, value)), terms(), model)
    report, upload = report_in(reply.content), vector_of(reply.content["arrays"])
    assert (report.outcome, report.reason, report.budget, report.run_spent) == ("released", "", 0.5, 0.5)
    assert 1e-9 < stats.chi2(4_000).cdf((upload.astype(float) ** 2).sum() / 4) < 1 - 1e-9
    assert [event["budget"] for event in events_of(node)] == [0.5]
    assert "NaN or infinity" in caplog.text
    assert "NaN" not in str(reply)


@pytest.mark.parametrize("declared", [("full_batch_steps",), "full_batch_steps", lambda context: "full_batch_steps"])
def test_a_declared_training_function_is_trusted_with_the_mechanisms_it_declares_and_no_other(tmp_path, declared):
    app = private_app(node_in(tmp_path), trains_privately=declared)
    trusted = ask(app, terms(privacy="full_batch_steps"))
    assert vector_of(trusted.content["arrays"]) == pytest.approx(np.full(5, 0.1), rel=1e-5)
    other = report_in(ask(app, terms(privacy="full_batch", round_index=2)).content)
    assert (other.outcome, other.reason) == ("refused", "mechanism not accepted")


def test_a_declaration_of_no_known_mechanism_is_refused_at_once(tmp_path):
    with pytest.raises(BadInput, match="trains_privately='fullbatch' is not known"):
        private_app(node_in(tmp_path), trains_privately="fullbatch")


def test_noise_in_gradients_is_charged_before_training_and_stays_charged_if_that_fails(tmp_path):
    node = node_in(tmp_path)
    charged = []

    def train(record):
        charged.extend(events_of(node))
        raise ValueError

    app = private_app(node, train=train, trains_privately=("full_batch",))
    report = report_in(ask(app, terms(privacy="full_batch")).content)
    assert len(charged) == 1
    assert (report.outcome, report.budget) == ("refused", 0.5)


def test_evaluation_on_private_data_does_not_leave(tmp_path):
    app = ClientApp(mods=[PrivateUpload(10, node_in(tmp_path))])

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict(), reply_to=message)

    reply = ask(app, terms(), kind="evaluate")
    assert reply.has_error()


def test_a_client_that_cannot_answer_says_so_and_not_why(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("not a ledger")
    broken = ask(private_app(node_in(tmp_path)), terms())
    assert broken.has_error()
    assert str(tmp_path) not in str(broken.error)
    message = Message(RecordDict({"arrays": MODEL, "config": ConfigRecord({})}), 11, "train")
    unpriced = private_app(node_in(tmp_path / "elsewhere"))(message, Context(7, 11, {}, RecordDict(), {}))
    assert unpriced.has_error()  # a server that does not price gets nothing


def test_a_node_says_who_it_is_when_asked(tmp_path):
    app = private_app(node_in(tmp_path))
    message = Message(RecordDict({WHO: ConfigRecord({})}), 11, "train")
    reply = app(message, Context(7, 11, {}, RecordDict(), {}))
    assert dict(reply.content[WHO]) == {"client": "ann"}


def test_node_settings_read_back_as_they_were_written(tmp_path):
    node = node_in(tmp_path, cap=1.5, accept=("client",), without_noise=True)
    (tmp_path / "node.toml").write_text(node.to_toml())
    assert read_node(tmp_path / "node.toml") == node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('client = "ann"', "ledger=None must be text"),
        ('client = "ann"\nledger = "l"\ncapp = 1', "Did you mean 'cap'"),
        ('client = "ann"\nledger = "l"\ncap = true', "cap=True is of the wrong kind"),
        ('client = "ann"\nledger = "l"\ncap = -1', "cap=-1 must lie in"),
        ('client = "ann"\nledger = "l"\naccept = ["trust"]', "accept='trust' is not known"),
        ("client = ", "not TOML"),
    ],
)
def test_bad_node_settings_are_told_in_one_line_with_the_file(tmp_path, text, said):
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(BadFile, match=said) as found:
        read_node(tmp_path / "node.toml")
    assert str(tmp_path / "node.toml") in str(found.value)
