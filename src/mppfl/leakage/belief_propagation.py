"""Belief propagation on the links of a network: exact on forests, a rough guess elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadInput
from mppfl.leakage.couplings import coupled_links
from mppfl.network import SocialGraph, SparseMatrix


@dataclass(frozen=True, slots=True)
class Messages:
    """Every link in both directions: message k travels source[k] -> target[k]."""

    source: IntArray
    target: IntArray
    back: IntArray  # the same link the other way
    coupling: Array
    gather: SparseMatrix  # [clients, messages], sums what arrives

    @classmethod
    def of(cls, graph: SocialGraph, couplings: Any) -> Messages:
        """Those of a network whose links have these couplings."""
        firsts, seconds, strengths = coupled_links(graph, couplings)
        if len(strengths) and np.abs(strengths).max() > 15:
            raise BadInput(f"a coupling of {np.abs(strengths).max():g} is a certainty in all but name; use at most 15.")
        count = len(firsts)
        target = np.concatenate([seconds, firsts])
        ends = (target, np.arange(2 * count))
        gather = sp.csr_array((np.ones(2 * count), ends), shape=(graph.num_clients, 2 * count))
        back = np.concatenate([np.arange(count, 2 * count), np.arange(count)])
        return cls(np.concatenate([firsts, seconds]), target, back, np.concatenate([strengths, strengths]), gather)

    def sweep(self, leaning: Array, messages: Array) -> Array:
        """One round of messages atanh(tanh J · tanh(what the sender knows without the receiver))."""
        known = leaning + self.gather @ messages
        without = known[self.source] - messages[self.back]
        return np.asarray(np.arctanh(np.tanh(self.coupling)[:, None] * np.tanh(without)))

    def settle(self, leaning: Array, sweeps: int | None = None) -> tuple[Array, Array]:
        """Messages [links both ways, draws] and their sums at each client, from fields [clients, draws].

        Without `sweeps`, until they stand still: on a forest after as many sweeps as the longest path has links.
        """
        messages = np.zeros((len(self.source), leaning.shape[1]))
        for _ in range(sweeps if sweeps is not None else leaning.shape[0]):
            moved = self.sweep(leaning, messages)
            still = sweeps is None and np.array_equal(moved, messages)
            messages = moved
            if still:
                break
        return messages, self.gather @ messages
