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

# Accuracy in percent by table, data set, partition and number of clients, in the order of the paper's mechanisms.
_MECHANISMS = ("SA", "DP-FedAvg", "SARDA", "MPPFL")
_PRINTED = {
    (1, "fashion-mnist", "iid", 20): (89.12, 88.89, 83.77, 89.05),
    (1, "fashion-mnist", "dir0.3", 20): (87.91, 87.05, 77.15, 87.78),
    (1, "fashion-mnist", "dir0.6", 20): (88.25, 87.69, 80.89, 88.09),
    (1, "cinic-10", "iid", 20): (48.74, 48.36, 46.13, 48.23),
    (1, "cinic-10", "dir0.3", 20): (44.68, 43.66, 40.81, 43.99),
    (1, "cinic-10", "dir0.6", 20): (47.36, 46.26, 43.91, 46.74),
    (1, "cifar-10", "iid", 20): (66.49, 65.35, 53.54, 66.29),
    (1, "cifar-10", "dir0.3", 20): (62.44, 59.84, 41.19, 62.42),
    (1, "cifar-10", "dir0.6", 20): (64.47, 61.37, 46.37, 64.07),
    (1, "cifar-100", "iid", 20): (48.83, 46.52, 34.86, 47.83),
    (1, "cifar-100", "dir0.3", 20): (46.53, 44.4, 32.67, 46.4),
    (1, "cifar-100", "dir0.6", 20): (47.98, 44.88, 33.59, 47.38),
    (1, "svhn", "iid", 20): (87.55, 87.43, 83.57, 87.51),
    (1, "svhn", "dir0.3", 20): (85.89, 85.78, 81.91, 85.59),
    (1, "svhn", "dir0.6", 20): (87.23, 85.89, 83.71, 86.07),
    (2, "cifar-10", "iid", 20): (66.49, 65.35, 53.54, 65.96),
    (2, "cifar-10", "iid", 50): (67.48, 65.69, 35.12, 66.99),
    (2, "cifar-10", "iid", 80): (67.67, 66.05, 40.86, 67.39),
    (2, "cifar-10", "dir0.3", 20): (62.44, 59.84, 41.19, 62.42),
    (2, "cifar-10", "dir0.3", 50): (64.41, 62.92, 21.62, 63.89),
    (2, "cifar-10", "dir0.3", 80): (65.93, 64.01, 27.39, 65.64),
    (2, "cifar-10", "dir0.6", 20): (64.47, 61.37, 46.37, 64.07),
    (2, "cifar-10", "dir0.6", 50): (65.75, 63.88, 30.43, 64.59),
    (2, "cifar-10", "dir0.6", 80): (66.77, 65.56, 33.83, 66.04),
    (2, "cinic-10", "iid", 20): (48.74, 48.36, 46.13, 48.23),
    (2, "cinic-10", "iid", 50): (49.93, 49.01, 43.59, 49.37),
    (2, "cinic-10", "iid", 80): (50.37, 49.68, 46.08, 49.28),
    (2, "cinic-10", "dir0.3", 20): (44.68, 43.66, 40.81, 43.99),
    (2, "cinic-10", "dir0.3", 50): (47.2, 46.41, 41.27, 46.89),
    (2, "cinic-10", "dir0.3", 80): (48.01, 47.55, 41.11, 47.32),
    (2, "cinic-10", "dir0.6", 20): (47.36, 46.26, 43.91, 46.74),
    (2, "cinic-10", "dir0.6", 50): (49.38, 48.02, 42.1, 48.97),
    (2, "cinic-10", "dir0.6", 80): (49.69, 49.54, 42.64, 49.66),
}


def printed_accuracy(table: Literal[1, 2], dataset: str, partition: str, num_clients: int) -> dict[str, float]:
    """Accuracy in percent by the paper's name of the mechanism; empty where that table has no such cell."""
    return dict(zip(_MECHANISMS, _PRINTED.get((table, dataset, partition, num_clients), ()), strict=False))
