"""What is learned from."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .cifar import read_cifar_100_binary
    from .dataset import Dataset, Examples, model_inputs, unchangeable
    from .drawn_shapes import drawn_shapes
    from .features import (
        FEATURES,
        NUM_FEATURES,
        RIDGE,
        drawn_blocks,
        drawn_whitening,
        fixed_features,
        gradient_histograms,
        grey_histograms,
        picture_blocks,
    )
    from .hub import has_hub
    from .idx import read_idx
    from .image_folder import read_cinic
    from .known import KNOWN, HubPlace
    from .npz import FILES, write_known_npz
    from .partition import _evened
    from .safe_pickle import dictionary_of_pickle
    from .sources import VARIABLE, Source, find_files, known_set, load_data, what_is_missing
    from .split import ClientData, How, client_data, split
    from .svhn import read_svhn_mat
    from .whitening import whitening_of

export_lazily(__name__)
