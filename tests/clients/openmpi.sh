#!/bin/bash
# Debian's Open MPI on two nodes by grun --mpi=pmix, and its own mpirun inside of a job.
# Installs: openmpi-bin, libopenmpi-dev, libpmix2 and gcc of Debian (100 MB).
source "$(dirname "$0")/party.bash" "$@"
debian openmpi-bin libopenmpi-dev libpmix2 gcc
pool_up --nodes 2 --gpus none

cp "$here/ring.c" .
mpicc.openmpi ring.c -o ring || fail 'mpicc'
# Both nodes are this machine: by its name alone their files of shared memory would be the same.
mkdir -p "$work/shm/node1" "$work/shm/node2"
cat >rank.sh <<RANK
#!/bin/sh
export OMPI_MCA_btl_vader_backing_directory=$work/shm/\$SLURMD_NODENAME
exec ./ring "\$@"
RANK
chmod 755 rank.sh
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_btl=self,vader,tcp OMPI_MCA_pml=ob1
ranks() { timeout 120 "$@" 2>errors | grep ^rank | sort -k2n || cat errors; }
wanted=$(printf 'rank %s of 4 heard %s sum 10 with 2 here\n' 0 3 1 0 2 1 3 2)

right 'pmix is in the list' grep -q pmix <(grun --mpi=list)
same 'ring and all-reduce over two nodes, outside of a job' "$wanted" "$(ranks grun --mpi=pmix -N2 -n4 ./rank.sh)"
same 'with data only as it is asked for' "$wanted" \
    "$(OMPI_MCA_pmix_base_collect_data=0 OMPI_MCA_pmix_base_async_modex=1 ranks grun --mpi=pmix -N2 -n4 ./rank.sh)"
# Ordinary users have servers of their own.
reader=gpmpi$$
useradd --home-dir "$work/home" "$reader" || not_run 'an ordinary user cannot be made'
undo() { userdel "$reader"; }
mkdir -m 777 "$work/shm/user/" "$work/shm/user/node1" "$work/shm/user/node2"
sed "s#$work/shm/#&user/#" rank.sh >user.sh
chmod 755 user.sh ring
same 'for an ordinary user' "$wanted" "$(ranks runuser -u "$reader" -- env "PATH=$work/bin:/usr/bin:/bin" grun --mpi=pmix -N2 -n4 ./user.sh)"
same 'over components of a job of unlike parts' "$(printf 'rank %s of 4 heard %s sum 10 with %s here\n' 0 3 1 1 0 3 2 1 3 3 2 3)" \
    "$(ranks grun --mpi=pmix -w node1 -n1 ./rank.sh : -w node2 -n3 ./rank.sh)"
cat >batch.sh <<SH2
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2
export PATH=$PATH
srun --mpi=pmix ./rank.sh | sort -k2n >in-batch
SLURM_MPI_TYPE=pmix srun -m cyclic ./rank.sh | sort -k2n >cyclic
SH2
timeout 120 sbatch --wait batch.sh >/dev/null || { cat slurm-*.out; fail 'the batch script'; }
same 'the same in a batch script' "$wanted" "$(cat in-batch)"
same 'ranks laid cyclically know their neighbours' "$wanted" "$(cat cyclic)"
ends() { if timeout 60 grun --mpi=pmix -N2 -n4 ./rank.sh "$1" >out 2>errors; then fail "a step with \"$1\" succeeded"; fi; cat errors; }
ends die
right 'a rank that dies is named with its node' grep -q 'task 2 on node2: it has left before MPI_Finalize' errors
ends quit
right 'a rank that aborts is named with its node' grep -q 'task 1 on node1: it called MPI_Abort, exit code 9' errors
ends spawn
right 'MPI_Comm_spawn is refused' grep -q 'MPI_Comm_spawn is not offered' errors
timeout 120 grun -n16 -N2 -c1 --mpi=pmix ./rank.sh >out 2>errors || { cat errors; fail '16 ranks'; }
same '16 ranks add up' 16 "$(grep -c 'sum 136 with 8 here' out)"
same 'no server and no file of one is left' '' "$(pgrep -f 'gstepd --pmix' || find "$pool" -name 'pmix-*')"
pass 'ring, all-reduce, shared memory, direct modex, cyclic ranks, a dead rank, an abort, a refused spawn'
