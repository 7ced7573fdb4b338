"""A guarantee that holds: every record protected, noise of the operating system, a durable ledger with a cap."""

import tempfile
from pathlib import Path

import numpy as np

import mppfl

rng = np.random.default_rng(0)
data = mppfl.split_dataset(mppfl.load_dataset("digits"), "iid", 10, rng=rng)
game = mppfl.GameSpec(preset="benign", num_clients=10).build()
plan = mppfl.solve(game, num_rounds=20).plan

config = mppfl.TrainingConfig(
    learning_rate=1.0,
    num_steps=2,
    server_optimizer="momentum",
    protection=mppfl.Protection(
        release="steps",  # every example's gradient is clipped, every step has noise: ρ-zCDP per record
        clip_norm=0.3,
        budget_unit=0.03,  # ρ of the training = 0.03 · ρ of the game
        noise="gaussian",
    ),
)
with tempfile.TemporaryDirectory() as folder, mppfl.PrivacyLedger.open(Path(folder) / "ledger.sqlite") as ledger:
    ledger.set_cap(data.names, 0.25, "record")
    for record in mppfl.train_rounds(
        mppfl.make_model("softmax", data.input_shape, 10), data, plan, config, ledger=ledger, run="digits"
    ):
        if record.refused:
            print(f"round {record.round_index}: client {record.refused[0]} would pass its cap and opts out")
    worst = ledger.get_epsilon(list(data.names), 1e-5).max()
    print(f"accuracy {record.accuracy:.3f} after {record.round_index} rounds; nobody above ε = {worst:.2f} at δ = 1e-5")
    print(f"{config.protection.name}: {config.protection.guarantee}")
