"""Specs: a game, its data, its training and what is kept of it, as plain values.

One set of frozen classes behind every door: the tables and keys of an experiment file, the options of the command
line, the keys of an explorer's link and Python's keywords are the fields of these classes, and an annotation holds
what each means and which values it may have.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mppfl.errors import BadInput
from mppfl.fields import About, Spec, defaults_of, did_you_mean, documented, hints, require_known, shown, to_query
from mppfl.files import toml_text
from mppfl.privacy import Protection, Trust

if TYPE_CHECKING:
    from mppfl.game import Game

Aggregation = Literal["num_examples", "uniform", "noise_aware"]
Precision = Literal["float32", "tf32", "bf16", "float64"]
EngineName = Literal["auto", "loop", "processes", "dense", "batched", "vmap"]
Family = Literal["erdos_renyi", "barabasi_albert", "watts_strogatz", "stochastic_block", "skewed"]
Model = Literal["linear", "softmax", "mlp", "cnn_fmnist", "cnn_cifar", "vgg11", "vgg16"]
Range = tuple[float, float]
Purpose = Literal["graph", "clients", "split", "training"]
PURPOSES: tuple[Purpose, ...] = ("graph", "clients", "split", "training")
NETWORK, DRAWN, GAME, PRICING = "Network", "Random network", "Clients and game", "Mechanism"  # panels of --help
MOST_ROUNDS = 10_000_000  # more would not fit into memory
FAMILY_OPTIONS = {
    "erdos_renyi": ("probability_range",),
    "barabasi_albert": ("edges_each",),
    "watts_strogatz": ("neighbours", "rewire"),
    "stochastic_block": ("sizes", "within", "between"),
    "skewed": ("num_edges", "popularity", "length_spread"),
}
WEIGHT_OPTIONS = ("weights", "weight_range")


# ---- the game ------------------------------------------------------------------------------------------------------


@documented
@dataclass(frozen=True, slots=True, repr=False)
class GameSpec(Spec):
    """A pricing game as plain values: its network, its clients, its constants, and how it is played.

    Args:
        {fields}

    Raises:
        BadInput: A name that is not known, a value that cannot be, or two that do not go together.

    Example:
        >>> import mppfl
        >>> spec = mppfl.GameSpec(num_clients=12, preset="benign", num_rounds=3)
        >>> game = spec.build()
        >>> game.num_clients, game.propagation.hop_decay
        (12, 0.5)
        >>> print(spec.link())
        ?num_clients=12&preset=benign&num_rounds=3
    """

    TABLE: ClassVar[str] = "game"

    graph: Annotated[
        str | None,
        About("Edge list: source, target[, weight], meaning target is exposed by source; or GraphML.", NETWORK),
    ] = None
    undirected: Annotated[bool, About("Every edge runs both ways.", NETWORK)] = False
    isolated: Annotated[Literal["error", "keep", "drop"], About("Clients without an incoming edge.", NETWORK)] = "error"
    self_loops: Annotated[Literal["error", "drop"], About("Edges from a client to itself.", NETWORK)] = "error"
    normalisation: Annotated[Literal["row", "none", "symmetric"], About("How weights are normalised.", NETWORK)] = "row"
    diagonal: Annotated[Literal["auto", "exact", "estimate"], About("How closed walks are counted.", NETWORK)] = "auto"
    family: Annotated[Family | None, About("Of a network drawn without a graph; left out, erdos_renyi.", DRAWN)] = None
    num_clients: Annotated[
        int | None, About("Size of the random network, left out 20; beside a graph, what it must have.", DRAWN, 2)
    ] = None
    graph_seed: Annotated[int | None, About("Of the network alone; left out, drawn from the seed.", DRAWN, 0)] = None
    probability_range: Annotated[Range | None, About("erdos_renyi: chances of edges lie between these.", DRAWN)] = None
    edges_each: Annotated[int | None, About("barabasi_albert: edges that each newcomer makes.", DRAWN)] = None
    neighbours: Annotated[int | None, About("watts_strogatz: neighbours of each client on the ring.", DRAWN)] = None
    rewire: Annotated[float | None, About("watts_strogatz: chance of an edge to lead elsewhere.", DRAWN)] = None
    sizes: Annotated[tuple[int, ...] | None, About("stochastic_block: clients in each block.", DRAWN)] = None
    within: Annotated[float | None, About("stochastic_block: chance of an edge inside a block.", DRAWN)] = None
    between: Annotated[float | None, About("stochastic_block: chance of an edge between blocks.", DRAWN)] = None
    num_edges: Annotated[int | None, About("skewed: number of edges.", DRAWN)] = None
    popularity: Annotated[float | None, About("skewed: how unequally clients expose others; 0: alike.", DRAWN)] = None
    length_spread: Annotated[float | None, About("skewed: how unequal the numbers who expose them are.", DRAWN)] = None
    weights: Annotated[Literal["uniform", "ones"] | None, About("Random edge weights, or all 1.", DRAWN)] = None
    weight_range: Annotated[Range | None, About("Edge weights are drawn between these two.", DRAWN)] = None
    preset: Annotated[
        Literal["paper-like", "benign"], About("Where client costs and constants come from that are not given.", GAME)
    ] = "paper-like"
    clients: Annotated[str | None, About("CSV: name, quadratic_cost, linear_cost, noise_harm, ...", GAME)] = None
    clients_seed: Annotated[int | None, About("Of client costs alone; left out, drawn from the seed.", GAME, 0)] = None
    max_hops: Annotated[int | None, About("Longest walk that leaks, in edges; left out, the preset's.", GAME, 1)] = None
    hop_decay: Annotated[float | None, About("Decay per hop, 0 to 1; left out, the preset's.", GAME, 0, 1)] = None
    externality_strength: Annotated[
        float | None,
        About("How much others' budgets add to a client's loss; left out, the preset's.", GAME, 0, 1e100, closed=True),
    ] = None
    accuracy_weight: Annotated[
        float | None,
        About("Server's weight on accuracy, 0 to 1; the rest is on payments; left out, the preset's.", GAME, 0, 1),
    ] = None
    trust: Annotated[
        Trust | None,
        About(
            "Where noise is added, which decides what the server weighs: to every upload (local), or to the sum of all "
            "(secure_sum, server); left out, local, and in an experiment as its protection has it.",
            GAME,
        ),
    ] = None
    budget_min: Annotated[float, About("Least budget of every client in a round.", GAME, 0, 1e300, closed=True)] = 0.0
    budget_max: Annotated[float | None, About("Largest budget of every client in a round.", GAME, 0)] = None
    num_rounds: Annotated[int, About("Number of rounds.", GAME, 1, MOST_ROUNDS, option="--rounds")] = 60
    seed: Annotated[int, About("Random seed of the network, clients' costs and mechanisms that draw.", "", 0)] = 0
    participation: Annotated[
        Literal["everyone", "voluntary", "rational"],
        About("Who participates: everyone; whoever gives a budget; whoever also gains by it.", PRICING),
    ] = "everyone"
    against: Annotated[
        Literal["staying_out", "nothing"],
        About("For rational participation: what a client's utility is held against.", PRICING),
    ] = "staying_out"
    reward_rate: Annotated[
        float | Literal["own", "common"],
        About("own: each mechanism's server sets its rates; common: MPPFL's; a number: that one.", PRICING, 0, 1e100),
    ] = "own"
    payment_limit: Annotated[float | None, About("For budget_limited: payments per round.", PRICING, 0)] = None
    fixed_budget: Annotated[float | Literal["min", "mean"], About("For dp_fedavg.", PRICING, 0, 1e100)] = "min"

    def _check(self) -> None:
        if self.graph is None:
            for name in ("undirected", "isolated", "self_loops"):
                if (value := getattr(self, name)) != defaults_of(GameSpec)[name]:
                    raise BadInput(f"{name}={shown(value)} is for a network from a file. Give graph=FILE, too.")
        elif self.family is not None:
            raise BadInput(f"graph={shown(self.graph)} and family={shown(self.family)} are two networks. Keep one.")
        self._require_options_of_the_family()
        if self.budget_max is not None and self.budget_max < self.budget_min:
            raise BadInput(f"budget_max={self.budget_max:g} is below budget_min={self.budget_min:g}. Raise it.")
        if self.against != "staying_out" and self.participation != "rational":
            raise BadInput(f'against={shown(self.against)} is for participation="rational" only. Remove it.')

    def _require_options_of_the_family(self) -> None:
        family = self.family or "erdos_renyi"
        allowed = () if self.graph is not None else (*FAMILY_OPTIONS[family], *WEIGHT_OPTIONS)
        for name in (*WEIGHT_OPTIONS, *(name for names in FAMILY_OPTIONS.values() for name in names)):
            if (value := getattr(self, name)) is not None and name not in allowed:
                network = "a network from a file" if self.graph is not None else f"{family}, whose options are "
                raise BadInput(f"{name}={shown(value)} means nothing to {network}{', '.join(allowed)}. Remove it.")

    def family_options(self) -> dict[str, Any]:
        """What was given of the random family's own parameters."""
        names = (*FAMILY_OPTIONS[self.family or "erdos_renyi"], *WEIGHT_OPTIONS)
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def seed_of(self, purpose: Literal["graph", "clients"]) -> int:
        """The seed of the network or of the clients: its own, or drawn from `seed`."""
        own = self.graph_seed if purpose == "graph" else self.clients_seed
        return drawn_seed(self.seed, purpose) if own is None else own

    def build(self, device: str | None = None) -> "Game":
        """The game that these values describe.

        Args:
            device: "cuda", "cuda:1" or "cpu" to walk the network by PyTorch; without it NumPy does.

        Returns:
            The game, as `make_game` makes it, with the preset's constants where none are given.

        Raises:
            BadInput: A file cannot be read, or a value does not go with the network.
            NoEquilibrium: No client may give a budget above 0.
        """
        from mppfl.experiment import build_game

        return build_game(self, device)

    def link(self) -> str:
        """The values that are not the default as the query of a link, as the explorer has it; "" for none."""
        return to_query(self.changed())

    def to_toml(self) -> str:
        """The game as an experiment file, which `read_experiment` and `--experiment` read."""
        return toml_text({"seed": self.seed, "game": table_of(self)})


