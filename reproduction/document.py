"""docs/reproduction.md, its charts, and the same as one HTML page: made from the files of results, never by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt  # comes with rich
from markupsafe import Markup

from mppfl.files import write_whole
from mppfl.text import duration, number, plainly
from mppfl.training import MARGIN, TESTED_AT_ONCE
from reproduction.accuracy_charts import chart_name, curve_charts
from reproduction.accuracy_curves import others_stay_below, read_curves, stays_close
from reproduction.batch import EVALUATE_EVERY
from reproduction.charts import QUANTITIES, STYLE, as_file, chart
from reproduction.choice import is_open, read_choice, settings_of
from reproduction.claims import CLAIMS, CONVENTIONS, HOLDS, TITLES, VERDICTS, Finding
from reproduction.figure_files import Figure, read_figure
from reproduction.game_figures import FIGURES, HELD, NUM_PARAMETERS, REFERENCE, harm_of
from reproduction.premise import premise_section
from reproduction.settings import CURVES_OF, EXTERNALITY_STRENGTH, MAX_HOPS, PRESET, SETTINGS
from reproduction.store import NO_DATA, is_unavailable
from reproduction.tables import MPPFL_WITHIN, PARTITION_TITLES, markdown_table, tables_section
from reproduction.theorems import STATEMENTS
from reproduction.units import FALLBACK, TOLERANCE

REPORT_CSS = resources.files("mppfl.experiment.report") / "templates" / "report.css"
IMAGES = "images/paper"  # beside the document
MARKS = {"reproduced": "✓", "under a stated condition": "◐", "not reproduced": "✗"}
HEADINGS = {
    "fig-phi": "φ₁ per sweep of Algorithm 1",
    "fig-cost": "Server cost per data set",
    "fig-welfare": "Welfare per data set",
    "fig-alpha": "Cost and welfare against α",
    "fig-k": "Cost and welfare against K",
    "fig-n": "Cost and welfare against N",
}
WHY = {
    "fig-phi": "Lemma 1 gives the rate as a function of itself. Putting the current rate into its right side "
    "overshoots: the step has a slope below −1 at the solution, so errors grow. Solving for the rate in every sweep "
    "avoids that ([corrections, (a)](corrections.md#a-algorithm-1)).",
    "fig-cost": "Clients who overlook exposure ask less for a budget, so a server that sets its own rate buys cheaper "
    "from SA's clients than from MPPFL's. At MPPFL's rates the same clients sell more than that server would want at "
    "such a price, and cost it more. One rate for all must be high enough for the most reluctant client and overpays "
    "the others; small equal budgets and an auction with personal prices avoid that, and cost a fraction "
    "([corrections, (e)](corrections.md#e-the-cost-claim)).",
    "fig-welfare": "At MPPFL's rates mandated budgets of SA's mean cost clients more privacy than they earn: Random's "
    "in every network, DP-FedAvg's (mean) in nearly every one. SA's clients, who overlook exposure, keep about two "
    "thirds of MPPFL's welfare; the smallest budgets earn little, and what the auction pays falls a little short of "
    "what privacy costs clients there. With own rewards, Random and DP-FedAvg mandate budgets and pay a rate that "
    "covers everybody's cost, so that the server's loss is the clients' gain. MPPFL's lead over SA is nearly the same "
    "in every round and on every data set; summed over rounds it is larger where the paper trains longer.",
    "fig-alpha": "At given rates, clients who feel exposure more sell less: cost, payments and budgets fall. MPPFL's "
    "server answers with a higher rate, to keep the most reluctant client, and that more than makes up for it: budgets "
    "and payments rise. Welfare then falls in most networks because exposure costs more, not because clients hold back "
    "([corrections, (e)](corrections.md#e-the-cost-claim)).",
    "fig-k": "A larger K adds exposure over longer walks, and works like a larger α.",
    "fig-n": "By eq. 11 the harm ε of a client's noise depends on all examples together and not on N, so more clients "
    "mean more noise terms and more payments under every mechanism. Who is ahead is decided as at N = 20.",
}
CLOSE, LOWER = "MPPFL stays close to SA", "SARDA and DP-FedAvg stay below MPPFL"
DEFAULTS = {"α": EXTERNALITY_STRENGTH, "K": MAX_HOPS}
MOST_COLUMNS = 5  # places of an axis in a table; of longer ones only the ends and the default


def make_document(folder: str | Path, docs: str | Path = "docs") -> Path:
    """Writes `docs`/reproduction.md and the charts it shows, from the files in `folder`."""
    target = Path(docs) / "reproduction.md"
    for name, svg in chart_files(folder).items():
        write_whole(Path(docs) / IMAGES / f"{name}.svg", svg.encode())
    write_whole(target, document_text(folder).encode())
    return target


def make_page(folder: str | Path, path: str | Path) -> Path:
    """Writes the same as one HTML page that needs nothing but itself, in the look of the training report."""
    target = Path(path)
    write_whole(target, page_text(folder).encode())
    return target


def chart_files(folder: str | Path) -> dict[str, str]:
    """Every figure that has been made, as the text of its SVG file."""
    return {name: as_file(svg) for name, svg in _charts(folder).items()}


def _charts(folder: str | Path) -> dict[str, Markup]:
    return {name: chart(figure) for name, figure in _figures(folder).items()} | curve_charts(Path(folder))


def _figures(folder: str | Path) -> dict[str, Figure]:
    found = {name: read_figure(folder, name) for name in FIGURES}
    return {name: figure for name, figure in found.items() if figure is not None}


# ---- the document -------------------------------------------------------------------------------------------------


def document_text(folder: str | Path) -> str:
    """The document as Markdown. Figures that are not made yet say so."""
    figures = _figures(folder)
    harms = {name: harm_of(name) for name in SETTINGS}
    page = Environment(autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = page.from_string(_template("reproduction.md.j2")).render(
        tally=_tally_table(figures),
        preset=PRESET,
        settings=_settings_table(Path(folder)),
        choices=_choices_part(Path(folder)),
        margin=MARGIN,
        tested_at_once=f"{TESTED_AT_ONCE:,}",
        tolerance=plainly(TOLERANCE),
        fallback=plainly(FALLBACK),
        reference=SETTINGS[REFERENCE].title,
        reference_harm=plainly(harms[REFERENCE]),
        span=f"{max(harms.values()) / min(harms.values()):.0f}",
        harms=_harm_table(),
        max_hops=MAX_HOPS,
        strength=plainly(EXTERNALITY_STRENGTH),
        tables=tables_section(Path(folder)).strip(),
        curves=_curves_part(Path(folder)),
        close=plainly(MPPFL_WITHIN),
        evaluated_every=EVALUATE_EVERY,
        holds=f"{100 * HOLDS:.0f}",
        figures=[{"heading": h, "body": _figure_part(name, figures.get(name))} for name, h in HEADINGS.items()],
        statements=_statement_table(),
        premise=premise_section(Path(folder).resolve().parents[1] / "benchmarks" / "records"),
        time=_time(list(figures.values())),
    )
    return text.strip() + "\n"


def _tally_table(figures: dict[str, Figure]) -> str:
    claims, proofs = _tally(_judged_claims(figures)), _tally(_judged_statements())
    return _table(
        [
            ["what the paper says", *(f"{MARKS[verdict]} {verdict}" for verdict in VERDICTS)],
            ["about its figures of the game", *(str(claims[verdict]) for verdict in VERDICTS)],
            ["in propositions, theorems and Algorithm 1", *(str(proofs[verdict]) for verdict in VERDICTS)],
        ]
    )


def _tally(findings: Iterable[Finding]) -> dict[str, int]:
    found = [finding.verdict for finding in findings]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def _judged_claims(figures: dict[str, Figure]) -> list[Finding]:
    return [claim.judge(figures[claim.figure]) for claim in CLAIMS if claim.figure in figures]


@cache  # games of a second, and the same at every call
def _judged_statements() -> tuple[Finding, ...]:
    return tuple(statement.check() for statement in STATEMENTS)


def _settings_table(folder: Path) -> str:
    lines = [["data set", "train / test", "model", "norm", "augmentation", "η", "batch", "rounds T", "local epochs"]]
    for name, setting in settings_of(folder).items():
        chosen = not is_open(setting) or read_choice(folder, name)["chosen"] is not None
        lines.append(
            [
                setting.title,
                f"{setting.num_train:,} / {setting.num_test:,}",
                f"`{setting.model}`",
                (setting.norm if is_open(setting) else "none") if chosen else "not chosen yet",
                _said(setting.augmentation) if chosen else "not chosen yet",
                plainly(setting.learning_rate),
                str(setting.batch_size),
                str(setting.num_rounds),
                str(setting.local_epochs),
            ]
        )
    return _table(lines)


def _choices_part(folder: Path) -> str:
    """What was tried for each VGG, and what was taken."""
    lines, told = [["data set", "norm", "augmentation", "without noise, IID", "rounds", "taken"]], []
    for name, setting in SETTINGS.items():
        if not is_open(setting):
            continue
        content = read_choice(folder, name)
        if content["chosen"] is None:
            why = NO_DATA if is_unavailable(folder, name) else "not all variants are trained"
            told.append(f"{setting.title}: not chosen yet, {why}.")
        for row in content["variants"]:
            taken = content["chosen"] == {key: row[key] for key in ("norm", "augmentation")}
            accuracy = f"{100 * row['accuracy']:.2f}"
            cells = [setting.title, row["norm"], _said(row["augmentation"]), accuracy, str(content["num_rounds"])]
            lines.append([*cells, "yes" if taken else ""])
    return "\n\n".join([*([_table(lines)] if len(lines) > 1 else []), *([" ".join(told)] if told else [])])


def _said(augmentation: str) -> str:
    return {"crop_and_flip": "crops and flips"}.get(augmentation, augmentation)


def _harm_table() -> str:
    lines = [["data set", "p", "examples", "rounds T", "ε"]]
    for name, setting in SETTINGS.items():
        counts = [f"{NUM_PARAMETERS[name]:,}", f"{setting.num_train:,}", str(setting.num_rounds)]
        lines.append([setting.title, *counts, number(harm_of(name))])
    return _table(lines)


def _curves_part(folder: Path) -> str:
    """Charts of accuracy round by round, and the paper's two claims about them for every split."""
    found = read_curves(folder)
    parts = []
    for dataset in dict.fromkeys(curves.dataset for curves in found):
        title, several = SETTINGS[dataset].title, [curves for curves in found if curves.dataset == dataset]
        parts.append(f"![{title}, accuracy round by round]({IMAGES}/{chart_name(dataset)}.svg)")
        lines = [["claim", "split", "verdict", "second half of the rounds"]]
        for claim, judge in ((CLOSE, stays_close), (LOWER, others_stay_below)):
            for curves in several:
                finding, split = judge(curves), PARTITION_TITLES[curves.partition]
                told = ["not measured yet", ""] if finding is None else [_verdict(finding), finding.reason]
                lines.append([claim, f"{title}, {split}", *told])
        parts.append(_table(lines))
    if CURVES_OF not in {curves.dataset for curves in found}:
        parts.append(f"{SETTINGS[CURVES_OF].title} has no curves yet: `python -m reproduction fig-curves`.")
    return "\n\n".join(parts)


