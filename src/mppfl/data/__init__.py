"""Data sets, and how they are divided among clients."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .dataset import Dataset, Examples, Inputs, model_inputs, unchangeable
    from .features import (
        FEATURES,
        NUM_FEATURES,
        drawn_blocks,
        drawn_shapes,
        drawn_whitening,
        fixed_features,
        gradient_histograms,
        grey_histograms,
        picture_blocks,
        whitening_of,
    )
    from .formats import FILES, write_known_npz
    from .sources import KNOWN, VARIABLE, Source, find_files, has_hub, known_set, load_dataset, what_is_missing
    from .split import ClientData, How, client_data, split_dataset

export_lazily(__name__)
