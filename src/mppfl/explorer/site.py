"""Site: what one server holds: its networks and games, their pictures, uploaded files, and the runs of a folder."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from mppfl.explorer.choices import Choices
from mppfl.explorer.drawing import Drawn, Picture
from mppfl.explorer.run_view import RunReader
from mppfl.explorer.uploads import Uploads, check, last_part, shown
from mppfl.explorer.world import World
from mppfl.network import SocialGraph

MOST_PICTURES = 16  # networks whose drawings are kept


@dataclass(slots=True)
class Site:
    """Everything behind the page. Shared between requests, which come in several threads.

    start   what is chosen when no link says otherwise
    runs    reader of the folder of --run, or None
    """

    world: World
    uploads: Uploads
    start: Choices = field(default_factory=Choices)
    runs: RunReader | None = None
    networks: dict[str, str] = field(default_factory=lambda: {"random": "drawn at random"})
    _file_names: dict[str, str] = field(default_factory=dict)  # of uploads, by their key
    _drawn: OrderedDict[int, tuple[SocialGraph, Drawn]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def picture(self, choices: Choices) -> Picture:
        """The drawing of the network, with the communities opened that the choices say."""
        graph = self.world.graph(choices)
        with self._lock:
            if id(graph) not in self._drawn:
                self._drawn[id(graph)] = (graph, Drawn(graph))  # the graph is kept, so that its id stays its own
                while len(self._drawn) > MOST_PICTURES:
                    self._drawn.popitem(last=False)
            self._drawn.move_to_end(id(graph))
            return self._drawn[id(graph)][1].picture(choices.opened)

    def upload(self, contents: str, name: str, *, undirected: bool) -> tuple[str, str]:
        """Takes in an edge list; returns its key, and what was found in it."""
        key, path = self.uploads.keep(contents, name)
        graph = check(path, name, undirected)
        self.world.add_file(key, path)
        words = f"{shown(name)}: {graph.num_clients:,} clients, {graph.num_links:,} links"
        self.networks[key] = words
        self._file_names[key] = last_part(name)
        return key, words

    def source(self, choices: Choices) -> Path | None:
        """The file of links behind a network, where it has one, as its reader knows it: an upload by its own name.

        The copy of an upload that is read here goes when the server ends.
        """
        name = self._file_names.get(choices.network)
        return self.world.source(choices) if name is None else Path(name)
