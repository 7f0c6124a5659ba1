#!/bin/bash
# Debian's MPICH on two nodes by grun --mpi=pmi2, and its own mpiexec inside of a job.
# Installs: mpich, libmpich-dev and gcc of Debian (60 MB).
source "$(dirname "$0")/party.bash" "$@"
debian mpich libmpich-dev gcc
pool_up --nodes 2 --gpus none

cp "$here/ring.c" .
mpicc.mpich ring.c -o ring || fail 'mpicc'
ranks() { timeout 120 "$@" 2>errors | grep ^rank | sort -k2n; }
wanted=$(printf 'rank %s of 4 heard %s sum 10 with 2 here\n' 0 3 1 0 2 1 3 2)

same 'ring and all-reduce over two nodes, outside of a job' "$wanted" "$(ranks grun -N2 --ntasks-per-node=2 --mpi=pmi2 ./ring)"
cat >batch.sh <<SH
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2
export PATH=$PATH
srun --mpi=pmi2 ./ring | sort -k2n >in-batch
SLURM_MPI_TYPE=pmi2 srun -m cyclic ./ring | sort -k2n >cyclic
mpiexec.mpich -n 4 ./ring 2>&1 | sort -k2n >by-mpiexec
SH
timeout 120 sbatch --wait batch.sh >/dev/null || { cat slurm-*.out; fail 'the batch script'; }
same 'the same in a batch script' "$wanted" "$(cat in-batch)"
same 'ranks laid cyclically know their neighbours' "$wanted" "$(cat cyclic)"
if timeout 60 grun -N2 --ntasks-per-node=2 --mpi=pmi2 ./ring die >out 2>errors; then fail 'a step with a dead rank succeeded'; fi
cat errors
right 'a rank that dies is named with its node' grep -q 'task 2 on node2: it has left before MPI_Finalize' errors
if timeout 60 grun -N2 --ntasks-per-node=2 --mpi=pmi2 ./ring quit >out 2>errors; then fail 'an aborted step succeeded'; fi
right 'a rank that aborts is named' grep -q 'task 1 on node1: it called MPI_Abort' errors
if timeout 60 grun -N2 --ntasks-per-node=2 --mpi=pmi2 ./ring spawn >out 2>errors; then fail 'MPI_Comm_spawn succeeded'; fi
# Debian's MPICH over UCX refuses it by itself, without a request; what a request is told is in tests/tests/mpi.rs.
right 'MPI_Comm_spawn is refused' grep -qE 'MPI_Comm_spawn is not offered|Error in spawn call' errors
timeout 120 grun -n16 -N2 -c1 --mpi=pmi2 ./ring >out 2>errors || { cat errors; fail '16 ranks'; }
same '16 ranks add up' 16 "$(grep -c 'sum 136 with 8 here' out)"
echo "mpiexec said: $(head -n 2 by-mpiexec)"
pass 'ring, all-reduce, shared memory, cyclic ranks, a dead rank, an abort, a refused spawn'
