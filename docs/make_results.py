"""Re-makes what README and docs/performance.md show: docs/results/*.json, docs/images/compare.png, and their tables.

python docs/make_results.py            run the comparison, then write the tables (half a minute)
python docs/make_results.py --tables   only write the tables from the files that are there
"""

import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "records"
COMPARISON = ROOT / "docs" / "results" / "compare-paper-like.json"
SHOWN = ("mppfl", "mppfl_exact", "mppfl_noise_aware", "social_agnostic", "random", "dp_fedavg", "sarda_like", "sarda_r")
SEEDS, ROUNDS, CLIENTS = 30, 60, 20


def _edges(row: dict) -> int:
    """Edges of a network in a record; older records call them links."""
    return row["edges"] if "edges" in row else row["links"]


def run_comparison() -> None:
    """30 games of the preset `paper-like` on the paper's random network, both reward conventions."""
    import mppfl
    from mppfl.cli import comparison_figure
    from mppfl.game import summarise

    games = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        graph = mppfl.random_graph("erdos_renyi", CLIENTS, rng=rng)
        games.append(mppfl.make_game(graph, mppfl.draw_clients("paper-like", CLIENTS, rng)))
    summaries = summarise(mppfl.compare(games, num_rounds=ROUNDS, fixed_budget="mean"))
    COMPARISON.parent.mkdir(exist_ok=True)
    content = {"seeds": SEEDS, "rounds": ROUNDS, "clients": CLIENTS, "summary": [asdict(s) for s in summaries]}
    COMPARISON.write_text(json.dumps(content, indent=1) + "\n")
    comparison_figure(summaries, ROOT / "docs" / "images" / "compare.png", ROUNDS)


