"""The paper's five settings: data, model and hyperparameters, as its appendix prints them."""

from __future__ import annotations

from dataclasses import dataclass

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