# ---- data, training, accounts and results --------------------------------------------------------------------------


@documented
@dataclass(frozen=True, slots=True, repr=False)
class DataSpec(Spec):
    """Which data set, and how clients share it.

    Args:
        {fields}
    """

    TABLE: ClassVar[str] = "data"

    name: Annotated[str, About("Data set by name, or the path of an .npz file.")] = "digits"
    folder: Annotated[str | None, About("Where official files lie; left out, MPPFL_DATA.")] = None
    source: Annotated[Literal["auto", "files", "hub"], About("Official files, the hub or whichever there is.")] = "auto"
    features: Annotated[
        Literal["none", "oriented_gradients"],
        About("What a model sees of a picture: its pixels, or numbers by rules fixed in advance."),
    ] = "none"
    split: Annotated[Literal["iid", "dirichlet", "community", "natural"], About("How clients share examples.")] = "iid"
    concentration: Annotated[float, About("Of split dirichlet: small is uneven.", "", 0, 1e6)] = 0.3
    min_examples: Annotated[int, About("What every client has at least.", "", 1)] = 10
    uneven: Annotated[float, About("Of split iid: spread of sizes, 0 for equal ones.", "", 0, 10, closed=True)] = 0.0
    seed: Annotated[int | None, About("Of the split alone; left out, drawn from the experiment's.", "", 0)] = None

    def _check(self) -> None:
        from mppfl.data import known_set

        if not self.name.endswith(".npz"):
            known_set(self.name)
        if self.uneven and self.split != "iid":
            raise BadInput(
                f'uneven={self.uneven:g} is for split="iid" only; others have sizes of their own. Remove it.'
            )


