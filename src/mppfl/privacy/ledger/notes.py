"""Notes: what a reader of any figure of a ledger must know."""

from __future__ import annotations

import sqlite3

# What is ρ-zCDP for replacing all of a client's data is so for replacing one record of it. What is ρ-zCDP for a client
# that leaves is 4ρ for a record: taking the client out and putting it back changed is twice the distance.
LEFT_OUT_PER_RECORD = """
    SELECT count(*), max(coalesce(r.budget, 0) + c.budget * CASE c.adjacency WHEN 'add-remove' THEN 4 ELSE 1 END)
    FROM totals c LEFT JOIN totals r ON r.client = c.client AND r.unit = 'record'
    WHERE c.unit = 'client' AND c.events > 0 AND (
        EXISTS (SELECT 1 FROM totals WHERE unit = 'record') OR EXISTS (SELECT 1 FROM caps WHERE unit = 'record')
    )
"""
SIMULATION = "simulation: seeded noise protects no one"


def notes_of(read: sqlite3.Connection) -> tuple[str, ...]:
    """What must be said beside every figure of this ledger."""
    ask = "SELECT coalesce(sum(seeded), 0), coalesce(sum(poisson), 0) FROM totals"
    seeded, poisson = read.execute(ask).fetchone()
    worse = read.execute("SELECT count(*) FROM totals WHERE worst_case_budget > budget").fetchone()[0]
    left_out, largest = read.execute(LEFT_OUT_PER_RECORD).fetchone()
    lines = []
    if seeded:
        lines.append(SIMULATION)
    if worse:
        lines.append(f"{worse:,} clients used a mechanism whose worst case costs more than its nominal budget")
    if poisson:
        lines.append(f"{poisson:,} Poisson-sampled releases are not part of any zCDP sum; ask for the method pld")
    if left_out:
        lines.append(
            f"figures and caps per record leave out what {left_out:,} clients released per client, although it "
            f"costs their records, too; with it a record has spent ρ up to {largest:.4g}"
        )
    return tuple(lines)
