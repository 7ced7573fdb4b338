"""mppfl audit: does a release protect as much as it says? Exit code 0 if the promise stood, 1 if it was broken or
could not be tried, as one line then says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mppfl.cli import inputs as ask

if TYPE_CHECKING:
    from mppfl.privacy.audit import AuditResult

app = typer.Typer(
    help="Try to prove a privacy promise wrong. Exit code 0: it stood, 1: broken, or it could not be tried.",
    no_args_is_help=True,
)

MechanismName = Literal["paper", "full_batch", "full_batch_steps", "dpsgd_shuffle", "dpsgd_poisson", "client"]
NoiseName = Literal["seeded", "gaussian", "discrete"]
AuditedNoiseName = Literal["seeded", "gaussian", "discrete", "plain-float32", "plain-float64"]

MechanismOption = Annotated[MechanismName, typer.Option("--mechanism", help="Which privacy mechanism.")]
EpochsOption = Annotated[
    int, typer.Option("--local-epochs", help="Passes over the data in a round; steps of full_batch_steps.")
]
ExamplesOption = Annotated[int, typer.Option("--num-examples", help="Examples of the client.")]
ClipOption = Annotated[float, typer.Option("--clip-norm", help="Length to which gradients or updates are clipped.")]
AuditSeedOption = Annotated[
    int, typer.Option("--seed", help="Seed of what is drawn, but for noise of the operating system.")
]
DeltaOption = Annotated[float, typer.Option("--delta", help="δ of differential privacy, for the ε compared.")]


@app.command("sensitivity")
def sensitivity_command(
    mechanism: MechanismOption = "full_batch",
    local_epochs: EpochsOption = 5,
    num_examples: ExamplesOption = 1000,
    clip_norm: ClipOption = 1.0,
    seed: AuditSeedOption = 0,
    json: ask.JsonOption = False,
) -> None:
    """Change one record, noise off: does an answer move farther than declared? Trains a small network."""
    from mppfl.privacy import privacy_mechanism
    from mppfl.privacy.audit import audit_sensitivity

    with ask.working("training a small network on neighbouring data"):
        found = audit_sensitivity(
            privacy_mechanism(mechanism),
            local_epochs=local_epochs,
            num_examples=num_examples,
            batch_size=min(32, max(1, num_examples)),
            clip_norm=clip_norm,
            seed=seed,
        )
    one, other = found.details["between"]
    unit, answer = found.details["unit"], found.details["noise_on"]
    worst = found.details["worst_case_multiplier"] or 1.0
    beside = {"worst case": f"{worst:<10,.0f}times every nominal budget, as reports print it"} if worst > 1 else {}
    passes = "one step" if mechanism == "full_batch" else f"{local_epochs} local epochs"
    tell(
        found,
        json,
        audited=f"{mechanism}, {num_examples:,} examples, {passes}",
        claimed=f"{found.claimed:<10.4g}how far one {unit} moves the {answer} at most",
        measured=f'{found.measured:<10.4g}between "{one}" and "{other}"',
        **beside,
        meaning=found.details["meaning"],
    )


@app.command("mechanism")
def mechanism_command(
    mechanism: MechanismOption = "client",
    noise: Annotated[NoiseName, typer.Option("--noise", help="Where the noise comes from.")] = "gaussian",
    budget: Annotated[
        float | None, typer.Option("--budget", help="ρ of one round [default: 0.5 without --noise-multiplier].")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="Instead of --budget: noise over sensitivity.")
    ] = None,
    delta: DeltaOption = 1e-5,
    local_epochs: EpochsOption = 1,
    num_examples: ExamplesOption = 100,
    dimension: Annotated[int, typer.Option("--dimension", help="Length of an update.")] = 10_000,
    num_canaries: Annotated[int, typer.Option("--num-canaries", help="More make a sharper audit.")] = 8_000,
    seed: AuditSeedOption = 0,
    json: ask.JsonOption = False,
) -> None:
    """Send known vectors through the real clip-and-noise code: does one noisy answer show more than its ε?"""
    from mppfl.privacy import LocalWork, privacy_mechanism
    from mppfl.privacy.audit import audit_mechanism

    audited = privacy_mechanism(mechanism)
    work = LocalWork(num_examples, local_epochs, local_epochs, min(32, num_examples))
    multiplier = _noise_multiplier(budget, noise_multiplier, audited.is_zcdp, audited.queries(work))
    with ask.working("looking for canaries"):
        found = audit_mechanism(
            audited,
            noise_multiplier=multiplier,
            dp_delta=delta,
            dimension=dimension,
            num_canaries=num_canaries,
            work=work,
            noise=noise,
            rng=ask.generator(seed),
        )
    details = found.details
    std, declared = details["noise_std"], details["declared_noise_std"]
    nominal, worst = details["budget"], details["worst_case_budget"]
    beside = {}
    if nominal is not None and worst > nominal:
        told = f"ε {details['worst_case_epsilon']:<8.4g}for ρ = {worst:.4g}; the claim is for the nominal {nominal:.4g}"
        beside["worst case"] = told
    size = "as declared" if details["variance_p_value"] >= details["variance_false_alarm"] else "not as declared"
    tell(
        found,
        json,
        audited=f"{mechanism}, {noise} noise, noise multiplier {multiplier:.4g}",
        claimed=f"ε {found.claimed:<8.4g}of one noisy answer at δ = {delta:g}",
        measured=f"ε {found.measured:<8.4g}at least, with {100 * (found.confidence or 0):.3g} % confidence",
        **beside,
        noise=f"{std:<10.4g}standard deviation, {size} ({declared:.4g})",
        meaning="the canaries show more than the budget allows, or the noise has another size"
        if found.verdict == "fail"
        else "the canaries show no more than the budget allows",
    )


@app.command("float")
def float_command(
    noise: Annotated[AuditedNoiseName, typer.Option("--noise", help="Which noise; plain is x + randn.")] = "gaussian",
    delta: DeltaOption = 1e-5,
    seed: AuditSeedOption = 0,
    json: ask.JsonOption = False,
) -> None:
    """Look at last bits: do they tell to which number the noise was added?"""
    from mppfl.privacy.audit import audit_float

    with ask.working("looking at last bits"):
        found = audit_float(noise, dp_delta=delta, rng=ask.generator(seed))
    tell(
        found,
        json,
        audited=f"{noise} noise of standard deviation 1 on 0 and on 1",
        claimed=f"δ {found.claimed:<8.4g}at ε = {found.details['dp_epsilon']:.4g}",
        measured=f"δ {found.measured:<8.4g}needed at least, with {100 * (found.confidence or 0):.4g} % confidence",
        meaning="the last bits tell 0 from 1, or the sign of what rounds to 0, whatever the budget says"
        if found.verdict == "fail"
        else "the last bits do not tell 0 from 1",
    )


@app.command("neighbour")
def neighbour_command(
    budget: Annotated[float, typer.Option("--budget", help="Client-level ρ of everybody.")] = 0.5,
    graph: ask.GraphOption = None,
    coupling: Annotated[
        float | None, typer.Option("--coupling", help="Ising coupling J of every link; the graph must be a forest.")
    ] = None,
    attribute: Annotated[
        Path | None, typer.Option("--attribute", help="CSV: name, value (±1 or 0/1), for everybody in --graph.")
    ] = None,
    num_clients: ask.NumClientsOption = 20,
    seed: AuditSeedOption = 0,
    json: ask.JsonOption = False,
) -> None:
    """Withhold one client's upload and infer its attribute from the others': more than the bound?

    With --attribute the attribute is real; with --coupling it is drawn from an Ising model on the forest in --graph;
    without either, from a random tree with random couplings.
    """
    from mppfl.leakage import audit_neighbour, random_ising_tree

    rng = ask.generator(seed)
    _check_neighbour(graph, coupling, attribute)
    with ask.working("guessing attributes from others' uploads"):
        if graph is None:
            tree = random_ising_tree(num_clients, rng)
            network, values, model = tree.graph, None, {"couplings": tree.couplings, "fields": tree.fields}
        else:
            from mppfl.leakage import read_values
            from mppfl.network import read_graph

            network = read_graph(graph, undirected=True, isolated="keep", self_loops="drop")
            values = read_values(attribute) if attribute is not None else None
            model = {"couplings": coupling}
        found = audit_neighbour(network, values, budget, rng=rng, **model)
    details = found.details
    low, high = _interval(details)
    claimed = "none      no theorem holds here" if found.claimed is None else f"{found.claimed:<10.4g}nats, mean bound"
    tell(
        found,
        json,
        audited=f"{network.num_clients:,} clients, {network.num_links:,} links, ρ = {budget:g} each",
        claimed=claimed,
        measured=f"{found.measured:<10.4g}nats, mean leak through others ({details['null_leak']:.2g} if permuted)",
        accuracy=f"{100 * details['accuracy']:<10.3g}% of guesses right ({100 * low:.3g} to {100 * high:.3g})",
        meaning="; ".join(details["failures"])
        or ("no client leaks more than the bound" if found.claimed is not None else str(details["ranking"])),
    )


# ---- what the commands share ------------------------------------------------------------------------------------


def tell(found: AuditResult, json: bool, *, meaning: str, **lines: str) -> None:
    """Prints the finding, as one JSON object or as aligned lines, and ends with code 1 if the audit failed."""
    if json:
        ask.print_json(_as_object(found))
    else:
        typer.echo(f"{'audit':<14}{found.audit}")
        for label, text in lines.items():
            typer.echo(f"{label:<14}{text}")
        typer.echo(f"{'verdict':<14}{found.verdict}: {meaning}")
        if found.verdict == "fail":
            typer.echo(f"audit {found.audit} failed", err=True)
    if found.verdict == "fail":
        raise typer.Exit(1)


def _as_object(found: AuditResult) -> dict[str, Any]:
    """The finding as one flat object; details come after what every audit has."""
    shared = ("audit", "verdict", "claimed", "measured", "confidence")
    return {name: getattr(found, name) for name in shared} | {
        name: _plain(value) for name, value in found.details.items() if name not in shared
    }


def _plain(value: Any) -> Any:
    """Arrays as lists and dataclasses as objects, all the way down."""
    from dataclasses import fields, is_dataclass

    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _noise_multiplier(budget: float | None, given: float | None, is_zcdp: bool, queries: int) -> float:
    """Noise over sensitivity, as given or as the budget of a round buys it for each of its answers."""
    import math

    from mppfl.arrays import require_number
    from mppfl.errors import BadInput

    if given is not None:
        if budget is not None:
            raise BadInput(f"--budget={budget:g} and --noise-multiplier={given:g} say the same. Give one of them.")
        return require_number(given, "noise_multiplier", 0.0, 1e6)
    if not is_zcdp:
        raise BadInput("dpsgd_poisson has no noise from a zCDP budget. Give --noise-multiplier.")
    rho = require_number(0.5 if budget is None else budget, "budget", 0.0, math.inf)
    return math.sqrt(queries / (2 * rho))


def _check_neighbour(graph: Path | None, coupling: float | None, attribute: Path | None) -> None:
    """Refuses options that contradict each other."""
    from mppfl.errors import BadInput

    if graph is None and (coupling is not None or attribute is not None):
        raise BadInput("--coupling and --attribute are about a network. Give it with --graph.")
    if graph is not None and (coupling is None) == (attribute is None):
        raise BadInput("--graph needs either --coupling (a model on a forest) or --attribute (a real attribute).")


def _interval(details: dict[str, Any]) -> tuple[float, float]:
    low, high = details["accuracy_interval"]
    return float(low), float(high)
