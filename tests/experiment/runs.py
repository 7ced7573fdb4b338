"""Runs for tests, made of random figures: any number of clients and rounds, with or without noise."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from mppfl.experiment import PrivacyAccounts, Run, provenance_here
from mppfl.network import SocialGraph, graph_from_matrix
from mppfl.privacy import Protection
from mppfl.training import PER_CLIENT, PER_ROUND, History

HERE = provenance_here(started="2026-01-02T03:04:05+00:00", seconds=12.25)
CONFIG = {
    "name": "demo",
    "seeds": [0],
    "game": {"num_rounds": 60, "externality_strength": 0.05, "payment_limit": 2.5},
    "data": {"name": "digits", "folder": "/home/somebody/data", "split": "dirichlet"},
    "training": {"model": "mlp", "learning_rate": 0.01, "aggregation": "noise_aware"},
    "protection": {"unit": "record", "budget_unit": 1.0},
    "ledger": {"cap": None, "caps": {}},
}
STRANGE = ["<script>alert(1)</script>", 'a "quoted", name', "Ünïcødé ρ", "=1+1", " blank ", "nan", "x" * 300]

CASES = {
    "usual": {},
    "noiseless": {"noiseless": True},
    "unevaluated rounds": {"evaluate_every": 5},
    "one client": {"num_clients": 1},
    "one round": {"num_rounds": 1},
    "one of each": {"num_clients": 1, "num_rounds": 1, "noiseless": True},
    "isolated and absent": {"isolated": 3, "absent": True},
    "strange names": {"names": STRANGE},
    "600 clients": {"num_clients": 600, "num_rounds": 3},
    "noise that protects": {"unit": "client", "noise": "gaussian", "notes": ("a note",)},
}


def graph_of(names, rng, isolated=0):
    """A random ring with chords; the last `isolated` clients are connected to nobody."""
    size, matrix = len(names) - isolated, np.zeros((len(names), len(names)))
    if size < 2:
        return SocialGraph(sp.csr_array(matrix), tuple(names), "row", matrix[0], np.arange(len(names)))
    around, chords = np.arange(size), rng.integers(0, size, (2, size))
    matrix[around, (around + 1) % size] = rng.uniform(0.5, 1.0, size)
    matrix[chords[0], chords[1]] = rng.uniform(0.1, 1.0, size)
    np.fill_diagonal(matrix, 0.0)
    return graph_from_matrix(matrix, names=names, isolated="keep")


def make_run(
    name="mppfl",
    *,
    num_clients=20,
    num_rounds=12,
    seed=0,
    names=None,
    noiseless=False,
    unit="record",
    noise="simulated",
    evaluate_every=1,
    isolated=0,
    absent=False,
    config=None,
    mechanism=None,
    notes=(),
):
    """A run whose figures are random but hang together."""
    rng = np.random.default_rng(seed)
    names = tuple(names or (f"client {i}" for i in range(num_clients)))
    size, rounds = len(names), np.arange(1, num_rounds + 1)
    graph = graph_of(names, rng, isolated)
    budgets = rng.uniform(0.01, 0.4, (num_rounds, size)) / np.sqrt(rounds)[:, None]
    participating = np.ones((num_rounds, size), dtype=bool)
    refused = [()] * num_rounds
    if absent and size > 2:
        participating[:, 0] = False
        participating[num_rounds // 2 :, 1] = False
        refused[-1] = (names[1],)
    budgets = np.where(participating, np.inf if noiseless else budgets, 0.0)
    rates = 2.0 / np.sqrt(rounds)
    payments = np.zeros_like(budgets) if noiseless else rates[:, None] * budgets
    spent = budgets.sum(axis=0)
    examples = rng.integers(30, 90, size)
    evaluated = (rounds % evaluate_every == 0) | (rounds == num_rounds)
    series = {name: rng.uniform(0, 1, num_rounds) for name in PER_ROUND} | {
        "round_index": rounds,
        "reward_rate": rates,
        "dispersion": np.full(num_rounds, np.nan),
        "accuracy": np.where(evaluated, 0.9 - 0.7 / rounds**0.6 + rng.normal(0, 0.01, num_rounds), np.nan),
        "loss": np.where(evaluated, 2.3 / rounds**0.5, np.nan),
        "dp_epsilon": np.full(num_rounds, np.inf if noiseless else 1.0) * rounds,
    }
    tables = {name: rng.uniform(0, 1, budgets.shape) for name in PER_CLIENT}
    tables |= {"budgets": budgets, "payments": payments, "spent": budgets, "participating": participating}
    protection = Protection(unit=unit, noise=noise)
    influence = graph.influence
    exposure = np.full(size, np.inf) if noiseless else influence @ spent + 0.5 * (influence @ (influence @ spent))
    return Run(
        name=name,
        mechanism=mechanism or name,
        config=CONFIG if config is None else config,
        history=History(series, tables, ("loop",) * num_rounds, tuple(refused)),
        weights=rng.normal(size=650).astype(np.float32),
        names=names,
        num_examples=examples,
        graph=graph,
        accounts=PrivacyAccounts(
            unit=protection.unit,
            adjacency=protection.adjacency,
            protection=protection.name,
            guarantee=protection.guarantee,
            noise="none" if noiseless else noise,
            dp_delta=1e-5,
            spent=spent,
            dp_epsilon=spent + 2 * np.sqrt(spent * 11.5),
        ),
        exposure=exposure,
        server_cost=np.full(num_rounds, np.nan) if noiseless else 3.0 / rounds + payments.sum(axis=1),
        welfare=np.full(num_rounds, -np.inf) if noiseless else payments.sum(axis=1) * 0.4,
        provenance=HERE,
        notes=notes,
    )