@documented
@dataclass(frozen=True, slots=True, repr=False)
class TrainingConfig(Spec):
    """How a federated training runs.

    Args:
        {fields}

    Raises:
        BadInput: A value is out of its range, or two do not go together; the message names the field.

    Example:
        >>> TrainingConfig(learning_rate=0.5, protection={"unit": "client", "clip_norm": 0.5})
        TrainingConfig(learning_rate=0.5, protection=Protection(unit='client', clip_norm=0.5))
    """

    TABLE: ClassVar[str] = "training"

    model: Annotated[Model, About("Model of an experiment; means nothing beside a model of your own.")] = "mlp"
    norm: Annotated[Literal["group", "batch", "none"], About("Normalisation in the VGGs.")] = "group"
    hidden: Annotated[tuple[int, ...], About("Widths of the MLP's hidden layers.", "", 1)] = (64,)
    learning_rate: Annotated[float, About("η of local SGD.", "", 0)] = 0.01
    momentum: Annotated[float, About("Of local SGD, forgotten between rounds.", "", 0, 1, closed=True)] = 0.0
    batch_size: Annotated[int, About("Examples per local step.", "", 1)] = 32
    local_epochs: Annotated[int, About("L, passes over a client's data in a round.", "", 1)] = 5
    augmentation: Annotated[
        Literal["none", "crop_and_flip"],
        About("crop_and_flip shows pictures shifted by up to 4 pixels and mirrored, anew at every look."),
    ] = "none"
    num_steps: Annotated[int, About("Noisy full-batch steps in a round, under release steps.", "", 1)] = 1
    protection: Annotated[
        Protection, About("What is protected, from whom and how: a Protection, or a dictionary of its values.")
    ] = Protection()  # noqa: RUF009
    aggregation: Annotated[Aggregation, About("Weights of clients' updates.")] = "noise_aware"
    dispersion: Annotated[
        float,
        About(
            "Public guess of the mean squared distance of clients' vectors from their mean, in units of clip_norm², "
            "under sums that open as a whole: 0 lets the noise alone decide what counts how much.",
            "",
            0,
            closed=True,
        ),
    ] = 0.0
    server_optimizer: Annotated[Literal["sgd", "momentum", "adam"], About("What becomes of the mean update.")] = "sgd"
    server_learning_rate: Annotated[float, About("Step of the server's optimiser.", "", 0)] = 1.0
    server_momentum: Annotated[float, About("Of server_optimizer momentum and adam.", "", 0, 1, closed=True)] = 0.9
    average_rounds: Annotated[
        int, About("The model handed out is the mean of the last so many rounds' (0: the last one).", "", 0, 2**63 - 1)
    ] = 0
    seed: Annotated[
        int | None,
        About(
            "Of the initial weights, the order of examples and seeded noise; left out, drawn from the experiment's, "
            "and 0 without one.",
            "",
            0,
            2**63 - 1,
        ),
    ] = None
    engine: Annotated[EngineName, About("How clients are computed; auto chooses by model and device.")] = "auto"
    device: Annotated[str, About("cpu, cuda or cuda:1.")] = "cpu"
    precision: Annotated[
        Precision,
        About("Of the arithmetic inside local training; weights are float32 (float64 with float64)."),
    ] = "float32"
    clients_at_once: Annotated[int | None, About("Clients computed at once; left out, by memory.", "", 1)] = None
    processes: Annotated[int | None, About("Processes of engine processes; left out, one per core.", "", 1)] = None
    evaluate_every: Annotated[int, About("Rounds between evaluations; the last is always evaluated.", "", 1)] = 1

    def _check(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise BadInput(f"device={self.device!r} is not known. Use 'cpu', 'cuda' or 'cuda:1'.")
        if self.protection.batches == "poisson" and self.augmentation != "none":
            raise BadInput(
                f"augmentation={self.augmentation!r} breaks batches='poisson': views are drawn by place in the sample, "
                "so one record more changes how the others are seen. Use augmentation='none', or batches='shuffled'."
            )
        if self.norm == "batch" and self.protection.clips_examples:
            raise BadInput(
                "norm='batch' breaks the protection of records: BatchNorm lets one record move every other record's "
                "gradient. Use norm='group', or unit='client'."
            )

    @property
    def stream_seed(self) -> int:
        """The seed of every stream of the training."""
        return self.seed or 0


@documented
@dataclass(frozen=True, slots=True, repr=False)
class LedgerSpec(Spec):
    """What a client may spend in all, and in which file the account is kept.

    Args:
        {fields}

    Raises:
        BadInput: A value is out of its range, or a file is named and none is to be kept.
    """

    TABLE: ClassVar[str] = "ledger"

    file: Annotated[
        str | None,
        About(
            "The account that several trainings of the same clients charge, and whose caps bind them all; left out, "
            "the training's own, in its folder."
        ),
    ] = None
    cap: Annotated[float | None, About("ρ that any client may spend in all.", "", 0)] = None
    caps: Annotated[dict[str, float], About("The same for single clients, by name.", "", 0)] = field(
        default_factory=dict
    )
    epsilon_cap: Annotated[
        float | None,
        About("ε at the protection's dp_delta that any client may reach in all, also by samples.", "", 0),
    ] = None
    epsilon_caps: Annotated[dict[str, float], About("The same for single clients, by name.", "", 0)] = field(
        default_factory=dict
    )
    keep: Annotated[bool, About("Whether the account is kept as a file.")] = True

    def _check(self) -> None:
        if self.file is not None and not self.keep:
            raise BadInput(f"file={shown(self.file)} is to be kept, and keep=false keeps none. Leave one of them out.")


@documented
@dataclass(frozen=True, slots=True, repr=False)
class OutputSpec(Spec):
    """Where results go.

    Args:
        {fields}
    """

    TABLE: ClassVar[str] = "output"

    folder: Annotated[str | None, About("Where results go; left out, runs/NAME.")] = None
    checkpoint_every: Annotated[int, About("Rounds after which a training can be taken up again.", "", 1)] = 5


# ---- all of it -----------------------------------------------------------------------------------------------------

ONE_OR_MANY = {"seed": "seeds", "mechanism": "mechanisms"}
FOLDER_NAME = re.compile(r"[\w][\w .+-]{0,99}")


@documented
@dataclass(frozen=True, slots=True, repr=False)
class Experiment(Spec):
    """One or several mechanisms on one network and one data set, each trained once for every seed and aggregation.

    Args:
        {fields}

    Raises:
        BadInput: A name or a value that cannot be, with its table, and the nearest name that is known.

    Example:
        >>> from mppfl import Experiment
        >>> Experiment(seeds=[1], game={"num_clients": 5}, protection={"clip_norm": 0.5})
        Experiment 'experiment': mppfl, seed 1
          game       num_clients = 5
          protection clip_norm = 0.5
    """

    name: Annotated[str, About("Names the folder of the results.")] = "experiment"
    seeds: Annotated[
        tuple[int, ...],
        About(
            "One training of each mechanism per seed, from which those of the network, the clients, the split and the "
            "training are drawn, each from a stream of its own; left out, the game's.",
            "",
            0,
        ),
    ] = ()
    mechanisms: Annotated[tuple[str, ...], About("Pricing mechanisms, as `mppfl compare` lists them.")] = ("mppfl",)
    aggregations: Annotated[tuple[Aggregation, ...], About("Several to compare; left out, the training's.")] = ()
    game: Annotated[GameSpec, About("The game: a GameSpec, or a dictionary of its values.")] = field(
        default_factory=GameSpec
    )
    data: Annotated[DataSpec, About("The data, as a dictionary of the keys of [data].")] = field(
        default_factory=DataSpec
    )
    training: Annotated[TrainingConfig, About("A TrainingConfig, or a dictionary of its values.")] = field(
        default_factory=TrainingConfig
    )
    protection: Annotated[
        Protection | None,
        About("What is protected, from whom and how, as a dictionary; left out, the protection of the training."),
    ] = None
    ledger: Annotated[LedgerSpec, About("Caps on what clients spend, as a dictionary.")] = field(
        default_factory=LedgerSpec
    )
    output: Annotated[OutputSpec, About("Where results go, as a dictionary.")] = field(default_factory=OutputSpec)

    def __post_init__(self) -> None:
        given = None if self.protection is None else made_from(Protection, self.protection)
        is_table = isinstance(self.training, Mapping) and given is not None
        training = made_from(TrainingConfig, self.training, **({"protection": given} if is_table else {}))
        if given not in (None, training.protection) and training.protection != Protection():
            raise BadInput("protection and the protection of the training are two. Keep one, or give the same twice.")
        made = {"training": training if given is None else replace(training, protection=given)}
        made["protection"] = made["training"].protection
        for name, cls in TABLES.items():
            object.__setattr__(self, name, made[name] if name in made else made_from(cls, getattr(self, name)))
        Spec.__post_init__(self)

    def _check(self) -> None:
        object.__setattr__(self, "seeds", self.seeds or (self.game.seed,))
        object.__setattr__(self, "game", replace(self.game, seed=self.seeds[0]))
        if not FOLDER_NAME.fullmatch(self.name):
            raise BadInput(f"name={self.name!r} must be fit for a folder: letters, digits, blanks and . + - _ only.")
        for name in ("seeds", "mechanisms", "aggregations"):
            listed = getattr(self, name)
            if len(set(listed)) < len(listed):
                raise BadInput(f"{name}={list(listed)} names one twice. Keep it once.")
        if not self.mechanisms:
            raise BadInput("mechanisms must name at least one.")
        from mppfl.experiment import require_playable

        try:
            require_playable(self.game, self.mechanisms)
        except BadInput as cause:
            raise BadInput(in_table("game", str(cause)).removeprefix("[game] ")) from cause
        count = len(self.mechanisms) * len(self.seeds) * max(1, len(self.aggregations))
        if count > 1 and not self.training.protection.is_simulated:
            raise BadInput(
                f"protection.noise={self.training.protection.noise!r} releases the same data in each of {count} "
                "trainings, of which one is enough. Train one at a time, on the same ledger.file, or compare them "
                "with noise='simulated'."
            )
        option = next((name for name in ("cap", "caps") if getattr(self.ledger, name)), None)
        if option is not None and not self.training.protection.is_zcdp:
            raise BadInput(
                f"ledger.{option} is ρ that adds up over rounds, and samples have none: whoever is capped would never "
                f"participate. Remove it, use epsilon_{option}, or use batches='shuffled' and client_rate=1."
            )

    def __repr__(self) -> str:
        seeds = f"seed{'s' * (len(self.seeds) != 1)} {', '.join(map(str, self.seeds))}"
        lines = [f"Experiment {self.name!r}: {', '.join((*self.mechanisms, *self.aggregations))}, {seeds}"]
        for name in TABLES:
            values = {
                key: value for key, value in getattr(self, name).changed().items() if (name, key) not in ELSEWHERE
            }
            changed = ", ".join(f"{key} = {shown(value)}" for key, value in values.items())
            lines += [f"  {name:<10} {changed}"] if changed else []
        return "\n".join(line if len(line) <= 120 else line[:117] + "..." for line in lines)

    def game_of(self, seed: int) -> GameSpec:
        """The game under one of the seeds, and under the protection's trust unless it has its own."""
        trust = self.training.protection.trust
        return replace(self.game, seed=seed, trust=self.game.trust or (None if trust == "local" else trust))

    def seed_of(self, purpose: Purpose, seed: int) -> int:
        """The seed of one purpose under one of the experiment's seeds: its table's own, or drawn from `seed`."""
        if purpose in ("graph", "clients"):
            return self.game_of(seed).seed_of(purpose)
        own = self.data.seed if purpose == "split" else self.training.seed
        return drawn_seed(seed, purpose) if own is None else own

    def as_dict(self) -> dict[str, Any]:
        """Every value by the names of the file, defaults included; those left to others (None) are left out."""
        values: dict[str, Any] = {"name": self.name}
        for one, many in ONE_OR_MANY.items():
            listed = getattr(self, many)
            values |= {one: listed[0]} if len(listed) == 1 else {many: list(listed)}
        if self.aggregations:
            values["aggregations"] = list(self.aggregations)
        return values | {name: table_of(getattr(self, name)) for name in TABLES}

    def to_toml(self) -> str:
        """The file that `read_experiment` reads back as this experiment."""
        return toml_text(self.as_dict())


SPECS: tuple[type[Spec], ...] = (GameSpec, DataSpec, TrainingConfig, Protection, LedgerSpec, OutputSpec)
TABLES: dict[str, type[Spec]] = {cls.TABLE: cls for cls in SPECS}
SEED_OF_GAME = ("game", "seed")  # which stands at the top of the file
ELSEWHERE = (SEED_OF_GAME, ("training", "protection"))
MOVED = {("training", name): f"{name} in [protection]" for name in hints(Protection)} | {
    ("training", "privacy"): "unit, release and batches in [protection]",
    ("training", "dp_epsilon"): "total_epsilon in [protection]",
    ("training", "protection"): "a table of its own, [protection]",
}


def keys_of(table: str) -> list[str]:
    """The names that a table of the file may hold."""
    return [name for name in hints(TABLES[table]) if (table, name) not in ELSEWHERE]


def table_of(spec: Spec) -> dict[str, Any]:
    """A spec as a table of the file; what is left to others (None, a unit that is found by its ε) is left out."""
    values = {name: getattr(spec, name) for name in keys_of(spec.TABLE)}
    if values.get("total_epsilon") is not None:
        del values["budget_unit"]
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None and value != {}
    }


