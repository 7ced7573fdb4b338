"""The paper's five settings as its appendix prints them, and the accuracies that its tables print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EXTERNALITY_STRENGTH = 0.05  # α; the paper says [.01, .1]
MAX_HOPS = 5
CURVES_OF = "cifar-100"  # whose accuracy curves the paper shows
PRESET = "paper-like"  # costs, λ and τ, which the paper does not give


@dataclass(frozen=True, slots=True)
class Setting:
    """One data set as the paper trains it.

    title   as the paper writes it
    model   cinic-10's is not said; it has the pictures of cifar-10
    norm, augmentation  of the VGGs, until they are chosen on the noiseless IID cell (choice.py)
    """

    dataset: str
    title: str
    num_train: int
    num_test: int
    num_classes: int
    input_shape: tuple[int, int, int]
    model: str
    batch_size: int
    num_rounds: int
    local_epochs: int = 5
    learning_rate: float = 0.01
    norm: str = "group"
    augmentation: str = "none"


SETTINGS = {
    setting.dataset: setting
    for setting in (
        Setting("fashion-mnist", "FMNIST", 60_000, 10_000, 10, (1, 28, 28), "cnn_fmnist", 32, 30),
        Setting("cifar-10", "CIFAR-10", 50_000, 10_000, 10, (3, 32, 32), "cnn_cifar", 32, 80),
        Setting("svhn", "SVHN", 73_257, 26_032, 10, (3, 32, 32), "vgg11", 256, 120),
        Setting("cifar-100", "CIFAR-100", 50_000, 10_000, 100, (3, 32, 32), "vgg16", 64, 100),
        Setting("cinic-10", "CINIC-10", 90_000, 90_000, 10, (3, 32, 32), "cnn_cifar", 64, 60),
    )
}
Partition = Literal["iid", "dir0.3", "dir0.6"]
PARTITIONS: tuple[Partition, ...] = ("iid", "dir0.3", "dir0.6")

# Mechanism of the paper → our name for it; DP-FedAvg's budget is not given, so there are two rules for it.
PRINTED_NAMES = {"SA": "social_agnostic", "DP-FedAvg": "fixed", "SARDA": "sarda_like", "MPPFL": "mppfl"}

_TABLE_1_COLUMNS = ("SA", "DP-FedAvg", "SARDA", "MPPFL")
_TABLE_1 = {
    "fashion-mnist": {
        "iid": (89.12, 88.89, 83.77, 89.05),
        "dir0.3": (87.91, 87.05, 77.15, 87.78),
        "dir0.6": (88.25, 87.69, 80.89, 88.09),
    },
    "cinic-10": {
        "iid": (48.74, 48.36, 46.13, 48.23),
        "dir0.3": (44.68, 43.66, 40.81, 43.99),
        "dir0.6": (47.36, 46.26, 43.91, 46.74),
    },
    "cifar-10": {
        "iid": (66.49, 65.35, 53.54, 66.29),
        "dir0.3": (62.44, 59.84, 41.19, 62.42),
        "dir0.6": (64.47, 61.37, 46.37, 64.07),
    },
    "cifar-100": {
        "iid": (48.83, 46.52, 34.86, 47.83),
        "dir0.3": (46.53, 44.4, 32.67, 46.4),
        "dir0.6": (47.98, 44.88, 33.59, 47.38),
    },
    "svhn": {
        "iid": (87.55, 87.43, 83.57, 87.51),
        "dir0.3": (85.89, 85.78, 81.91, 85.59),
        "dir0.6": (87.23, 85.89, 83.71, 86.07),
    },
}

_TABLE_2 = {  # N = 20, 50, 80
    "cifar-10": {
        "iid": {
            "SA": (66.49, 67.48, 67.67),
            "DP-FedAvg": (65.35, 65.69, 66.05),
            "SARDA": (53.54, 35.12, 40.86),
            "MPPFL": (65.96, 66.99, 67.39),
        },
        "dir0.3": {
            "SA": (62.44, 64.41, 65.93),
            "DP-FedAvg": (59.84, 62.92, 64.01),
            "SARDA": (41.19, 21.62, 27.39),
            "MPPFL": (62.42, 63.89, 65.64),
        },
        "dir0.6": {
            "SA": (64.47, 65.75, 66.77),
            "DP-FedAvg": (61.37, 63.88, 65.56),
            "SARDA": (46.37, 30.43, 33.83),
            "MPPFL": (64.07, 64.59, 66.04),
        },
    },
    "cinic-10": {
        "iid": {
            "SA": (48.74, 49.93, 50.37),
            "DP-FedAvg": (48.36, 49.01, 49.68),
            "SARDA": (46.13, 43.59, 46.08),
            "MPPFL": (48.23, 49.37, 49.28),
        },
        "dir0.3": {
            "SA": (44.68, 47.2, 48.01),
            "DP-FedAvg": (43.66, 46.41, 47.55),
            "SARDA": (40.81, 41.27, 41.11),
            "MPPFL": (43.99, 46.89, 47.32),
        },
        "dir0.6": {
            "SA": (47.36, 49.38, 49.69),
            "DP-FedAvg": (46.26, 48.02, 49.54),
            "SARDA": (43.91, 42.1, 42.64),
            "MPPFL": (46.74, 48.97, 49.66),
        },
    },
}
TABLE_2_SIZES = (20, 50, 80)


def printed_accuracy(table: Literal[1, 2], dataset: str, partition: str, num_clients: int) -> dict[str, float]:
    """Accuracy in percent by the paper's name of the mechanism; empty where that table has no such cell."""
    if table == 1:
        row = _TABLE_1.get(dataset, {}).get(partition)
        return dict(zip(_TABLE_1_COLUMNS, row, strict=True)) if row and num_clients == 20 else {}
    rows = _TABLE_2.get(dataset, {}).get(partition, {})
    if num_clients not in TABLE_2_SIZES:
        return {}
    return {name: values[TABLE_2_SIZES.index(num_clients)] for name, values in rows.items()}
