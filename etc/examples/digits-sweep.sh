#!/bin/bash
# Sixteen trainings on scikit-learn's handwritten digits, one GPU for each: a job array. Task k takes line k of the table in
# digits.py, and writes its accuracy to digits-k.json in the directory you submit from.
#
#   pip install scikit-learn        in the environment you submit from: jobs inherit it
#   gsub digits-sweep.sh
#
# The files are digits.py's; `gacct report --by user,gpu-type` shows what they took.
#GSUB --job-name digits
#GSUB --array 0-15
#GSUB --gpus 1
#GSUB --cpus-per-task 1
#GSUB --mem 2G
#GSUB --time 10:00
#GSUB --output digits-%a.out

set -eu
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
exec python3 digits.py "$GSUB_ARRAY_TASK_ID"