def _figure_part(name: str, figure: Figure | None) -> str:
    """The chart, what it shows, the paper's claims with their verdicts, and the numbers."""
    if figure is None:
        return f"Not made yet: `python -m reproduction {name}`."
    parts = [f"![{HEADINGS[name]}, {figure.seeds} seeds]({IMAGES}/{name}.svg)", _caption(figure)]
    lines = [["claim", "where", "verdict", "numbers"]]
    for claim in CLAIMS:
        if claim.figure == name:
            finding = claim.judge(figure)
            lines.append([claim.text, claim.where, _verdict(finding), finding.reason])
    parts += [_table(lines), WHY[name]]
    if figure.axis != "sweep":
        parts += [_values(figure, convention, setting) for setting in figure.settings for convention in CONVENTIONS]
    return "\n\n".join(parts)


def _caption(figure: Figure) -> str:
    if figure.axis == "sweep":
        return (
            f"{figure.seeds} seeds. Above: φ₁ of one network (seed 0) in several rounds t. Below: how far φ₁ is from "
            "the equilibrium that is solved directly, over all networks."
        )
    said = f"{figure.seeds} seeds. Bands show how much networks differ; claims are judged seed by seed."
    if figure.mechanisms(HELD):
        said += " *Rates held*: MPPFL's clients at the rates that its server chooses at the right end of the axis."
    return said


