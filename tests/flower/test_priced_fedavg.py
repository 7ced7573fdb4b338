"""The server's strategy: own terms for each client, checks, payments, and a state that survives."""

import io
import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from mppfl.errors import BadInput
from mppfl.flower import (
    REPORT,
    WHO,
    Accounts,
    NodeSettings,
    PricedFedAvg,
    Registry,
    ServerFolder,
    differences_from_ledgers,
    make_node_key,
    pem_of,
    terms_in,
    vector_of,
)
from mppfl.privacy import Protection, epsilon
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import budget_unit_for
from tests.flower.federation import FakeGrid, arrays, config_of, moved, plan_of, private_app
from tests.homes import home

CLIENTS = ("ann", "bob", "cat")
MODEL = arrays(0.0, 0.0, 0.0, 0.0)
NOISELESS = {"budgets": (np.inf,) * 3, "settings": {name: {"without_noise": True} for name in CLIENTS}}


class Federation:
    """Three clients at nodes 101, 102, 103, in a folder."""

    def __init__(self, folder, budgets=(0.5, 1.0, 2.0), num_rounds=3, settings=None, train=None, **changes):
        self.folder, self.plan, self.config = folder, plan_of(budgets, num_rounds), config_of(**changes)
        self.ledgers, apps = {name: folder / f"{name}.sqlite" for name in CLIENTS}, {}
        for at, (name, ledger) in enumerate(self.ledgers.items()):
            node = NodeSettings(name, ledger, **(settings or {}).get(name, {}))
            apps[101 + at] = private_app(node, (train or {}).get(name))
        self.grid = FakeGrid(apps)

    def strategy(self, folder="server", **more):
        return PricedFedAvg(self.plan, CLIENTS, self.config, folder=self.folder / folder, wait_seconds=0.1, **more)

    def run(self, num_rounds=0, **more):
        return self.strategy(**more).start(self.grid, MODEL, num_rounds, timeout=1)

    def entries(self):
        with Accounts.open(self.folder / "server" / "accounts.sqlite", read_only=True) as accounts:
            return accounts.entries()

    def owed(self):
        with Accounts.open(self.folder / "server" / "accounts.sqlite", read_only=True) as accounts:
            return accounts.owed()

    def states(self, round_index):
        return {entry.client: entry.state for entry in self.entries() if entry.round_index == round_index}

    def reasons(self):
        return {entry.client: entry.reason for entry in self.entries() if entry.reason}

    def differences(self):
        return differences_from_ledgers(self.entries(), self.ledgers, self.entries()[0].run)

    def releases(self, name):
        """What a client's own ledger holds."""
        with PrivacyLedger.open(self.ledgers[name]) as ledger:
            ledger.verify()
            return list(ledger.events())


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def test_a_whole_run_asks_everybody_on_its_own_terms_and_ends_with_accounts_that_agree_to_the_last_bit(tmp_path):
    federation = Federation(tmp_path, budgets=(0.1, 0.7, 1.3), num_rounds=5)
    federation.run(1)
    asked = [message for message in federation.grid.sent if WHO not in message.content]
    terms = {message.metadata.dst_node_id: terms_in(message.content) for message in asked}
    assert {node: (offer.client, offer.budget, offer.pays) for node, offer in terms.items()} == {
        101: ("ann", 0.1, 0.2),
        102: ("bob", 0.7, 1.4),
        103: ("cat", 1.3, 2.6),
    }
    # Identity follows the declared name, whatever the ids of nodes and their order.
    federation.grid.apps = {900 - position: app for position, app in enumerate(federation.grid.apps.values())}
    federation.run()
    assert federation.states(2) == dict.fromkeys(CLIENTS, "paid")
    assert federation.differences() == []
    assert federation.owed() == pytest.approx({"ann": 1.0, "bob": 7.0, "cat": 13.0})


@pytest.mark.parametrize(
    ("trouble", "timeout", "reason"),
    [
        ("dead", 1, "Node Unavailable"),  # the error comes from the SuperLink, not from the node
        ("silent", 0.1, "no answer in time"),
        ("restarted", math.inf, "no answer in time"),  # the node came back between two looks, the message did not
    ],
)
def test_a_node_that_fails_in_a_round_is_lost_and_named_and_the_others_go_on(
    federation, monkeypatch, trouble, timeout, reason
):
    monkeypatch.setattr(PricedFedAvg, "poll_seconds", 0.01)
    monkeypatch.setattr(PricedFedAvg, "look_seconds", 0.02)
    strategy = federation.strategy()
    strategy.attendance.here(federation.grid, 1)  # every node has given its name when one fails
    federation.grid.trouble[102] = trouble
    strategy.start(federation.grid, MODEL, 1, timeout=timeout)
    assert federation.states(1) == {"ann": "paid", "bob": "lost", "cat": "paid"}
    assert reason in federation.reasons()["bob"]
    (difference,) = federation.differences()  # the server presumes what the client did not spend
    assert (difference.client, difference.is_harmless) == ("bob", True)


