#!/bin/bash
# PyTorch with gloo over two nodes: ranks of one grun, torchrun, and the calls of Accelerate's and DeepSpeed's documents.
# Installs: python3-torch of Debian (150 MB).
source "$(dirname "$0")/party.bash" "$@"
debian python3-torch
pool_up --nodes 2 --gpus none

cat >sum.py <<'PY'
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(number)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"], "sum", number.item(), flush=True)
dist.destroy_process_group()
PY
python=/usr/bin/python3
# This torch does not know under Python 3.11 what no redirection is.
launcher='-m torch.distributed.run --redirects 1 --tee 1 --log_dir logs --nproc_per_node 2'
# Both nodes are this machine, whose name gloo would look up.
export GLOO_SOCKET_IFNAME=lo
wanted=$(printf 'rank %s of 4 local %s sum 10.0\n' 0 0 1 1 2 0 3 1)
ranks() { timeout 300 "$@" 2>errors | sed 's/^.default..:rank/rank/' | grep ^rank | sort || cat errors; }

same 'env:// of init_process_group in the tasks of one grun' "$wanted" "$(ranks grun -N2 --ntasks-per-node=2 $python sum.py)"

torchrun="$python $launcher --nnodes \$SLURM_NNODES"
same 'torchrun with the first node as master' "$wanted" \
    "$(ranks grun -N2 --ntasks-per-node=1 sh -c "$torchrun --node_rank \$NODE_RANK --master_addr \$MASTER_ADDR --master_port \$MASTER_PORT sum.py")"

# As scripts have it: the batch script's own shell puts address and port into the line.
cat >elastic.sh <<SH
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 -o elastic.out
export PATH=$PATH
srun $python $launcher --nnodes \$SLURM_NNODES --rdzv_id \$SLURM_JOB_ID --rdzv_backend c10d --rdzv_endpoint \$MASTER_ADDR:\$MASTER_PORT sum.py
SH
timeout 300 sbatch --wait elastic.sh >/dev/null || { cat elastic.out; fail 'torchrun with the c10d rendezvous in a batch script'; }
same 'torchrun with the c10d rendezvous in a batch script' '4 of sum 10.0' "$(grep -c 'of 4 local . sum 10.0' elastic.out) of sum 10.0"

# examples/slurm/submit_multinode.sh of Accelerate: the head node from scontrol, its own port, arithmetic of its own.
cat >accelerate.sh <<SH
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 -o accelerate.out
export PATH=$PATH
head_node_ip=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -n 1)
[ "\$head_node_ip" = node1 ] || echo "head node: \$head_node_ip"
export WORLD_SIZE=\$((SLURM_NNODES * 2)) MASTER_PORT=29555
srun bash -c '[ \$WORLD_SIZE = 4 ] && [ \$MASTER_PORT = 29555 ] && $python $launcher --nnodes \$SLURM_NNODES --node_rank \$SLURM_PROCID --master_addr \$MASTER_ADDR --master_port \$MASTER_PORT sum.py'
SH
timeout 300 sbatch --wait accelerate.sh >/dev/null || { cat accelerate.out; fail "Accelerate's script, with a port of its own"; }
same "Accelerate's script, with a port of its own" '4 of sum 10.0' "$(grep -c 'of 4 local . sum 10.0' accelerate.out) of sum 10.0"
# The line of DeepSpeed's SlurmRunner, inside of an allocation as it is used; deepspeed.init_distributed reads the same five variables.
cat >deepspeed.sh <<SH
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 -o deepspeed.out
export PATH=$PATH
command -v sinfo >/dev/null || exit 1
srun -n 4 --comment trial --nodelist node1,node2 --nodes 2 --export=ALL,PYTHONPATH=/x $python -u sum.py
SH
timeout 300 sbatch --wait deepspeed.sh >/dev/null || { cat deepspeed.out; fail "the call of DeepSpeed's SlurmRunner"; }
same "the call of DeepSpeed's SlurmRunner" '4 of sum 10.0' "$(grep -c 'of 4 local . sum 10.0' deepspeed.out) of sum 10.0"
pass 'gloo on two nodes: grun, torchrun, torchrun with c10d, a script with a port of its own'
