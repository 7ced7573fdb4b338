"""Data sets from the Hugging Face hub, through the `datasets` library of the extra mppfl[hub]."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from mppfl.data.dataset import Examples
from mppfl.data.known import KnownSet
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.text import one_line


def has_hub() -> bool:
    """Whether the `datasets` library is installed; a mere folder of that name is none."""
    spec = find_spec("datasets")
    return spec is not None and spec.origin is not None


def read_hub(known: KnownSet) -> tuple[Examples, Examples, str]:
    """The training and the test part from the hub, or from its cache on this machine."""
    place = known.hub
    if place is None:
        raise BadInput(f'{known.name} is not taken from the hub; load it with source="auto".')
    if not has_hub():
        raise MppflError(
            f"{known.name} from the hub needs the `datasets` library, which is not installed. "
            "Run pip install 'mppfl[hub]', or point MPPFL_DATA at the official files."
        )
    try:
        load = import_module("datasets").load_dataset
        arguments = (place.path,) if place.config is None else (place.path, place.config)
        tables = [load(*arguments, split=part) for part in ("train", "test")]
    except Exception as cause:  # no network, no such data set, a full disk: the library has an error for each
        raise MppflError(
            f"the hub did not give {place.path!r} ({one_line(cause)}). Check the network, or point MPPFL_DATA at the "
            f"official files ({known.source})."
        ) from cause
    train, test = (_examples(table, known) for table in tables)
    return train, test, f"Hugging Face hub, {place.path}; counts of every class verified"


def _examples(table: Any, known: KnownSet) -> Examples:
    """Images one by one into one array: a list of them would take several times the memory."""
    place, mode = known.hub, "RGB" if known.shape[2] == 3 else "L"
    images = np.empty((len(table), *known.shape), dtype=np.uint8)
    labels = np.empty(len(table), dtype=np.int64)
    for row, record in enumerate(table):
        if place is None or place.image not in record or place.label not in record:
            raise BadFile(f"the hub's {known.name} has columns {', '.join(sorted(record))}; others were expected.")
        pixels = np.asarray(record[place.image].convert(mode))
        if pixels.size != images[row].size:
            raise BadFile(f"image {row} of the hub's {known.name} has shape {pixels.shape}, not {known.shape}.")
        images[row] = pixels.reshape(known.shape)
        labels[row] = record[place.label]
    return Examples(images, labels)