def upload_with(change):
    """What a node does to a reply with an upload in it, and to no other."""

    def alter(reply):
        if REPORT in reply.content:
            change(reply.content)
        return reply

    return alter


def altered(**changes):
    return upload_with(lambda content: content[REPORT].update(changes))


def with_arrays(change):
    return upload_with(lambda content: content.update(arrays=change(content["arrays"])))


def without(name):
    return upload_with(lambda content: content.pop(name))


def saved(values, save=np.save):
    file = io.BytesIO()
    save(file, values)
    return file.getvalue()


def holding(data, stype="numpy.ndarray"):
    """An upload whose first array declares what it should, two numbers of float32, and holds these bytes."""
    return with_arrays(
        lambda record: ArrayRecord(OrderedDict(first=Array("float32", (2,), stype, data), rest=record["rest"]))
    )


ENDLESS = saved(np.zeros(2, np.float32)).replace(b"(2,), }" + b" " * 12, b"(10000000000000,), }")[:-8]


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (holding(b"garbage"), "'first' cannot be read"),
        (holding(saved(np.array([None, 1], dtype=object))), "'first' cannot be read"),
        (holding(ENDLESS), "'first' cannot be read"),
        (holding(saved(np.zeros(2, np.float32), np.savez)), "'first' holds no array"),
        (holding(saved(np.zeros(100_000, np.float32))), "'first' holds float32 (100000,), not float32 (2,)"),
        (holding(saved(np.zeros(2, np.float64))), "'first' holds float64 (2,)"),
        (holding(saved(np.zeros(2, ">f4"))), "'first' holds >f4 (2,)"),
        (with_arrays(lambda record: moved(record, np.nan)), "NaN or infinite"),
        (with_arrays(lambda record: arrays(1.0, 2.0, 3.0)), "wrong form"),
        (with_arrays(lambda record: arrays(1.0, 2.0, 3.0, 4.0, dtype=np.float64)), "wrong form"),
        (with_arrays(lambda record: moved(record, 1000.0)), "an honest one exceeds"),
        (altered(budget=0.9), "says it cost 0.9, and 1 was asked for"),
        (altered(round_index=2), "is for round 2"),
        (altered(run="another"), "is for round 1 of 'another'"),
        (altered(num_examples=0), "declares 0 examples"),
        (altered(num_examples=2**52), f"declares {2**52} examples, and the server knows of 10"),
        (altered(client="ann"), "declares to be 'ann', and its key is that of 'bob'"),
        (altered(model="0" * 64), "another model"),
        (altered(outcome="perhaps"), "neither 'released' nor 'refused'"),
        (altered(budget="0.5"), "must be float"),
        (altered(run_spent=float("nan")), "must be float"),
        (without("arrays"), "has no arrays in it"),
        (without(REPORT), "has no report"),
    ],
)
def test_an_upload_that_cannot_be_honest_is_rejected_and_named_and_not_paid_and_the_round_goes_on(
    tmp_path, alter, said
):
    federation = Federation(tmp_path, aggregation="num_examples")
    federation.grid.alter[102] = alter
    result = federation.run(1, num_examples=dict.fromkeys(CLIENTS, 10))
    assert federation.states(1) == {"ann": "paid", "bob": "rejected", "cat": "paid"}
    assert said in federation.reasons()["bob"]
    assert federation.owed()["bob"] == 0.0
    assert np.isfinite(vector_of(result.arrays)).all()


def test_a_client_that_declares_another_size_than_before_is_rejected_also_after_a_restart(tmp_path):
    federation = Federation(tmp_path, aggregation="num_examples")
    for size in (10, 2**52, 10):
        federation.grid.alter[102] = altered(num_examples=size)
        federation.run(1)
    assert [federation.states(round_index)["bob"] for round_index in (1, 2, 3)] == ["paid", "rejected", "paid"]
    assert federation.reasons() == {"bob": f"declares {2**52} examples, and declared 10 before"}