def _values(figure: Figure, convention: str, setting: str) -> str:
    """Medians with percentiles: at all places, or at the ends and the default of a long axis."""
    quantities = [quantity for quantity in QUANTITIES if any(s.quantity == quantity for s in figure.strands)]
    at = list(range(len(figure.places)))
    if len(at) > MOST_COLUMNS:
        at = [0, list(figure.places).index(DEFAULTS[figure.axis]), at[-1]]
    places = [
        SETTINGS[place].title if figure.axis == "data set" else f"{figure.axis} = {plainly(place)}"
        for place in (figure.places[k] for k in at)
    ]
    title = f"{SETTINGS[setting].title}, {CONVENTIONS[convention]}" if setting else CONVENTIONS[convention]
    lines = [[title, *(f"{QUANTITIES[quantity].lower()}, {place}" for quantity in quantities for place in places)]]
    for name in figure.mechanisms(convention):
        row = [TITLES[name]]
        for quantity in quantities:
            values = figure.values(name, quantity, convention=convention, setting=setting)
            row += [_spread(values[k].tolist()) for k in at]
        lines.append(row)
    return _table(lines)


def _spread(values: Sequence[float]) -> str:
    rounded = np.rint(np.quantile(values, (0.1, 0.5, 0.9))) + 0.0  # no minus before a zero
    low, middle, high = (f"{value:,.0f}".replace("-", "−") for value in rounded)
    return f"{middle} ({low} to {high})"


