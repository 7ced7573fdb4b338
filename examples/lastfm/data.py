"""Listening data of friends: the two files of HetRec Last.fm, the public catalogue, and splits into known and hidden.

    user_friends.dat   userID, friendID           every friendship, in one direction or both
    user_artists.dat   userID, artistID, weight   how often a user played an artist; only whether counts here

Public by assumption: who is whose friend, who participates, and the catalogue of artists with enough listeners. What a
user listened to is private.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, BoolArray, require_count, require_number
from mppfl.errors import BadFile, BadInput
from mppfl.leakage import friendships
from mppfl.network import SocialGraph, SparseMatrix, read_graph
from mppfl.text import shortened, shown_path

FRIENDS, LISTENS = "user_friends.dat", "user_artists.dat"
HEADER = ("userID", "artistID", "weight")
LEAST_LISTENERS = 10  # below that an artist is too rare to recommend, and its mere presence would tell who listens


@dataclass(frozen=True, eq=False)
class Listening:
    """Who listens to what, and who is whose friend: one row per client of `graph`, one column per artist.

    listens  csr_array of ones, [users, artists]
    artists  identifiers, one per column
    """

    graph: SocialGraph
    listens: SparseMatrix
    artists: tuple[str, ...]

    @property
    def num_users(self) -> int:
        return int(self.listens.shape[0])

    @property
    def num_artists(self) -> int:
        return int(self.listens.shape[1])

    @property
    def users(self) -> tuple[str, ...]:
        return tuple(self.graph.name(at) for at in range(self.num_users))

    @property
    def degrees(self) -> Array:
        """How many friends each user has."""
        return np.asarray(friendships(self.graph).sum(axis=1), dtype=np.float64).ravel()


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One split: what devices know, and what recommendations are scored on. Both [users, artists] of zeros and ones.

    The release, the server and the device see `known` alone.
    """

    known: Array
    hidden: SparseMatrix


def read_lastfm(folder: str | Path, *, least_listeners: int = LEAST_LISTENERS) -> Listening:
    """The friends and listening data in `folder`, with artists of at least `least_listeners` listeners.

    Raises BadFile, with the line, where a file is missing or a line cannot be read.
    """
    least = require_count(least_listeners, "least_listeners")
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFile(f"{shown_path(folder)}: no such folder. Give the one that holds {FRIENDS} and {LISTENS}.")
    for name in (FRIENDS, LISTENS):
        if not (folder / name).is_file():
            raise BadFile(
                f"{shown_path(folder)} holds no {name}. Give the folder of HetRec 2011 Last.fm (docs/data-sets.md)."
            )
    graph = read_graph(folder / FRIENDS, undirected=True, self_loops="drop")
    rows, columns, artists = _read_listens(folder / LISTENS, graph)
    shape = (graph.num_clients, len(artists))
    listens = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    kept = np.flatnonzero(np.bincount(columns, minlength=len(artists)) >= least)
    if len(kept) < 2:
        raise BadFile(
            f"{shown_path(folder / LISTENS)}: {len(kept)} artists have at least {least} listeners, so there is nothing "
            "to rank. Give more listening data, or lower least_listeners."
        )
    return Listening(graph, listens[:, kept].tocsr(), tuple(artists[at] for at in kept))


def _read_listens(path: Path, graph: SocialGraph) -> tuple[list[int], list[int], list[str]]:
    """Rows, columns and artists of every line. Raises at the first line that is not user, artist, weight."""
    position = {graph.name(at): at for at in range(graph.num_clients)}
    rows, columns, artists = [], [], dict[str, int]()
    seen: dict[tuple[str, str], int] = {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as cause:
        raise BadFile(f"{shown_path(path)} is not valid UTF-8. Save it as UTF-8 text.") from cause
    except OSError as cause:
        raise BadFile(f"{shown_path(path)} cannot be read: {cause.strerror or cause}. Check the path.") from cause
    if not lines or tuple(lines[0].split("\t")) != HEADER:
        raise BadFile(f"{shown_path(path)}, line 1: must be the header {', '.join(HEADER)}, separated by tabs.")
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        if len(fields) != len(HEADER) or not all(field.isascii() and field.isdecimal() for field in fields):
            raise BadFile(
                f"{shown_path(path)}, line {number}, {shortened(line)}: must be three whole numbers separated by tabs: "
                f"{', '.join(HEADER)}."
            )
        user, artist, _ = fields
        if user not in position:
            raise BadFile(
                f"{shown_path(path)}, line {number}: user {user} has no friend in {FRIENDS}. Leave the user out, or "
                "add a friendship."
            )
        before = seen.setdefault((user, artist), number)
        if before != number:
            raise BadFile(
                f"{shown_path(path)}, line {number}: user {user} and artist {artist} stand in line {before} already. "
                "A record must count once, or its privacy would cost more than is accounted for. Remove one of them."
            )
        rows.append(position[user])
        columns.append(artists.setdefault(artist, len(artists)))
    return rows, columns, list(artists)


def hold_out(listening: Listening, share: float, rng: np.random.Generator) -> HeldOut:
    """Hides a random `share` of every user's artists, rounded to a whole number; the rest stays known."""
    part = require_number(share, "share", 0.0, 1.0)
    pairs = listening.listens.tocoo()
    counts = np.bincount(pairs.row, minlength=listening.num_users)
    order = np.lexsort((rng.random(pairs.nnz), pairs.row))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.arange(pairs.nnz) - starts[pairs.row[order]]
    hide = rank < np.rint(part * counts)[pairs.row[order]]
    rows, columns = pairs.row[order], pairs.col[order]
    shape = listening.listens.shape
    known = np.zeros(shape)
    known[rows[~hide], columns[~hide]] = 1.0
    known.setflags(write=False)
    hidden = sp.csr_array((np.ones(int(hide.sum())), (rows[hide], columns[hide])), shape=shape)
    return HeldOut(known, hidden)


def set_apart(num_users: int, share: float, rng: np.random.Generator) -> BoolArray:
    """A random `share` of the users, as a mask: those on whom constants are chosen, or whose taste is public."""
    size = require_count(num_users, "num_users", 2)
    count = round(require_number(share, "share", 0.0, 1.0) * size)
    if not 0 < count < size:
        raise BadInput(f"share={share:g} of {size} users is {count}; it must leave users on both sides.")
    chosen = np.zeros(size, dtype=np.bool_)
    chosen[rng.permutation(size)[:count]] = True
    return chosen
