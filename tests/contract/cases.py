"""Questions that several files of the contract ask, and the small networks, clients and samples they ask about.

These are written by formulas: none is drawn.
"""

from __future__ import annotations

from pathlib import Path

HEADER = "name,quadratic_cost,linear_cost,noise_harm,compute_cost,data_size"
ROUNDING = 1e-9
SETTLED = {"residual": ROUNDING, "client_regret": ROUNDING}  # clients who answer each other leave only rounding
BEST = {**SETTLED, "leader_regret": ROUNDING}  # and so does a server that knows their answer
COMPARED = ("compare", "--num-clients", 8, "--seed", 3, "--seeds", 2, "--rounds", 3, "--optimum")
EXPOSED = ("risk", "--num-clients", 25, "--seed", 6, "--top", 5)
CONTRACT_LINE = (
    *("--max-hops", 5, "--hop-decay", 0.9, "--externality-strength", 0.05, "--accuracy-weight", 0.5),
    *("--rounds", 60, "--mechanism", "mppfl"),
)


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_network(path: Path, size: int) -> Path:
    """A ring with a chord from everybody, weighted alike in both directions: source, target, weight."""
    ends = sorted({(i, (i + step) % size) for i in range(size) for step in (1, 2 + i % 3)})
    lines = [f"c{i},c{j},{0.25 + (i + j) * 7 % 11 / 10!r}" for i, j in ends if i != j]
    return write_lines(path, ["source,target,weight", *lines])


def write_clients(path: Path, size: int, floors: bool = False, ceilings: bool = False) -> Path:
    """Costs of the clients c0, c1, ...; with floors every third must give something, with ceilings every other may
    give only so much, and one nothing at all.
    """
    header, lines = HEADER + ",budget_min" * floors + ",budget_max" * ceilings, []
    for i in range(size):
        fields = [0.3 + 0.05 * (i * 5 % 13), 0.2 + 0.1 * (i * 7 % 11), 0.1 + 0.02 * (i % 4), 0.01 * (i % 3), 20 + i]
        fields += [0.05 if i % 3 == 0 else 0.0] if floors else []
        fields += [0.0 if i == 4 else 0.6 + 0.1 * i if i % 2 else "inf"] if ceilings else []
        lines.append(",".join([f"c{i}", *map(str, fields)]))
    return write_lines(path, [header, *lines])


def write_sample(path: Path, size: int) -> Path:
    """An attribute of all clients in which neighbours on the ring are alike: name, value."""
    return write_lines(path, ["name,value", *(f"c{i},{1 if i % 10 < 5 or i % 17 == 0 else -1}" for i in range(size))])


def contract_files(folder: Path) -> tuple[object, ...]:
    """The options of the public contract: a network of twelve clients, their costs, and the constants."""
    edges, clients = write_network(folder / "edges.csv", 12), write_clients(folder / "clients.csv", 12)
    return ("--graph", edges, "--clients", clients, *CONTRACT_LINE)


def with_its_digits(answer: dict) -> dict:
    """What `solve` answers, with six digits of the server's regret: a small difference of costs has no more."""
    if answer["leader_regret"] is not None:
        answer["leader_regret"] = float(f"{round(answer['leader_regret'], 12):.6g}")
    return answer