@pytest.mark.parametrize(
    ("sizes", "said"), [({"ann": 1, "bob": 1}, "no number for client 'cat'"), (dict.fromkeys(CLIENTS, 0), "'ann'")]
)
def test_sizes_that_the_server_cannot_know_are_refused_in_one_line(federation, sizes, said):
    with pytest.raises(BadInput, match=said):
        federation.strategy(num_examples=sizes)


def test_a_reason_that_no_book_could_hold_is_written_as_far_as_it_can_be(federation):
    federation.grid.alter[102] = altered(outcome="refused", reason="no\ud800", budget=0.0)
    federation.run(1)
    assert (federation.states(1)["bob"], federation.reasons()) == ("refused", {"bob": "no?"})


def test_a_name_that_is_no_text_and_one_that_two_nodes_declare_are_left_out(federation):
    def nameless(reply):
        if WHO in reply.content:
            reply.content[WHO] = ConfigRecord({"client": ["bob"]})
        return reply

    federation.grid.alter[102] = nameless
    federation.grid.apps[104] = federation.grid.apps[101]
    federation.run(1)
    assert set(federation.states(1)) == {"cat"}


def test_what_cannot_be_averaged_is_not_paid(federation, monkeypatch):
    def fails(*given):
        raise RuntimeError("no mean")

    monkeypatch.setattr(home(PricedFedAvg), "weights_of_updates", fails)
    with pytest.raises(RuntimeError, match="no mean"):
        federation.run(1)
    assert set(federation.states(1).values()) == {"asked"}


def test_a_round_in_which_nobody_releases_leaves_the_model_and_counts_as_done(tmp_path):
    federation = Federation(tmp_path, settings={name: {"cap": 0.0} for name in CLIENTS})
    federation.run(1)
    state = federation.strategy().folder.state()
    assert state.rounds_done == 1
    assert not state.weights.any()


# ---- stopping and going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "average"), [("momentum", 0), ("adam", 0), ("sgd", 2)])
def test_stopped_after_a_round_it_goes_on_with_the_next_and_ends_where_it_would_have(tmp_path, optimizer, average):
    models, evaluated = [], []
    for name, stops in (("whole", (0, 0)), ("parts", (1, 1, 1))):
        (tmp_path / name).mkdir()
        federation = Federation(tmp_path / name, server_optimizer=optimizer, average_rounds=average, **NOISELESS)
        for rounds in stops:  # where nothing is left to do, the model is the same
            result = federation.strategy().start(
                federation.grid, MODEL, rounds, timeout=1, evaluate_fn=lambda at, _: evaluated.append(at)
            )
        models.append(vector_of(result.arrays).tobytes())
    assert models[0] == models[1]
    assert evaluated == [0, 1, 2, 3, 3, 0, 1, 1, 2, 2, 3]  # the evaluation gets the true numbers of rounds


class Killed(BaseException):
    """As by SIGKILL: nothing is tidied up."""


def interrupted(federation, monkeypatch, owner, name):
    """A round in which the server is killed as it calls this."""

    def killed(self, *given):
        raise Killed

    with monkeypatch.context() as change:
        change.setattr(owner, name, killed)
        with pytest.raises(Killed):
            federation.run(1)


@pytest.mark.parametrize(("owner", "name"), [(Accounts, "settle"), (ServerFolder, "keep")])
def test_killed_in_a_round_it_repeats_that_round_and_nobody_spends_or_is_paid_twice(
    federation, monkeypatch, owner, name
):
    """Before the answers are booked, or before the checkpoint."""
    federation.run(1)
    interrupted(federation, monkeypatch, owner, name)
    assert [len(federation.releases(client)) for client in CLIENTS] == [2, 2, 2]
    federation.run()
    for client in CLIENTS:
        assert [event["round_index"] for event in federation.releases(client)] == [1, 2, 3]
    assert federation.differences() == []
    assert federation.owed() == {"ann": 3.0, "bob": 6.0, "cat": 12.0}


def test_who_was_asked_before_an_interruption_and_is_gone_when_the_round_is_repeated_is_lost(federation, monkeypatch):
    interrupted(federation, monkeypatch, Accounts, "settle")
    assert set(federation.states(1).values()) == {"asked"}
    del federation.grid.apps[103]
    federation.run(1)
    assert federation.states(1) == {"ann": "paid", "bob": "paid", "cat": "lost"}
    assert "absent when the round was repeated" in federation.reasons()["cat"]


def test_a_second_training_with_the_same_name_is_another_run_to_every_ledger(federation):
    federation.run(1)
    federation.run(1, folder="other")
    first, second = (event["run"] for event in federation.releases("ann"))
    assert first == federation.entries()[0].run != second


