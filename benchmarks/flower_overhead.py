"""Seconds per round of Flower's own FedAvg and of PricedFedAvg, on the same app, the same nodes, in the same run.

    python benchmarks/flower_overhead.py                  4 nodes, 10 rounds of each, taking turns
    python benchmarks/flower_overhead.py --pairs 3        fewer

Real processes on loopback, TLS and node keys on. One server app lets the two strategies take turns, so that both meet
the same load. A client imports mppfl only when a message carries terms, so its import counts against PricedFedAvg.
Flower's server looks for replies every three seconds, which would drown the difference; here both strategies look ten
times a second. Nodes still look for messages every three seconds, so single rounds differ by as much.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from record import circumstances, write_record

SERVER = """
import json, time
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from mppfl.files import write_whole
from mppfl.flower import PricedFedAvg, Registry
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy import Protection
from mppfl.training import TrainingConfig

app = ServerApp()


class Eager:  # the same grid, asked for replies ten times a second instead of every three seconds
    def __init__(self, grid):
        self.grid = grid

    def __getattr__(self, name):
        return getattr(self.grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        waiting, received = set(self.grid.push_messages(messages)), []
        while waiting:
            replies = list(self.grid.pull_messages(waiting))
            received += replies
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
            time.sleep(0.1 if waiting else 0.0)
        return received


@app.main()
def main(grid, context):
    grid = Eager(grid)
    state, keys, pairs = Path(context.run_config["state"]), Path(context.run_config["keys"]), PAIRS
    clients = list(json.loads(keys.read_text()))
    budgets = np.full(len(clients), 0.1)
    plan = plan_from_rounds("by hand", [RoundTerms(t + 1, 1.0, 1.0, budgets) for t in range(pairs + 1)])
    protection = Protection(unit="client", noise="gaussian")
    config = TrainingConfig(protection=protection, aggregation="num_examples")
    arrays = ArrayRecord([np.zeros((64, 128), np.float32), np.zeros((128, 10), np.float32)])
    size = len(clients)
    theirs = FedAvg(fraction_evaluate=0.0, min_train_nodes=size, min_available_nodes=size)
    ours = PricedFedAvg(plan, clients, config, folder=state, registry=Registry.read(keys))
    ours.poll_seconds = 0.1
    seconds = {"theirs": [], "ours": []}
    for turn in range(pairs + 1):  # the first turn warms up and is not counted
        order = (("theirs", theirs), ("ours", ours))
        for name, strategy in order if turn % 2 else order[::-1]:
            began = time.monotonic()
            strategy.start(grid, arrays, num_rounds=1)
            if turn:
                seconds[name].append(time.monotonic() - began)
            (state / "turns.json").write_text(json.dumps(seconds))
    write_whole(state / "ended.json", b'{"error": ""}')
"""

CLIENT = """
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

app = ClientApp()


def priced(message, context, call_next):
    if "mppfl-run" not in message.content["config"]:
        return call_next(message, context)
    from mppfl.flower import PrivateUpload

    return PrivateUpload(num_examples=300)(message, context, call_next)


@app.train(mods=[priced])
def train(message, context):
    torch.set_num_threads(1)
    weights = [torch.tensor(array, requires_grad=True) for array in message.content["arrays"].to_numpy_ndarrays()]
    features, labels = load_digits(return_X_y=True)
    rows = np.random.default_rng(context.node_id % 2**32).choice(len(labels), 300, replace=False)
    inputs, labels = torch.tensor(features[rows] / 16, dtype=torch.float32), torch.tensor(labels[rows])
    for _ in range(5):
        for start in range(0, 300, 30):
            batch = slice(start, start + 30)
            logits = torch.tanh(inputs[batch] @ weights[0]) @ weights[1]
            gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels[batch]), weights)
            weights = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(weights, gradients)]
    arrays = ArrayRecord([weight.detach().numpy() for weight in weights])
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 300})}), reply_to=message)
"""


def measured(folder: Path, num_nodes: int, pairs: int) -> dict[str, list[float]]:
    """Seconds of every counted round of both."""
    from mppfl.flower import Federation, Layout, deployed_experiment, make_nodes, write_app

    write_app(folder, num_nodes)
    (folder / "federation" / "server_app.py").write_text(SERVER.replace("PAIRS", str(pairs)))
    (folder / "federation" / "client_app.py").write_text(CLIENT)
    experiment = folder / "experiment.toml"
    experiment.write_text(experiment.read_text().replace("[protection]", '[protection]\nunit = "client"'))
    layout = Layout(folder)
    clients = make_nodes(layout, deployed_experiment(experiment))
    for position in range(num_nodes):
        settings = layout.node(position) / "node.toml"
        settings.write_text(settings.read_text().replace("cap = 1.0", "cap = 100.0"))
    federation = Federation(layout, clients, lambda line: print(line, file=sys.stderr))
    try:
        federation.start()
        federation.watch(lambda facts: None)
        seconds: dict[str, list[float]] = json.loads((layout.server / "turns.json").read_text())
        return seconds
    finally:
        federation.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--no-record", action="store_true", help="only print")
    chosen = parser.parse_args()
    about = circumstances("flwr", "torch", "numpy")
    with tempfile.TemporaryDirectory() as folder:
        seconds = measured(Path(folder) / "app", chosen.nodes, chosen.pairs)
    theirs, ours = seconds["theirs"], seconds["ours"]
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    result = {
        "nodes": chosen.nodes,
        "pairs": chosen.pairs,
        "fedavg_seconds": theirs,
        "priced_seconds": ours,
        "mean_fedavg": statistics.mean(theirs),
        "mean_priced": statistics.mean(ours),
        "ratio_of_means": statistics.mean(ours) / statistics.mean(theirs),
        "median_of_paired_ratios": statistics.median(ratios),
    }
    print(f"FedAvg        {result['mean_fedavg']:.2f} s a round")
    print(f"PricedFedAvg  {result['mean_priced']:.2f} s a round, {100 * (result['ratio_of_means'] - 1):+.1f} %")
    if not chosen.no_record:
        print(write_record("flower-overhead", about | {"result": result}))


if __name__ == "__main__":
    main()
