"""The data sets that mppfl knows by name: classes, counts, constants, checksums, licences, and where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HubPlace:
    """Where a data set lies on the Hugging Face hub."""

    path: str
    config: str | None = None
    image: str = "image"
    label: str = "label"


@dataclass(frozen=True, slots=True)
class KnownSet:
    """What is known of a data set before it is read.

    train_counts  examples of each class; a file with other counts is not the data set
    mean, std     per channel, of pixels between 0 and 1
    md5           of official files by name; of what a .gz holds, because anyone may compress again
    """

    name: str
    what: str
    licence: str
    source: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train_counts: tuple[int, ...]
    test_counts: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hub: HubPlace | None = None
    md5: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


_TEN_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_HUNDRED_THINGS = (  # alphabetical, as in the official `meta`
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle "
    "caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man "
    "maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train "
    "trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

_DIGITS = KnownSet(
    name="digits",
    what="handwritten digits, 8 x 8 grey; comes with scikit-learn",
    licence="CC BY 4.0",
    source="https://archive.ics.uci.edu/dataset/80",
    shape=(8, 8, 1),
    class_names=tuple("0123456789"),
    train_counts=(142, 145, 141, 146, 144, 145, 144, 143, 139, 144),
    test_counts=(36, 37, 36, 37, 37, 37, 37, 36, 35, 36),
    mean=(0.3053,),  # of all 1,797 images, pixels 0 to 16 divided by 16
    std=(0.3760,),
)

_FASHION_MNIST = KnownSet(
    name="fashion-mnist",
    what="articles of clothing, 28 x 28 grey",
    licence="MIT",
    source="https://github.com/zalandoresearch/fashion-mnist",
    shape=(28, 28, 1),
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    train_counts=(6000,) * 10,
    test_counts=(1000,) * 10,
    mean=(0.2860,),
    std=(0.3530,),
    hub=HubPlace("fashion_mnist"),
    md5={  # of the idx files inside; the .gz of the authors have 8d4fb7e6..., 25c81989..., bef4ecab..., bb300cfd...
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)

_CIFAR_10 = KnownSet(
    name="cifar-10",
    what="photographs of ten kinds of things, 32 x 32 colour",
    licence="none stated; cite Krizhevsky 2009",
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    shape=(32, 32, 3),
    class_names=_TEN_THINGS,
    train_counts=(5000,) * 10,
    test_counts=(1000,) * 10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    hub=HubPlace("cifar10", image="img"),
    md5={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        # Batches 2 to 5: computed from files whose batch 1 and test batch have the official sums.
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        # The python form: the sums that torchvision.datasets.CIFAR10 verifies.
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)

_CIFAR_100 = KnownSet(
    name="cifar-100",
    what="photographs of a hundred kinds of things, 32 x 32 colour",
    licence="none stated; cite Krizhevsky 2009",
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    shape=(32, 32, 3),
    class_names=tuple(_HUNDRED_THINGS.split()),
    train_counts=(500,) * 100,
    test_counts=(100,) * 100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    hub=HubPlace("cifar100", image="img", label="fine_label"),
    md5={  # the sums that torchvision.datasets.CIFAR100 verifies; none are published for the unpacked binaries
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
)

_SVHN = KnownSet(
    name="svhn",
    what="house numbers cropped to single digits, 32 x 32 colour",
    licence="non-commercial use only; cite Netzer et al. 2011",
    source="http://ufldl.stanford.edu/housenumbers",
    shape=(32, 32, 3),
    class_names=tuple("0123456789"),
    train_counts=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    test_counts=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    hub=HubPlace("svhn", config="cropped_digits"),
    md5={  # the sums that torchvision.datasets.SVHN verifies
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    },
)

_CINIC_10 = KnownSet(
    name="cinic-10",
    what="CIFAR-10's classes from CIFAR-10 and ImageNet, 32 x 32 colour",
    licence="CC BY 4.0 (ImageNet part: ImageNet's terms)",
    source="https://datashare.ed.ac.uk/handle/10283/3192",
    shape=(32, 32, 3),
    class_names=_TEN_THINGS,
    train_counts=(9000,) * 10,
    test_counts=(9000,) * 10,
    mean=(0.4789, 0.4723, 0.4305),
    std=(0.2421, 0.2383, 0.2587),
    hub=HubPlace("flwrlabs/cinic10"),
)

KNOWN: Mapping[str, KnownSet] = {
    each.name: each for each in (_DIGITS, _FASHION_MNIST, _CIFAR_10, _CIFAR_100, _SVHN, _CINIC_10)
}
