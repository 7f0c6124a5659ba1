#!/bin/bash
# All eight GPUs of two nodes at once. While anything else runs there it waits, and keeps its place:
#
#   gsub whole-pool.sh
#   gq --why JOB        what stands against its start, with numbers
#
#GSUB --job-name whole-pool
#GSUB --nodes 2
#GSUB --gpus-per-node 8
#GSUB --mem 4G
#GSUB --time 5:00
#GSUB --output whole-pool.out

set -eu
count=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
echo "$SLURM_JOB_NUM_NODES nodes ($SLURM_JOB_NODELIST), $count GPUs on $SLURMD_NODENAME"
