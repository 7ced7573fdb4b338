"""mppfl audit (alone: one file a command): tests whether releases protect as claimed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mppfl.cli import inputs
from mppfl.errors import BadInput

if TYPE_CHECKING:
    from mppfl.experiment import Case
    from mppfl.privacy.audit import AuditResult

app = typer.Typer(
    help="Test privacy claims. Exit code 0: the claim held, 1: violated, or it could not be tested.",
    no_args_is_help=True,
)

AuditedNoiseName = Literal["simulated", "gaussian", "discrete", "plain-float32", "plain-float64"]

Audited = Annotated[Path | None, typer.Argument(help="Experiment file; without one, the default of every value.")]
AuditSeedOption = Annotated[int, inputs.option("Random seed (system noise is not seeded).")]
VERDICTS = {  # of audits that bound ε or δ from below: which of them, and what pass and fail mean
    "training": ("ε", "the coins show no more than the budgets allow", "the coins show more than the budgets allow"),
    "mechanism": (
        "ε",
        "the canaries show no more than the budget allows",
        "the canaries show more than the budget allows, or the noise has another size",
    ),
    "float": (
        "δ",
        "the last bits do not tell 0 from 1",
        "the last bits tell 0 from 1, or the sign of what rounds to 0, whatever the budget says",
    ),
}

DeltaOption = Annotated[float, inputs.option("δ at which ε is compared.")]


def _first_case(experiment: Path | None, changes: list[str] | None) -> Case:
    """The experiment's first training, with its data, model, engine, precision and protection."""
    from mppfl.experiment import prepare, read_experiment

    asked = read_experiment(experiment, changes or ())
    with inputs.working("preparing the training"):
        first = replace(asked, mechanisms=asked.mechanisms[:1], seeds=asked.seeds[:1], aggregations=())
        return prepare(first)[0]


def _audited(case: Case, engine: str = "") -> str:
    training = case.config
    return f"{case.config.protection.name}, {training.model} in {training.precision}{engine}"


