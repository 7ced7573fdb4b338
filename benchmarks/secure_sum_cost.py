"""What budgets cost the server by where noise lies: on every upload, or as one on the sum of all.

    python benchmarks/secure_sum_cost.py

Thirty games of the preset paper-like with 20 clients, round 1. Costs are the server's own: τ times the accuracy term of
its aggregation, 1 − τ times what it pays. Personal prices under noise-aware aggregation are no mechanism of mppfl; they
are found by SciPy. "at equal accuracy" is what is paid where personal prices for the sum buy just the accuracy that
noise-aware aggregation has at one rate. Writes records/<date>-secure-sum-cost.json.
"""

from dataclasses import replace
from statistics import mean

import numpy as np
from scipy.optimize import brentq, minimize

import mppfl
from mppfl.game import Game, noise_aware_cost, personal_prices
from record import circumstances, write_record

GAMES, CLIENTS = 30, 20
NOISE_AWARE = "noise-aware, one rate"
ROWS = {  # name of the row: mechanism, and the rule by which clients participate
    "size weights": ("mppfl_exact", "everyone"),
    "noise-aware, one rate, everybody in": ("mppfl_noise_aware", "everyone"),
    NOISE_AWARE: ("mppfl_noise_aware", "voluntary"),
    "secure sum, one rate, everybody in": ("mppfl_secure_sum", "everyone"),
    "secure sum, one rate": ("mppfl_secure_sum", "voluntary"),
    "secure sum, personal prices": ("personalised_secure_sum", "everyone"),
}
PERSONAL = "noise-aware, personal prices"


def cheapest_noise_aware(game: Game) -> tuple[float, int]:
    """Least cost by personal prices under noise-aware aggregation, and how many give more than a millionth."""

    def cost(budgets):
        return noise_aware_cost(game, 1, personal_prices(game, budgets), budgets)

    bounds = [(0.0, None)] * game.num_clients
    exact = {"ftol": 1e-14, "gtol": 1e-10, "maxfun": 10**6, "maxiter": 10**5}
    least = minimize(cost, np.full(game.num_clients, 0.1), method="L-BFGS-B", bounds=bounds, options=exact)
    return float(least.fun), int((least.x > 1e-6).sum())


def paid_at(game: Game, accuracy: float) -> float:
    """Payments of personal prices for the sum that buy this accuracy term: another weight τ buys another accuracy."""

    def bought(log_odds):
        weighed = replace(game, accuracy_weight=float(1 / (1 + np.exp(-log_odds))))
        return mppfl.solve(weighed, "personalised_secure_sum").outcome

    root = brentq(lambda log_odds: bought(log_odds).accuracy_terms[0] - accuracy, -30, 30, xtol=1e-9)
    return float(bought(root).payments[0])


def main() -> None:
    content = circumstances("numpy", "scipy") | {"games": GAMES, "clients": CLIENTS, "preset": "paper-like", "rows": {}}
    rows = {name: {"cost": [], "accuracy_term": [], "payments": [], "participating": []} for name in (*ROWS, PERSONAL)}
    equal = []
    for seed in range(GAMES):
        game = mppfl.GameSpec(num_clients=CLIENTS, seed=seed).build()
        for name, (mechanism, rule) in ROWS.items():
            outcome = mppfl.solve(game, mechanism, participation=rule).outcome
            figures = outcome.server_costs, outcome.accuracy_terms, outcome.payments, outcome.participating
            for column, values in zip(rows[name].values(), figures, strict=True):
                column.append(float(values[0]))
        cost, count = cheapest_noise_aware(game)
        rows[PERSONAL]["cost"].append(cost)
        rows[PERSONAL]["participating"].append(count)
        aware = {column: values[-1] for column, values in rows[NOISE_AWARE].items()}
        equal.append(aware["payments"] / paid_at(game, aware["accuracy_term"]))
    least = mean(rows["secure sum, personal prices"]["cost"])
    print(f"{'server':<38}{'cost':>8}{'clients in':>12}{'times personal prices for the sum':>36}")
    for name, columns in rows.items():
        means = {column: mean(values) for column, values in columns.items() if values}
        means["times_personal_secure_sum"] = means["cost"] / least
        content["rows"][name] = means
        print(f"{name:<38}{means['cost']:>8.2f}{means['participating']:>12.1f}{means['cost'] / least:>36.2f}")
    content["payments_at_equal_accuracy"] = {"least": min(equal), "mean": mean(equal), "largest": max(equal)}
    print(f"at equal accuracy noise-aware pays {mean(equal):.1f} times as much ({min(equal):.1f} to {max(equal):.1f})")
    print(write_record("secure-sum-cost", content))


if __name__ == "__main__":
    main()
