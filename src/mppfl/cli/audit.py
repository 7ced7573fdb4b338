"""mppfl audit (alone: one file a command): tests whether releases protect as claimed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mppfl.cli import inputs
from mppfl.errors import BadInput
from mppfl.spec import Noise, Privacy

if TYPE_CHECKING:
    from mppfl.privacy.audit import AuditResult

app = typer.Typer(
    help="Test privacy claims. Exit code 0: the claim held, 1: violated, or it could not be tested.",
    no_args_is_help=True,
)

AuditedNoiseName = Literal["seeded", "gaussian", "discrete", "plain-float32", "plain-float64"]

MechanismOption = Annotated[Privacy, inputs.option("Privacy mechanism.")]
EpochsOption = Annotated[int, inputs.option("Passes over the data in a round; steps of full_batch_steps.")]
ExamplesOption = Annotated[int, inputs.option("Number of examples of the client.")]
ClipOption = Annotated[float, inputs.option("Length to which gradients or updates are clipped.")]
AuditSeedOption = Annotated[int, inputs.option("Random seed (system noise is not seeded).")]
DeltaOption = Annotated[float, inputs.option("δ at which ε is compared.")]


@app.command("sensitivity")
def sensitivity_command(
    mechanism: MechanismOption = "full_batch",
    local_epochs: EpochsOption = 5,
    num_examples: ExamplesOption = 1000,
    clip_norm: ClipOption = 1.0,
    seed: AuditSeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Change one record, without noise: does an answer move farther than declared? Trains a small network."""
    from mppfl.privacy import privacy_mechanism
    from mppfl.privacy.audit import audit_sensitivity

    with inputs.working("training a small network on neighbouring data"):
        result = audit_sensitivity(
            privacy_mechanism(mechanism),
            local_epochs=local_epochs,
            num_examples=num_examples,
            batch_size=min(32, max(1, num_examples)),
            clip_norm=clip_norm,
            seed=seed,
        )
    one, other = result.details["between"]
    unit, answer = result.details["unit"], result.details["noise_on"]
    worst = result.details["worst_case_multiplier"] or 1.0
    beside = {"worst case": f"{worst:<10,.0f}times every nominal budget, as reports print it"} if worst > 1 else {}
    passes = "one step" if mechanism == "full_batch" else f"{local_epochs} local epochs"
    print_result(
        result,
        json,
        audited=f"{mechanism}, {num_examples:,} examples, {passes}",
        claimed=f"{result.claimed:<10.4g}how far one {unit} moves the {answer} at most",
        measured=f'{result.measured:<10.4g}between "{one}" and "{other}"',
        **beside,
        meaning=result.details["meaning"],
    )


@app.command("mechanism")
def mechanism_command(
    mechanism: MechanismOption = "client",
    noise: Annotated[Noise, inputs.option("Noise source.")] = "gaussian",
    budget: Annotated[
        float | None, inputs.option("Budget ρ of one round (default 0.5 unless --noise-multiplier is given).")
    ] = None,
    noise_multiplier: Annotated[float | None, inputs.option("Instead of --budget: noise over sensitivity.")] = None,
    delta: DeltaOption = 1e-5,
    local_epochs: EpochsOption = 1,
    num_examples: ExamplesOption = 100,
    dimension: Annotated[int, inputs.option("Number of parameters of an update.")] = 10_000,
    num_canaries: Annotated[int, inputs.option("Number of canaries; more give a tighter lower bound.")] = 8_000,
    seed: AuditSeedOption = 0,
    json: inputs.JsonOption = False,
) -> None:
    """Send known vectors through the clip-and-noise code: does one noisy answer reveal more than its ε?"""
    from mppfl.privacy import LocalWork, privacy_mechanism
    from mppfl.privacy.audit import audit_mechanism

    audited = privacy_mechanism(mechanism)
    work = LocalWork(num_examples, local_epochs, local_epochs, min(32, num_examples))
    multiplier = _noise_multiplier(budget, noise_multiplier, audited.is_zcdp, audited.queries(work))
    with inputs.working("scoring canaries"):
        result = audit_mechanism(
            audited,
            noise_multiplier=multiplier,
            dp_delta=delta,
            dimension=dimension,
            num_canaries=num_canaries,
            work=work,
            noise=noise,
            rng=inputs.generator(seed),
        )
    details = result.details
    std, declared = details["noise_std"], details["declared_noise_std"]
    nominal, worst = details["budget"], details["worst_case_budget"]
    beside = {}
    if nominal is not None and worst > nominal:
        text = f"ε {details['worst_case_epsilon']:<8.4g}for ρ = {worst:.4g}; the claim is for the nominal {nominal:.4g}"
        beside["worst case"] = text
    size = "as declared" if details["variance_p_value"] >= details["variance_false_alarm"] else "not as declared"
    print_result(
        result,
        json,
        audited=f"{mechanism}, {noise} noise, noise multiplier {multiplier:.4g}",
        claimed=f"ε {result.claimed:<8.4g}of one noisy answer at δ = {delta:g}",
        measured=f"ε {result.measured:<8.4g}at least, with {100 * (result.confidence or 0):.3g} % confidence",
        **beside,
        noise=f"{std:<10.4g}standard deviation, {size} ({declared:.4g})",
        meaning="the canaries show more than the budget allows, or the noise has another size"
        if result.verdict == "fail"
        else "the canaries show no more than the budget allows",
    )


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
    print_result(
        result,
        json,
        audited=f"{noise} noise of standard deviation 1 on 0 and on 1",
        claimed=f"δ {result.claimed:<8.4g}at ε = {result.details['dp_epsilon']:.4g}",
        measured=f"δ {result.measured:<8.4g}needed at least, with {100 * (result.confidence or 0):.4g} % confidence",
        meaning="the last bits tell 0 from 1, or the sign of what rounds to 0, whatever the budget says"
        if result.verdict == "fail"
        else "the last bits do not tell 0 from 1",
    )


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
        raise BadInput("dpsgd_poisson has no noise from a zCDP budget. Give --noise-multiplier.")
    rho = require_number(0.5 if budget is None else budget, "budget", 0.0, math.inf)
    return math.sqrt(queries / (2 * rho))
