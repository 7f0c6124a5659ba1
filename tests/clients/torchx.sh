#!/bin/bash
# TorchX: an application of two replicas with a GPU each, which it submits as components of one job; its states and logs.
# Installs: torchx of PyPI.
source "$(dirname "$0")/party.bash" "$@"
venv torchx==0.7.0
pool_up --nodes 2 --gpus h100:2
export HOME=$work/home
torchx() { "$work/venv/bin/torchx" "$@" 2>>torchx.err; }
# Both end and differ: wait for one, refuse the other.
reaches() {
    local seen
    for _ in $(seq 60); do
        seen=$(torchx status "$1" | sed -n 's/^ *State: //p' | head -n 1)
        [ "$seen" != "$2" ] || return 0
        [[ $seen != SUCCEEDED && $seen != FAILED ]] || break
        sleep 1
    done
    echo "$1 is $seen, not $2"
    return 1
}
run() { torchx run -s slurm -cfg "partition=main,time=5,job_dir=$work/home/$1" utils.sh --num_replicas 2 --gpu 1 --memMB 200 "${@:2}"; }

good=$(run good env)
right 'both replicas end well' reaches "$good" SUCCEEDED
same 'each replica saw one GPU' '0 0' "$(cat good/*-sh-?.out | sed -n 's/^CUDA_VISIBLE_DEVICES=//p' | sort | paste -sd' ')"
same 'they are ranks of one job' '0 1' "$(cat good/*-sh-?.out | sed -n 's/^SLURM_PROCID=//p' | sort | paste -sd' ')"
bad=$(run bad sh -c 'false')
right 'replicas that fail are seen as failed' reaches "$bad" FAILED
slow=$(run slow sleep 600)
right 'replicas that go on are seen as running' reaches "$slow" RUNNING
torchx cancel "$slow"
same 'cancel ends the job' '' "$(for _ in $(seq 30); do squeue -h >left; [ -s left ] || break; sleep 1; done; cat left)"
pass 'TorchX 0.7.0 ran, failed and cancelled an application of two replicas with GPUs'