def _statement_table() -> str:
    lines = [["statement", "claim", "verdict", "numbers", "argument", "tested by"]]
    for statement, finding in zip(STATEMENTS, _judged_statements(), strict=True):
        lines.append(
            [
                statement.name,
                statement.text,
                _verdict(finding),
                finding.reason,
                f"[corrections](corrections.md#{statement.more})",
                f"[{Path(statement.tested_by).name}](../{statement.tested_by})",
            ]
        )
    return _table(lines)


def _time(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    seconds, cpu = (sum(figure.provenance[key] for figure in figures) for key in ("seconds", "cpu_seconds"))
    versions = sorted({f"mppfl {figure.provenance['mppfl']}" for figure in figures})
    commits = sorted({figure.provenance["commit"][:12] for figure in figures} - {""})
    return (
        f"The figures of the game took {duration(seconds)} together, {duration(cpu)} of processor time, in one process "
        f"({', '.join(versions)}, on top of commit {', '.join(commits) or 'unknown'})."
    )


def _verdict(finding: Finding) -> str:
    condition = f": {finding.condition}" if finding.condition else ""
    return f"{MARKS[finding.verdict]} **{finding.verdict}**{condition}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return markdown_table(lines[0], lines[1:])


# ---- the page -----------------------------------------------------------------------------------------------------


def page_text(folder: str | Path) -> str:
    """The document as an HTML page, with the charts inside."""
    figures, charts = _figures(folder), _charts(folder)
    first, *sections = re.split(r"^## ", document_text(folder), flags=re.MULTILINE)
    title, _, introduction = first.removeprefix("# ").partition("\n")
    tally = _tally([*_judged_claims(figures), *_judged_statements()])
    parts = []
    for section in sections:
        heading, _, body = section.partition("\n")
        key = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
        parts.append({"key": key, "heading": heading, "html": _as_html(body, charts)})
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        _template("paper.html.j2")
    )
    return page.render(
        css=Markup(REPORT_CSS.read_text("utf-8") + STYLE),
        title=title,
        introduction=_as_html(introduction, charts),
        tiles=[{"mark": MARKS[verdict], "value": tally[verdict], "label": verdict} for verdict in VERDICTS],
        sections=parts,
    )


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text("utf-8")


def _as_html(text: str, charts: dict[str, Markup]) -> Markup:
    """Markdown as HTML: charts in the place of their files, no edges to files that a lone page does not have."""
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    html = re.sub(r'<a href="(?!#)[^"]*">(.*?)</a>', r"\1", html)
    html = re.sub(
        rf'<p><img src="{IMAGES}/([\w-]+)\.svg"[^>]*></p>', lambda found: f"<figure>{charts[found[1]]}</figure>", html
    )
    scroll = '<div class="tablecard scroll" tabindex="0" role="region" aria-label="Table">'
    return Markup(html.replace("<table>", f"{scroll}<table>").replace("</table>", "</table></div>"))
