"""JAX with Orbax: `rankmend run --checkpoint-dir ckpt orbax_loop.py --restore_step {checkpoint_step}`."""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import rankmend

parser = argparse.ArgumentParser()
parser.add_argument("--restore_step", type=int)
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--folder", type=Path, default=Path("ckpt"))
options = parser.parse_args()


@jax.jit
def train(state, step):
    x = jax.random.normal(jax.random.PRNGKey(step), (8, 32))
    gradient = jax.grad(lambda weights: ((x @ weights - x.sum(1)) ** 2).mean())(state["weights"])
    momentum = 0.9 * state["momentum"] + gradient
    return {"weights": state["weights"] - 0.01 * momentum, "momentum": momentum}


keep = ocp.CheckpointManagerOptions(max_to_keep=2)
state = {"weights": jnp.zeros(32), "momentum": jnp.zeros(32)}
with ocp.CheckpointManager(options.folder.absolute(), options=keep) as manager:
    start = 0
    if options.restore_step:
        start = options.restore_step
        state = manager.restore(start, args=ocp.args.StandardRestore(state))
    for step in range(start + 1, options.steps + 1):
        state = train(state, step)
        rankmend.step(step)
        if step % 10 == 0:
            manager.save(step, args=ocp.args.StandardSave(state))
print("final", state["weights"].sum().item(), flush=True)