def comparison_table() -> str:
    content = json.loads(COMPARISON.read_text())
    cells = {(s["mechanism"], s["convention"]): s for s in content["summary"]}
    lines = [
        "| | server cost, common reward | client welfare | server cost, own reward | welfare | negative utility |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in SHOWN:
        common, own = cells.get((name, "common")), cells[name, "own"]
        same = "as mppfl"
        lines.append(
            f"| {name} | {common['server_cost']:,.0f} | {common['welfare']:,.0f} "
            if common
            else f"| {name} | {same} | {same} "
        )
        lines[-1] += f"| {own['server_cost']:,.0f} | {own['welfare']:,.0f} | {100 * own['negative_utility']:.0f} % |"
    return "\n".join(lines)


def speed_table() -> str:
    lines = [
        "| clients | edges | closed walks | equilibria | plain loop | faster, all in | peak memory |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in newest_record("equilibrium-growth")["rows"] + newest_record("equilibrium")["rows"][-1:]:
        ours, plain = (float(np.median([r["seconds"] for r in row[side]])) for side in ("ours", "plain"))
        walks = float(np.median([r["diagonal_seconds"] for r in row["ours"]]))
        hops, error = row["ours"][0]["exact_hops"], row["ours"][0]["diagonal_error_rms"]
        how = "exact" if error == 0 else f"exact to {hops} hops, ±{error:.0e} beyond"
        memory = max(r["peak_mb"] for r in row["ours"])
        lines.append(
            f"| {row['clients']:,} | {_edges(row):,} | {walks:.2f} s ({how}) | {ours - walks:.2f} s | {plain:.2f} s "
            f"| {row['times_faster']:.1f}× | {memory:,.0f} MB |"
        )
    return "\n".join(lines)


def newest_record(name: str) -> dict:
    return records_of(name)[-1]


def records_of(name: str) -> list[dict]:
    """Every record of that name, the oldest first."""
    dated = "[0-9]" * 4 + "-[0-9][0-9]-[0-9][0-9]"
    return [json.loads(path.read_text()) for path in sorted(RECORDS.glob(f"{dated}-{name}.json"))]


def real_table() -> str:
    lines = [
        "| network | clients | edges | diagonal | 100 rounds, αS .2 | 100 rounds, αS .98 | largest client regret |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in newest_record("real-graphs")["rows"]:
        first, last = row["solved"][0], row["solved"][-1]
        regret = max(s["client_regret"] for s in row["solved"])
        lines.append(
            f"| {row['name']} | {row['clients']:,} | {_edges(row):,} | {row['diagonal_seconds']:.1f} s "
            f"| {first['seconds']:.1f} s | {last['seconds']:.1f} s | {regret:.0e} |"
        )
    return "\n".join(lines)


def learning_table() -> str:
    lines = ["| | model | rounds | weights | accuracy |", "|---|---|--:|---|--:|"]
    titles = {"fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}
    for case, title in titles.items():
        record = newest_record(f"accuracy-{case}")
        for name, accuracy in record["final_accuracy"].items():
            mechanism, weights = name.removesuffix(" weights").split(", ")
            rounds = len(record["curves"][name])
            lines.append(
                f"| {title}, {mechanism} | {record['model']} | {rounds} | {weights} | {100 * accuracy:.1f} % |"
            )
    return "\n".join(lines)


PRIVATE_ROWS = {  # of the record: what it is called here
    "record, secure_sum": "each record, in the sum of 20 clients",
    "record, local": "each record, with noise of each of 20 clients' own",
    "client, secure_sum, zero_out": "all data of a client, in the sum of 1,000, against sending nothing",
    "client, secure_sum, sampled": "the same, a secret tenth of them in every round",
    "client, secure_sum": "all data of a client, in the sum of 1,000, against any other data",
    "client, local": "the same, with noise of each client's own",
}


def private_table() -> str:
    rows = newest_record("private-accuracy")["results"]
    accuracy = {(row["title"], row["dp_epsilon"]): row["mean_accuracy"] for row in rows}
    asked = sorted({dp_epsilon for _, dp_epsilon in accuracy})
    lines = [f"| what is hidden; ε at δ = 1e-5 | {' | '.join(f'{dp_epsilon:g}' for dp_epsilon in asked)} |"]
    lines.append("|---|" + "--:|" * len(asked))
    for title, words in PRIVATE_ROWS.items():
        values = [accuracy.get((title, dp_epsilon)) for dp_epsilon in asked]
        lines.append(f"| {words} | {' | '.join('' if value is None else f'{100 * value:.1f} %' for value in values)} |")
    return "\n".join(lines)


def engine_table() -> str:
    lines = [
        "| model | one round of 2,500 examples each | clients | s | examples/s | TFLOP/s | × plain loop | GiB |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in newest_record("engine-gpu")["rows"]:
        lines.append(
            f"| {row['model']} | {row['case']} | {row['clients']} | {np.median(row['seconds']):.3f} "
            f"| {row['examples_per_second']:,.0f} | {row['tflop_per_second']:.0f} | {row['times_plain_loop']:.1f} "
            f"| {row['peak_gib']:.1f} |"
        )
    one, five, clipped = (
        next(row for row in newest_record("engine-gpu")["rows"] if (row["model"], row["case"]) == ("cnn_cifar", case))
        for case in ("bf16", "bf16, five mechanisms", "bf16, every example clipped")
    )
    together = five["examples_per_second"] / one["examples_per_second"]
    longer = one["examples_per_second"] / clipped["examples_per_second"]
    told = f"Five mechanisms side by side: {together:.2f} times the examples a second of one. "
    return "\n".join([*lines, "", f"{told}Clipping every example: {longer:.1f} times the time."])


def gpu_equilibrium_table() -> str:
    lines = [
        "| clients | edges | equations by | making the game | 100 rounds, outcome and verification | residual |",
        "|--:|--:|---|--:|--:|--:|",
    ]
    for row in newest_record("equilibrium-gpu")["rows"]:
        lines.append(
            f"| {row['clients']:,} | {row['edges']:,} | {'NumPy' if row['device'] == 'numpy' else 'the GPU'} "
            f"| {row['making_seconds']:.2f} s | {row['solving_seconds']:.2f} s | {row['residual']:.0e} |"
        )
    return "\n".join(lines)


def gpu_peers_table() -> str:
    record = newest_record("peers-gpu")
    lines = ["| peer | its seconds a round | mppfl's just before | times faster |", "|---|--:|--:|--:|"]
    for name in dict.fromkeys(row["peer"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["peer"] == name]
        theirs, ours = (float(np.median([row[side]["seconds"] for row in rows])) for side in ("theirs", "mppfl"))
        each = ", ".join(f"{row['times_faster']:.0f}" for row in rows)
        lines.append(f"| {name} | {theirs:.2f} | {ours:.3f} | {each} |")
    return "\n".join(lines)


def gpu_peers_loss() -> str:
    """Whether all of them trained the same."""
    record = newest_record("peers-gpu")
    ours = max(found["loss_apart"] for found in record["precisions"].values())
    theirs = max(row["theirs"]["loss_apart"] for row in record["rows"])
    return (
        "All of them train the same: what they gain in loss differs from what a loop in float32 gains by "
        f"{100 * ours:.1f} % at most for mppfl, in any precision, and by {100 * theirs:.1f} % for the others."
    )


def loops_line() -> str:
    """How much the reference itself differs between the two records of it."""
    records = [newest_record(name)["rows"] for name in ("engine-gpu-earlier", "engine-gpu")]
    told = []
    for model in ("cnn_cifar", "vgg16"):
        loops = [row for rows in records for row in rows if (row["model"], row["case"]) == (model, "plain loop")]
        first, second = (statistics.median(row["seconds"]) for row in loops)
        told.append(f"{max(first, second) / min(first, second) - 1:.0%} ({model} {first:.3g} and {second:.3g} s)")
    return f"Two runs of that loop on record differ by {' and by '.join(told)}.".replace("%", " %")


def kernels_table() -> str:
    """What each kernel takes of a step of VGG-16, all its layers together, beside PyTorch's own lane after lane."""
    lines = ["| kernel | ms of a step | TFLOP/s | TB/s | × PyTorch's own |", "|---|--:|--:|--:|--:|"]
    rows = newest_record("kernels-gpu")["rows"]
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        several = [row for row in rows if row["kernel"] == kernel]
        weights = np.array([row["times_in_a_step"] * row["ms"] for row in several])
        told = []
        for what, form in (("tflop_per_second", ".0f"), ("tb_per_second", ".1f")):
            speeds = [row[what] for row in several]
            told.append("" if None in speeds else f"{weights @ np.array(speeds) / weights.sum():{form}}")
        theirs = [row["pytorch_ms"] for row in several]
        counts = np.array([row["times_in_a_step"] for row in several])
        told.append("" if None in theirs else f"{counts @ np.array(theirs) / weights.sum():.1f}")
        lines.append(f"| {kernel} | {weights.sum():.2f} | {' | '.join(told)} |")
    return "\n".join(lines)


def precision_table() -> str:
    lines = [
        "| computed in | accuracy after 10 rounds, each seed | furthest from the loop, same seed |",
        "|---|---|--:|",
    ]
    rows = newest_record("precision-accuracy")["rows"]
    loop = rows[0]["accuracies"]
    for row in rows:
        each = ", ".join(f"{100 * accuracy:.2f}" for accuracy in row["accuracies"])
        apart = max(abs(ours - plain) for ours, plain in zip(row["accuracies"], loop, strict=False))
        lines.append(f"| {row['way']} | {each} | {f'{100 * apart:.2f} points' if row is not rows[0] else ''} |")
    return "\n".join(lines)


def race_table() -> str:
    """Every race on record: processors differ in what they do best."""
    parts = []
    for record in reversed(records_of("peers")):
        processor = record["machine"]["processor"].replace("(R)", "").replace("Processor ", "")
        load = f"load {record['machine']['load_before']:.1f} of others"
        parts.append(f"{processor}, {record['cores_used']} cores, {load}, commit {record['commit'][:7]}:\n")
        parts.append("| round | who | CPU s | wall s | CPU, × mppfl's | wall, × mppfl's |\n|---|---|--:|--:|--:|--:|")
        for race in record["races"]:
            for row in race["rows"]:
                if row.get("failure"):
                    parts.append(f"| {race['workload']} | {row['name']} | {row['failure']} | | | |")
                    continue
                ratios = [row.get(f"{what}_ratios") for what in ("cpu", "wall")]
                told = ["" if found is None else f"{np.median(found):.2f}" for found in ratios]
                parts.append(
                    f"| {race['workload']} | {row['name']} | {row['cpu_seconds']:.3f} | {row['wall_seconds']:.3f} "
                    f"| {told[0]} | {told[1]} |"
                )
        parts.append("")
    return "\n".join(parts).rstrip()


def growth_table() -> str:
    lines = [
        "| on | with | from | to | time grows like | its larger half | memory grows like | its larger half |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for device, title in (("cpu", "2 cores"), ("cuda", "H200")):
        for axis, found in newest_record(f"growth-{device}")["axes"].items():
            if device == "cuda" and axis == "links":
                continue  # of code that is gone: equilibria on a GPU have a record of their own
            ends = [f"{found['rows'][at]['size']:,}" for at in (0, -1)]
            told = []
            for what in ("seconds", "peak_gib"):
                told += [f"n^{found[what]['exponent']:.2f} ± {found[what]['standard_error']:.2f}"]
                told += [f"n^{found[what]['larger_half']:.2f}"]
            lines.append(f"| {title} | {axis} | {' | '.join(ends)} | {' | '.join(told)} |")
    return "\n".join(lines)


def cohort_table() -> str:
    rows = newest_record("cohort-memory")["rows"]
    kinds = {"secure_sum": "sum", "local": "local noise"}
    lines = [
        "| clients | " + " | ".join(f"peak memory, {kind} | CPU a client, {kind}" for kind in kinds.values()) + " |"
    ]
    lines.append("|--:|" + "--:|--:|" * len(kinds))
    for clients in dict.fromkeys(row["clients"] for row in rows):
        of = {row["protection"]: row for row in rows if row["clients"] == clients}
        cells = [f"{of[kind]['peak_bytes'] / 1e9:.2f} GB | {of[kind]['cpu_ms_by_client']:.2f} ms" for kind in kinds]
        lines.append(f"| {clients:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paper_table() -> str:
    sys.path.insert(0, str(ROOT))  # reproduction/ stands beside the package
    from reproduction.tables import readme_table

    return readme_table(ROOT / "reproduction" / "results").rstrip()


TABLES = {
    "paper": paper_table,
    "race": race_table,
    "gpu peers": gpu_peers_table,
    "gpu peers loss": gpu_peers_loss,
    "loops": loops_line,
    "kernels": kernels_table,
    "precision": precision_table,
    "growth": growth_table,
    "cohorts": cohort_table,
    "engine": engine_table,
    "gpu equilibrium": gpu_equilibrium_table,
    "comparison": comparison_table,
    "speed": speed_table,
    "real": real_table,
    "learning": learning_table,
    "private": private_table,
}
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")


def with_tables(text: str) -> str:
    """The page with every marked table in it made anew from its file."""
    for name, table in TABLES.items():
        if f"<!-- {name} -->" not in text:
            continue
        before, rest = text.split(f"<!-- {name} -->\n")
        _, after = rest.split(f"<!-- end {name} -->")
        text = f"{before}<!-- {name} -->\n{table()}\n<!-- end {name} -->{after}"
    return text


if __name__ == "__main__":
    if "--tables" not in sys.argv:
        run_comparison()
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
