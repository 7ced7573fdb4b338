"""Your own model and data: any nn.Module, any arrays; here two spirals, spread unevenly over five clients."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import mppfl

rng = np.random.default_rng(0)


def spirals(count: int) -> tuple[np.ndarray, np.ndarray]:
    turn, arm = rng.uniform(0.3, 3.0, count) * np.pi, rng.integers(0, 2, count)
    points = np.stack([np.cos(turn + np.pi * arm), np.sin(turn + np.pi * arm)], 1) * turn[:, None] / 3
    return (points + rng.normal(0, 0.1, points.shape)).astype(np.float32), arm


class Spirals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 32), nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(torch.cat([x, x.square()], 1))))


features, labels = spirals(2000)
members = np.split(rng.permutation(2000), [100, 300, 700, 1200])  # 100, 200, 400, 500 and 800 examples
data = mppfl.client_data(features, labels, members, *spirals(500), num_classes=2, name="spirals")

game = mppfl.GameSpec(preset="benign", num_clients=5).build()
solution = mppfl.solve(game, num_rounds=20)
torch.manual_seed(1)
config = mppfl.TrainingConfig(
    learning_rate=2.0, server_optimizer="momentum", protection=mppfl.Protection(trust="secure_sum", total_epsilon=3.0)
)
records = []
with mppfl.PrivacyLedger.in_memory() as ledger:
    for record in mppfl.train_rounds(Spirals(), data, solution.plan, config, ledger=ledger):
        records.append(record)
        if record.round_index % 5 == 0:
            print(f"round {record.round_index:>2}  accuracy {record.accuracy:.3f}  engine {record.engine}")
    run = mppfl.run_from_records(records, solution, data, config, ledger, name="spirals", model="Spirals")

folder = run.save(Path(tempfile.mkdtemp()) / "spirals")  # mppfl.load_run(folder) reads it back
mppfl.write_report([run], folder / "report.html")
print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
