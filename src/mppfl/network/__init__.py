"""Who can leak about whom."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .communities import communities_of, communities_of_links, modularity
    from .communities_tree import OTHERS, Branch, CommunityTree
    from .device import GIB, find_device, free_bytes, require_room, to_device
    from .device_matrix import DeviceMatrix, matrix_bytes, matrix_on_device
    from .device_propagation import DevicePropagation, propagation_on_device
    from .device_walks import WORKING_BYTES, home_by_device, returns_on_device
    from .edge_list import links_of_lines
    from .generate import (
        _pairs_below_diagonal,
        _rows_by_arrival,
        _rows_by_rejection,
        _successes,
        barabasi_albert,
        erdos_renyi,
        random_graph,
        skewed,
        stochastic_block,
        watts_strogatz,
    )
    from .graph import (
        Isolated,
        Normalisation,
        SelfLoops,
        SocialGraph,
        SparseMatrix,
        describe,
        graph_from_links,
        graph_from_matrix,
        joined_names,
    )
    from .kernels import closed_walks
    from .layout import lay_out
    from .layout_links import Lines, influence_between, strongest_lines
    from .number_list import links_of_numbers
    from .paths import Walk, strongest_walks
    from .product import times
    from .propagation import Propagation, attribute, propagate
    from .read import read_graph
    from .walks import EXACT_BELOW, Diagonal, ReturnsHome, returns_home
    from .write import to_networkx, write_graphml, write_links

export_lazily(__name__)
