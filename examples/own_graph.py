"""Your own social network: read it, see who exposes whom, and what it would bring if one client left."""

import csv
import tempfile
from pathlib import Path

import numpy as np

import mppfl
from mppfl.game import exposure_relief

FRIENDS = [
    ("Ada", "Ben"),
    ("Ben", "Cem"),
    ("Cem", "Ada"),
    ("Cem", "Dana"),
    ("Dana", "Ada"),
    ("Eli", "Ben"),
    ("Ada", "Eli"),
]

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "friends.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("source", "target"), *FRIENDS])  # target is exposed by source
    graph = mppfl.read_graph(path)

game = mppfl.make_game(graph, mppfl.draw_clients("benign", graph.num_clients, np.random.default_rng(0)), hop_decay=0.5)
terms = mppfl.solve(game).terms(1)
risks = game.propagation @ terms.budgets
most = int(np.argmax(risks))
print(f"most exposed: {graph.name(most)}, external risk {risks[most]:.3f}")
found = mppfl.exposure_sources(game.propagation, most, terms.budgets)
for source, hop, amount in list(zip(found.sources, found.hops, found.amounts, strict=True))[:5]:
    print(f"  {amount:.3f} from {graph.name(source)} at hop {hop}")
relief = [exposure_relief(game, terms.budgets, k) for k in range(graph.num_clients)]
key = int(np.argmax(relief))
print(f"key player: {graph.name(key)}; leaving would take {relief[key]:.3f} of external risk from the others")
