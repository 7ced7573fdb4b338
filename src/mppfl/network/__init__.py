"""Social graphs: who exposes whom, and how far exposure propagates."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .communities import communities_of, communities_of_edges
    from .generate import random_graph
    from .graph import (
        Isolated,
        Normalisation,
        SelfLoops,
        SocialGraph,
        SparseMatrix,
        graph_from_edges,
        graph_from_matrix,
    )
    from .propagation import (
        EXACT_BELOW,
        ClosedWalks,
        Diagonal,
        Propagation,
        Walk,
        count_closed_walks,
        exposure_sources,
        propagate,
        strongest_walks,
        times,
    )
    from .read import read_graph
    from .write import write_edges, write_graphml

export_lazily(__name__)
