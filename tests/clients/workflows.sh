#!/bin/bash
# Workflow engines: snakemake with its executor for Slurm, dask-jobqueue, parsl. Each asks for nodes, CPUs or GPUs, and results come back.
# Installs: snakemake, its executor, dask-jobqueue, parsl and reportseff of PyPI (500 MB).
source "$(dirname "$0")/party.bash" "$@"
venv snakemake==9.27.1 snakemake-executor-plugin-slurm==2.8.0 dask-jobqueue==0.9.0 distributed parsl reportseff==2.10.3
pool_up --nodes 2 --gpus h100:2
export HOME=$work/home PATH=$work/venv/bin:$PATH

cat >Snakefile <<'SNAKE'
localrules: all
rule all:
    input: "sum", "gpu"
rule square:
    output: "square-{n}"
    resources: runtime=5, mem_mb=200
    shell: "echo $(({wildcards.n} * {wildcards.n})) > {output}"
rule gpu:
    output: "gpu"
    resources: runtime=5, mem_mb=200, gpu=1
    shell: "echo $SLURM_JOB_ID:$CUDA_VISIBLE_DEVICES > {output}"
rule sum:
    input: "square-3", "square-4"
    output: "sum"
    resources: runtime=5, mem_mb=200
    shell: "cat {input} | paste -sd+ > {output}"
rule bad:
    output: "bad"
    resources: runtime=5, mem_mb=200
    shell: "exit 7"
SNAKE
snake() {
    timeout 300 snakemake --executor slurm --jobs 4 --default-resources slurm_partition=main slurm_account=default \
        --slurm-init-seconds-before-status-checks 3 --seconds-between-status-checks 2 --latency-wait 5 "$@" >snake.log 2>&1
}
snake || { cat snake.log; fail 'snakemake does not end well'; }
same 'its rules were jobs, of which one had a GPU' '9+16 0' "$(cat sum) $(cut -d: -f2 gpu)"
! snake bad || fail 'a rule that fails did not fail'
same 'a rule that failed is a failed job' 'FAILED' "$(sacct -X -n -P -o State | tail -n 1)"
right 'reportseff reads them' sh -c 'reportseff --no-color --user root | grep -q FAILED'

cat >tasks.py <<'PYTHON'
import os
from dask_jobqueue import SLURMCluster
from dask.distributed import Client
if __name__ == "__main__":
    with SLURMCluster(queue="main", cores=1, processes=1, memory="1GB", walltime="00:10:00", interface="lo",
                      job_extra_directives=["-o /dev/null"]) as cluster, Client(cluster) as client:
        cluster.scale(2)
        client.wait_for_workers(2, timeout=200)
        jobs = set(client.run(lambda: os.environ["SLURM_JOB_ID"]).values())
        print(len(jobs), sum(client.gather(client.map(lambda x: x * x, range(10)))))
PYTHON
same 'two workers of dask were two jobs' '2 285' "$(timeout 300 python tasks.py 2>dask.err || tail -n 20 dask.err)"

cat >apps.py <<'PYTHON'
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider
@parsl.python_app
def square(x):
    import os
    return x * x, os.environ["SLURM_JOB_ID"]
provider = SlurmProvider("main", nodes_per_block=2, init_blocks=1, max_blocks=1, walltime="00:10:00",
                         scheduler_options="#SBATCH --gpus-per-node=1", launcher=SrunLauncher(), exclusive=False)
executor = HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=2, provider=provider)
if __name__ == "__main__":
    with parsl.load(Config(executors=[executor])):
        results = [future.result(timeout=250) for future in [square(x) for x in range(4)]]
    print([square for square, _ in results], len({job for _, job in results}))
PYTHON
same 'a block of parsl was one job on two nodes' '[0, 1, 4, 9] 1' "$(timeout 300 python apps.py 2>parsl.err || tail -n 20 parsl.err)"
same 'no job is left' '' "$(for _ in $(seq 30); do squeue -h >left; [ -s left ] || break; sleep 1; done; cat left)"
pass 'snakemake, dask-jobqueue and parsl ran their work as jobs; reportseff read them'