def made_from(cls: type[Spec], value: Any, **more: Any) -> Any:
    """The spec of a table that is given as such, or as its values, whose faults are told with the table's name.

    more  values that the table itself does not have
    """
    table = cls.TABLE
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise BadInput(f"{table}={shown(value)} must be a table. Write [{table}] and its values below it.")
    _require_keys(table, value)
    if "total_epsilon" in value and "budget_unit" in value:
        raise BadInput("protection.total_epsilon and protection.budget_unit are both given. Keep one of them.")
    try:
        return cls(**value, **more)
    except BadInput as cause:
        raise BadInput(in_table(table, str(cause))) from cause


def _require_keys(table: str, names: Iterable[str]) -> None:
    """Raises for the first name that is not a key of the table, with the table that has it."""
    known, homes = keys_of(table), {name: home for home in TABLES for name in keys_of(home)}
    for name in names:
        if (table, name) == SEED_OF_GAME:
            raise BadInput("game.seed stands at the top, as seed. For one of the two use graph_seed or clients_seed.")
        if (table, name) in MOVED:
            raise BadInput(f"'{table}.{name}' is not known. Write {MOVED[table, name]}.")
        if name not in known and name in homes and not did_you_mean(name, known):
            raise BadInput(f"'{table}.{name}' is not known. It belongs to [{homes[name]}].")
    require_known(names, known, table)


def in_table(table: str, message: str) -> str:
    """A message about a spec's value with the table's name before it."""
    names_its_key = re.split(r"\W", message, maxsplit=1)[0] in keys_of(table)
    return f"{table}.{message}" if names_its_key else f"[{table}] {message}"


def drawn_seed(seed: int, purpose: Purpose) -> int:
    """The seed of one purpose that is drawn from the one of all."""
    import numpy as np

    return int(np.random.SeedSequence([seed, PURPOSES.index(purpose)]).generate_state(1)[0])
