#!/bin/bash
# One job on two nodes, one rank and one GPU on each. Both nodes begin together or not at all. The script runs on the first node;
# grun starts the ranks, each of which knows its number, how many there are, and where rank 0 listens.
#
#   gsub two-nodes.sh
#
# PyTorch's torchrun and others want the same three: MASTER_ADDR, MASTER_PORT and the rank (SLURM_PROCID).
#GSUB --job-name two-nodes
#GSUB --nodes 2
#GSUB --ntasks-per-node 1
#GSUB --gpus-per-node 1
#GSUB --mem 1G
#GSUB --time 5:00
#GSUB --output two-nodes.out

set -eu
# The script's own node is the first of the list, where rank 0 runs.
export MASTER_ADDR=$SLURMD_NODENAME
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
exec grun python3 ranks.py