def test_another_plan_does_not_go_on_in_the_folder(federation):
    federation.run(1)
    asked = len(federation.grid.sent)
    with pytest.raises(BadInput, match="another plan"):
        Federation(federation.folder, budgets=(9.0, 9.0, 9.0)).run()
    assert len(federation.grid.sent) == asked


# ---- who is who -------------------------------------------------------------------------------------------------


def registered(federation, *strangers):
    """A registry of the clients' keys, which their nodes hold; and the keys of all in PEM."""
    public = {name: make_node_key(federation.folder / f"{name}.key") for name in (*CLIENTS, *strangers)}
    pem = {name: pem_of(key, name) for name, key in public.items()}
    federation.grid.keys = {101 + position: pem[name] for position, name in enumerate(CLIENTS)}
    return Registry.of_keys({name: public[name] for name in CLIENTS}), pem


def test_with_a_registry_the_key_decides_and_strangers_are_not_asked(federation):
    registry, pem = registered(federation, "mallory")
    apps = federation.grid.apps
    apps[104] = apps[105] = apps[101]  # ann's settings with a key of its own, and without any key
    federation.grid.keys[104] = pem["mallory"]
    federation.run(1, registry=registry)
    assert {message.metadata.dst_node_id for message in federation.grid.sent} == {101, 102, 103}
    assert federation.states(1) == dict.fromkeys(CLIENTS, "paid")


def test_a_node_whose_declared_name_is_not_that_of_its_key_releases_nothing(federation):
    registry, _ = registered(federation)
    federation.grid.apps[102] = federation.grid.apps[101]  # bob's key, ann's settings
    federation.run(1, registry=registry)
    assert federation.states(1) == {"ann": "paid", "bob": "rejected", "cat": "paid"}
    assert federation.reasons() == {"bob": "declares to be 'ann', and its key is that of 'bob'"}
    assert len(federation.releases("ann")) == 1


def test_a_registry_with_one_key_for_two_clients_is_refused(tmp_path):
    key = make_node_key(tmp_path / "key")
    with pytest.raises(BadInput, match="have the same key"):
        Registry.of_keys({"ann": key, "bob": key})


class HalfNoise(Protection):
    def sensitivity(self, work):
        return super().sensitivity(work) / 2


@pytest.mark.parametrize(
    ("protection", "said"),
    [
        (Protection(unit="client", noise="simulated"), "simulated"),
        (Protection(unit="client", trust="secure_sum", noise="discrete"), "trust='secure_sum' is simulated only"),
        (Protection(unit="client", trust="server", noise="gaussian"), "trust='server' is simulated only"),
        (Protection(unit="client", noise="gaussian", clip_quantile=0.5), "clip_quantile is for mppfl's own trainings"),
        (Protection(release="steps", batches="poisson", noise="gaussian"), "Use batches='shuffled'"),
        (HalfNoise(unit="client", noise="gaussian"), r"HalfNoise is a protection of your own.*Use that\.$"),
    ],
)
def test_what_terms_cannot_say_and_what_makes_sense_on_one_machine_only_is_refused(federation, protection, said):
    federation.config = replace(federation.config, protection=protection)
    with pytest.raises(BadInput, match=said) as refused:
        federation.strategy()
    assert "\n" not in str(refused.value)


def test_a_total_epsilon_is_kept_by_the_plan_and_gives_the_unit_of_every_budget(tmp_path):
    # As on one machine: the client whose budgets add to most, 3 · 2.0 of the game, ends at ε and the others below.
    federation = Federation(tmp_path, protection={"total_epsilon": 3.0})
    federation.run(1)
    federation.run()  # from another process: the unit is the same, so the run goes on
    unit = budget_unit_for(federation.plan, 3.0, 1e-5)
    assert [entry.budget for entry in federation.entries()] == [unit * 0.5, unit * 1.0, unit * 2.0] * 3
    assert epsilon(sum(event["budget"] for event in federation.releases("cat")), 1e-5) == pytest.approx(3.0, rel=1e-6)
    assert federation.owed() == {"ann": 3.0, "bob": 6.0, "cat": 12.0}  # money is for budgets of the game
    assert federation.differences() == []


def test_a_total_epsilon_that_the_plan_cannot_keep_is_refused_before_anybody_is_asked(tmp_path):
    federation = Federation(tmp_path, budgets=(np.inf,) * 3, protection={"total_epsilon": 3.0})
    with pytest.raises(BadInput, match="whose budgets are infinite"):
        federation.run()
    assert federation.grid.sent == []
    assert federation.strategy().folder.state() is None
