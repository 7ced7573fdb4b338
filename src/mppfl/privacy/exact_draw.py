"""A draw of the discrete Gaussian in whole-number arithmetic, for the few that a table of 63 bits cannot decide.

It takes some tenths of a second, and a draw in a hundred million needs it.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from decimal import Decimal, localcontext

BITS = 320  # of a weight behind the point: a million products lose fewer than 25 of them
DIGITS = 120
MORE_BITS = 192  # drawn to decide: a wrong decision has a probability below 2⁻¹⁹⁰


def exact_draw(word: int, word_bits: int, std_in_steps: float) -> int:
    """|k| of probability ∝ exp(-k²/(2s²)) whose cumulative probability lies at the word, read on with fresh bits."""
    cumulated = cumulated_weights(std_in_steps)
    place = (word << MORE_BITS | secrets.randbits(MORE_BITS)) * cumulated[-1] >> word_bits + MORE_BITS
    return bisect_right(cumulated, place)


def cumulated_weights(std_in_steps: float) -> list[int]:
    """Σ exp(-j²/(2s²)) over |j| ≤ k, for k = 0, 1, 2, ..., in units of 2⁻³²⁰.

    Each weight is the one before it times a ratio, and each ratio the one before it times exp(-1/s²).
    """
    with localcontext() as context:
        context.prec = DIGITS
        ratio = int((-1 / (2 * Decimal(std_in_steps) ** 2)).exp() * 2**BITS)
    falls_by = ratio * ratio >> BITS
    weight = total = 1 << BITS
    found = [total]
    while weight := weight * ratio >> BITS:
        ratio = ratio * falls_by >> BITS
        total += 2 * weight  # both signs
        found.append(total)
    return found
