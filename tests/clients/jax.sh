#!/bin/bash
# JAX over two nodes: jax.distributed.initialize() finds ranks and the coordinator in the step's environment.
# Installs: jax for CPUs from PyPI (180 MB) into a directory of its own.
source "$(dirname "$0")/party.bash" "$@"
venv 'jax>=0.4.30,<1'
pool_up --nodes 2 --gpus none

cat >sum.py <<'PY'
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
jax.distributed.initialize()
sums = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1.0]))
print("rank", jax.process_index(), "of", jax.process_count(), "sum", float(sums.sum()), flush=True)
PY
export JAX_PLATFORMS=cpu
ranks() { timeout 300 "$@" "$work/venv/bin/python" sum.py | grep ^rank | sort; }
wanted=$(printf 'rank %s of 4 sum 10.0\n' 0 1 2 3)
same 'four ranks on two nodes add up their numbers' "$wanted" "$(ranks grun -N2 --ntasks-per-node=2 --rendezvous jax)"
ranks srun -N2 --ntasks-per-node=2 --rendezvous jax >first &
ranks srun -N2 --ntasks-per-node=2 --rendezvous jax >second
wait
same 'two jobs at once on the same nodes do not meet' "$wanted$wanted" "$(cat first)$(cat second)"
pass 'jax.distributed.initialize() on two nodes, two jobs side by side'
