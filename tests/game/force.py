"""The leader by brute force: clients solved for at thousands of rates at once, costs from the model's formulas."""

import numpy as np


def answers_by_force(game, weights, rates):
    """Everybody's equilibrium budget at every rate, [rates, clients]: active sets of all rates side by side."""
    clients, matrix = game.clients, np.eye(game.num_clients) + game.externality_strength * game.propagation.to_dense()
    low, high = clients.budget_min, clients.budget_max
    wanted = (np.multiply.outer(rates, weights) - clients.linear_cost) / (2 * clients.quadratic_cost)
    budgets, size = np.clip(wanted, low, high), clients.linear_cost / clients.quadratic_cost
    for sweep in range(400):
        spill = budgets @ (matrix - np.eye(len(low))).T
        wish, digits = wanted - spill, np.abs(wanted) + np.abs(spill) + size
        answer = np.clip(wish, low, high)
        if (np.abs(answer - budgets) <= 1e-13 * digits).all():
            break
        if sweep % 8 == 7:  # sets may come round again: best responses lead on where αS < 1
            budgets = answer
            continue
        free = (wish > low) & (wish < high)
        systems = np.where(free[:, :, None], matrix, np.eye(len(low)))
        budgets = np.linalg.solve(systems, np.where(free, wanted, answer)[:, :, None])[:, :, 0]
    return np.where(wish <= low + 1e-13 * digits, low, answer)


def costs_by_force(game, leader, round_index, weights, rates, budgets):
    """The server's cost at every rate (eq. 9, 18 and 34), infinite where nobody participates."""
    clients, tau, part = game.clients, game.accuracy_weight, budgets > 0
    sizes = clients.data_size
    with np.errstate(divide="ignore", invalid="ignore"):
        if leader == "noise_aware":
            harm = len(sizes) ** 2 * clients.noise_harm.mean() / (budgets @ (sizes / sizes.mean()) ** 2)
        elif leader == "secure_sum":
            harm = len(sizes) ** 2 * clients.noise_harm.mean() / (np.sqrt(budgets) @ (sizes / sizes.mean())) ** 2
        else:
            harm = np.where(part, clients.noise_harm / budgets, 0.0).sum(axis=1)
            harm = harm * (sizes.sum() / (part @ sizes)) ** 2
    return np.where(part.any(axis=1), tau * harm / round_index + (1 - tau) * rates * (budgets @ weights), np.inf)
