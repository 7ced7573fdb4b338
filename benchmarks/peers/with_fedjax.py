"""The same round by fedjax, with the one line that it needs to run on today's JAX."""

import os

from lap import Stopwatch, Workload, hand_in, task_from_command_line

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def forward(jax, model, weights, inputs):
    """The models of torch_models.py, on weights under the same names."""
    jnp, lax = jax.numpy, jax.lax

    def dense(name, values):
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def block(name, values):
        out = lax.conv_general_dilated(values, weights[f"{name}.weight"], (1, 1), "SAME")
        out = jax.nn.relu(out + weights[f"{name}.bias"][:, None, None])
        return lax.reduce_window(out, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    if model == "cnn_fmnist":
        flat = block("3", block("0", inputs)).reshape(len(inputs), -1)
        return dense("9", jax.nn.relu(dense("7", flat)))
    return dense("3", jax.nn.relu(dense("1", inputs.reshape(len(inputs), -1))))


def main() -> None:
    task = task_from_command_line()
    if task.cores == 1:
        os.environ["XLA_FLAGS"] = ONE_THREAD
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # XLA's pool is as large as the cores it sees
    import jax
    import jax.numpy as jnp

    jax.tree_map = jax.tree_util.tree_map  # gone from JAX, and fedjax 0.0.17 still calls it
    import fedjax
    from fedjax.core.tree_util import tree_mean

    workload, clock = Workload.load(task.workload), Stopwatch()
    clients, examples = workload.num_clients, workload.num_examples
    weights = {name: jnp.asarray(value) for name, value in workload.weights.items()}

    def loss(weights, batch):
        scores = jax.nn.log_softmax(forward(jax, workload.model, weights, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()

    local, server = fedjax.optimizers.sgd(workload.learning_rate), fedjax.optimizers.sgd(1.0)

    def begin(server_weights, _):
        return {"weights": server_weights, "memory": local.init(server_weights)}

    def step(state, batch):
        gradient = jax.grad(loss)(state["weights"], batch)
        memory, moved = local.apply(gradient, state["memory"], state["weights"])
        return {"weights": moved, "memory": memory}

    def end(server_weights, state):
        return jax.tree.map(lambda before, after: before - after, server_weights, state["weights"])

    train = fedjax.for_each_client(begin, step, end)
    data = [
        fedjax.ClientDataset({"x": features, "y": labels.astype("int32")})
        for features, labels in zip(workload.features, workload.labels, strict=True)
    ]
    # Not shuffle_repeat_batch, which tops the last batch up with examples that were seen already.
    how = fedjax.BatchHParams(batch_size=workload.batch_size)
    memory = server.init(weights)
    clock.start()
    for number in range(task.rounds):
        updates = train(weights, [(client, data[client].batch(how), None) for client in range(clients)])
        mean = tree_mean((update, float(examples)) for _, update in updates)
        memory, weights = server.apply(mean, memory, weights)
        jax.block_until_ready(weights)
        clock.lap(last=number == task.rounds - 1)
    note = "1 core" if task.cores == 1 else f"XLA on {task.cores} cores"
    hand_in(task, clock, weights, "fedjax", "jax", "jaxlib", "numpy", note=note)


if __name__ == "__main__":
    main()
