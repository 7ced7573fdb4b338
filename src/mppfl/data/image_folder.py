"""CINIC-10's image folders: train|valid|test/<class>/*.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.data.dataset import Examples
from mppfl.data.files import failures_in_one_line
from mppfl.data.known import KnownSet
from mppfl.errors import BadFile
from mppfl.text import one_line, shown_path


def read_cinic(
    folder: Path, known: KnownSet, train_parts: Sequence[str] = ("train",)
) -> tuple[Examples, Examples, str]:
    """Train and test as published, 90,000 images each; `train_parts=("train", "valid")` learns from both of them."""
    train = read_image_folders([folder / part for part in train_parts], known)
    test = read_image_folders([folder / "test"], known)
    return train, test, f"image folders {' and '.join(train_parts)}, test; counts verified, pixels not: no checksums"


def read_image_folders(folders: Sequence[Path], known: KnownSet) -> Examples:
    """The images under <folder>/<class>/*.png, class by class, in order of their names."""
    listed = [
        (path, label)
        for folder in folders
        for label, name in enumerate(known.class_names)
        for path in _images_in(folder / name)
    ]
    images = np.empty((len(listed), *known.shape), dtype=np.uint8)
    for place, (path, _) in enumerate(listed):
        images[place] = _pixels(path, known.shape)
    return Examples(images, np.array([label for _, label in listed], dtype=np.int64))


def _images_in(folder: Path) -> list[Path]:
    with failures_in_one_line(folder):
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png")
    if not found:
        raise BadFile(f"{shown_path(folder)} holds no .png image; every class needs some. Unpack the archive again.")
    return found


def _pixels(path: Path, shape: tuple[int, int, int]) -> Any:
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as image:
            if (image.height, image.width) != shape[:2]:  # before anything is unpacked
                raise BadFile(f"{shown_path(path)} is {image.height} x {image.width}, not {shape[0]} x {shape[1]}.")
            return np.asarray(image.convert("RGB" if shape[2] == 3 else "L")).reshape(shape)
    except BadFile:
        raise
    except Exception as cause:  # Pillow meets damage with errors of many kinds
        raise BadFile(
            f"{shown_path(path)} is no readable PNG ({one_line(cause)}). Unpack the archive again."
        ) from cause