@app.command("sensitivity")
def sensitivity_command(
    experiment: Audited = None,
    changes: inputs.SetOption = None,
    client: Annotated[str | None, inputs.option("Client whose data are changed; the first one unless given.")] = None,
    seed: AuditSeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Change one record, or one client's data: does an answer move farther than declared? Through the real engine."""
    from mppfl.experiment import model_of
    from mppfl.training import audit_sensitivity

    case = _first_case(experiment, changes)
    position = 0 if client is None else case.solution.game.graph.index(client)
    with inputs.working("computing neighbouring data"):
        result = audit_sensitivity(
            model_of(case.experiment, case.data), case.data, case.config, client=position, seed=seed
        )
    details = result.details
    print_result(
        result,
        json,
        audited=f"{_audited(case)}, client {details['client']} with {details['num_examples']:,} examples",
        claimed=f"{result.claimed:<10.4g}how far one {details['unit']} moves what gets noise",
        measured=f'{result.measured:<10.4g}between "{details["between"][0]}" and "{details["between"][1]}"',
        meaning=details["meaning"],
    )


@app.command("training")
def training_command(
    experiment: Audited = None,
    changes: inputs.SetOption = None,
    num_coins: Annotated[int, inputs.option("Records, or clients, of which a coin decides what is trained on.")] = 200,
    confidence: Annotated[float, inputs.option("With which the lower bound holds.")] = 0.95,
    seed: AuditSeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Train once with coins in the data: does the model tell how they fell more often than its ε allows?"""
    from mppfl.experiment import model_of
    from mppfl.training import audit_training

    case = _first_case(experiment, changes)
    with inputs.working("training"):
        result = audit_training(
            model_of(case.experiment, case.data), case.data, case.solution.plan, case.config,
            num_coins=num_coins, confidence=confidence, seed=seed,
        )  # fmt: skip
    details = result.details
    audited = f"{_audited(case)}, {len(case.solution.plan)} rounds, {details['num_coins']} coins"
    accuracy = f"{100 * details['accuracy']:<10.3g}% on the test data"
    print_bound(result, json, audited, f"at δ = {details['dp_delta']:.3g}", accuracy=accuracy)


@app.command("mechanism")
def mechanism_command(
    experiment: Audited = None,
    changes: inputs.SetOption = None,
    budget: Annotated[
        float | None, inputs.option("Budget ρ of one round (default 0.5 unless --noise-multiplier is given).")
    ] = None,
    noise_multiplier: Annotated[
        float | None, inputs.option("Instead of --budget: noise standard deviation over sensitivity.")
    ] = None,
    num_examples: Annotated[int, inputs.option("Number of examples of the client.")] = 100,
    dimension: Annotated[int, inputs.option("Number of parameters of an update.")] = 10_000,
    num_canaries: Annotated[int, inputs.option("Number of canaries; more give a tighter lower bound.")] = 8_000,
    seed: AuditSeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Send known vectors through the clip-and-noise code: does one noisy answer reveal more than its ε?"""
    from mppfl.experiment import read_experiment
    from mppfl.privacy import LocalWork
    from mppfl.privacy.audit import audit_mechanism

    training = read_experiment(experiment, changes or ()).training
    protection, delta = training.protection, training.protection.dp_delta
    work = LocalWork(num_examples, training.local_epochs, training.num_steps, min(training.batch_size, num_examples))
    multiplier = _noise_multiplier(budget, noise_multiplier, protection.is_zcdp, protection.queries(work))
    with inputs.working("scoring canaries"):
        result = audit_mechanism(
            protection,
            noise_multiplier=multiplier,
            dp_delta=delta,
            dimension=dimension,
            num_canaries=num_canaries,
            work=work,
            rng=inputs.generator(seed),
        )
    details = result.details
    std, declared = details["noise_std"], details["declared_noise_std"]
    size = "as declared" if details["variance_p_value"] >= details["variance_false_alarm"] else "not as declared"
    audited = f"{protection.name}, {protection.noise} noise, noise multiplier {multiplier:.4g}"
    drawn = f"{std:<10.4g}standard deviation, {size} ({declared:.4g})"
    print_bound(result, json, audited, f"of one noisy answer at δ = {delta:g}", noise=drawn)


@app.command("float")
def float_command(
    noise: Annotated[AuditedNoiseName, inputs.option("Noise source; plain is x + randn.")] = "gaussian",
    delta: DeltaOption = 1e-5,
    seed: AuditSeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Test the last bits of noisy floats: do they reveal to which number the noise was added?"""
    from mppfl.privacy.audit import audit_float

    with inputs.working("testing last bits"):
        result = audit_float(noise, dp_delta=delta, rng=inputs.generator(seed))
    audited = f"{noise} noise of standard deviation 1 on 0 and on 1"
    print_bound(result, json, audited, f"at ε = {result.details['dp_epsilon']:.4g}")


@app.command("neighbour")
def neighbour_command(
    budget: Annotated[float, inputs.option("Client-level ρ of every client.")] = 0.5,
    graph: inputs.GraphOption = None,
    coupling: Annotated[
        float | None, inputs.option("Ising coupling J of every edge; the graph must be a forest.", inputs.LEAKAGE)
    ] = None,
    attribute: Annotated[Path | None, inputs.option("CSV: name, value (±1 or 0/1) of all.", inputs.LEAKAGE)] = None,
    num_clients: inputs.NumClientsOption = 20,
    seed: AuditSeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Withhold one client's upload and infer its attribute from the others': does more leak than the bound?

    With --attribute the attribute is real; with --coupling it is drawn from an Ising model on the forest in --graph;
    without either, from a random tree with random couplings.
    """
    from mppfl.leakage import audit_neighbour, random_ising_tree

    rng = inputs.generator(seed)
    if graph is None and (coupling is not None or attribute is not None):
        raise BadInput("--coupling and --attribute are about a network. Give it with --graph.")
    if graph is not None and (coupling is None) == (attribute is None):
        raise BadInput("--graph needs either --coupling (a model on a forest) or --attribute (a real attribute).")
    with inputs.working("inferring attributes from others' uploads"):
        if graph is None:
            tree = random_ising_tree(num_clients, rng)
            network, values, model = tree.graph, None, {"couplings": tree.couplings, "fields": tree.fields}
        else:
            from mppfl.leakage import read_values
            from mppfl.network import read_graph

            network = read_graph(graph, undirected=True, isolated="keep", self_loops="drop")
            values = read_values(attribute) if attribute is not None else None
            model = {"couplings": coupling}
        result = audit_neighbour(network, values, budget, rng=rng, **model)
    details = result.details
    low, high = (100 * float(end) for end in details["accuracy_interval"])
    claimed = "none      no theorem applies" if result.claimed is None else f"{result.claimed:<10.4g}nats, mean bound"
    print_result(
        result,
        json,
        audited=f"{network.num_clients:,} clients, {network.num_edges:,} edges, ρ = {budget:g} each",
        claimed=claimed,
        measured=f"{result.measured:<10.4g}nats, mean leak through others ({details['null_leak']:.2g} if permuted)",
        accuracy=f"{100 * details['accuracy']:<10.3g}% of guesses right ({low:.3g} to {high:.3g})",
        meaning="; ".join(details["failures"])
        or ("no client leaks more than the bound" if result.claimed is not None else str(details["ranking"])),
    )


def print_bound(result: AuditResult, json: bool, audited: str, of: str, **lines: str) -> None:
    """Prints the result of an audit that bounds ε or δ from below; `of` says of what the claim is."""
    symbol, held, violated = VERDICTS[result.audit]
    claimed, measured = f"{symbol} {result.claimed:<8.4g}{of}", f"{symbol} {result.measured:<8.4g}at least, with "
    measured += f"{100 * (result.confidence or 0):.4g} % confidence"
    meaning = violated if result.verdict == "fail" else held
    print_result(result, json, audited=audited, claimed=claimed, measured=measured, **lines, meaning=meaning)


def print_result(result: AuditResult, json: bool, *, meaning: str, **lines: str) -> None:
    """Prints the result, as one JSON object or as aligned lines, and exits with code 1 if the audit failed."""
    if json:
        shared = ("audit", "verdict", "claimed", "measured", "confidence")
        inputs.print_json(
            {name: getattr(result, name) for name in shared}
            | {name: value for name, value in result.details.items() if name not in shared}
        )
    else:
        inputs.print_lines({"audit": result.audit, **lines, "verdict": f"{result.verdict}: {meaning}"}, 14)
        if result.verdict == "fail":
            typer.echo(f"audit {result.audit} failed", err=True)
    if result.verdict == "fail":
        raise typer.Exit(1)


def _noise_multiplier(budget: float | None, given: float | None, is_zcdp: bool, queries: int) -> float:
    """Noise over sensitivity, as given or from the budget of a round, split over its answers."""
    import math

    from mppfl.arrays import require_number

    if given is not None:
        if budget is not None:
            raise BadInput(f"--budget={budget:g} and --noise-multiplier={given:g} say the same. Give one of them.")
        return require_number(given, "noise_multiplier", 0.0, 1e6)
    if not is_zcdp:
        raise BadInput("samples have no noise from a zCDP budget. Give --noise-multiplier.")
    rho = require_number(0.5 if budget is None else budget, "budget", 0.0, math.inf)
    return math.sqrt(queries / (2 * rho))
