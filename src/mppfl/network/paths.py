"""Strongest walks into a client: along which links most of what a source exposes of it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadInput
from mppfl.network.graph import SparseMatrix
from mppfl.network.propagation import Propagation


@dataclass(frozen=True, slots=True)
class Walk:
    """One walk by which a source exposes a client, and λ^(k-1)·ΠW·ρ_source, its share of the client's external risk.

    clients  positions from the source to the exposed client, one more than there are links
    """

    clients: tuple[int, ...]
    amount: float

    @property
    def hops(self) -> int:
        return len(self.clients) - 1


@dataclass(frozen=True, slots=True)
class _Reached:
    """Sources that reach the client in exactly so many links; parallel arrays, sources rising.

    strengths  product of W along the strongest such walk
    towards    where that walk goes first
    """

    sources: IntArray
    strengths: Array
    towards: IntArray


def strongest_walks(propagation: Propagation, client: int, budgets: Array, sources: Sequence[int]) -> tuple[Walk, ...]:
    """The single strongest walk of at most `max_hops` links from each source to `client`, in the order of `sources`.

    Those who do not reach the client, and the client itself, are left out. Of walks that are equally strong one of the
    shortest is taken, and of these the one whose clients, read from the source, stand first. Costs O(max_hops · links).
    """
    size = propagation.num_clients
    for position in (client, *sources):
        if not 0 <= position < size:
            raise BadInput(f"client={position} must be a position from 0 to {size - 1}.")
    layers = _layers(propagation.influence, client, propagation.max_hops)
    found = (_strongest(layers, source, propagation.hop_decay, budgets) for source in sources if source != client)
    return tuple(walk for walk in found if walk is not None)


def _layers(influence: SparseMatrix, client: int, max_hops: int) -> list[_Reached]:
    """For 0, 1, ... links: who reaches the client, how strongly at best, and by whom first."""
    nobody = np.array([-1])
    layers = [_Reached(np.array([client]), np.ones(1), nobody)]
    for _ in range(max_hops):
        layers.append(_one_link_further(influence, layers[-1]))
    return layers


def _one_link_further(influence: SparseMatrix, near: _Reached) -> _Reached:
    """Max-product step: the strongest walk with one more link at its source's end, for everybody who has one."""
    starts, ends = influence.indptr[near.sources], influence.indptr[near.sources + 1]
    lengths = (ends - starts).astype(np.int64)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    links = np.repeat(starts.astype(np.int64), lengths) + within
    sources = influence.indices[links]
    strengths = np.repeat(near.strengths, lengths) * influence.data[links]
    size = influence.shape[0]
    best = np.zeros(size)
    np.maximum.at(best, sources, strengths)
    # Among equally strong ones the lowest position wins, whatever the order in which links are stored.
    towards = np.full(size, size, dtype=np.int64)
    strongest = strengths == best[sources]
    np.minimum.at(towards, sources[strongest], np.repeat(near.sources, lengths)[strongest])
    reached = np.flatnonzero(best)
    return _Reached(reached, best[reached], towards[reached])


def _strongest(layers: list[_Reached], source: int, hop_decay: float, budgets: Array) -> Walk | None:
    places = [int(np.searchsorted(layer.sources, source)) for layer in layers]
    weights = [
        hop_decay ** (hops - 1) * float(layer.strengths[place])
        if hops > 0 and place < len(layer.sources) and layer.sources[place] == source
        else 0.0
        for hops, (layer, place) in enumerate(zip(layers, places, strict=True))
    ]
    hops = int(np.argmax(weights))
    if weights[hops] == 0.0:
        return None
    clients = [source]
    for layer in layers[hops:0:-1]:
        clients.append(int(layer.towards[np.searchsorted(layer.sources, clients[-1])]))
    return Walk(tuple(clients), weights[hops] * float(budgets[source]))
