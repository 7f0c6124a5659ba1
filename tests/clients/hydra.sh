#!/bin/bash
# submitit, and Hydra's launcher by it: functions and a sweep as arrays of jobs, with results, a failure and a requeue by signal.
# Installs: hydra-submitit-launcher of PyPI.
source "$(dirname "$0")/party.bash" "$@"
venv hydra-core==1.3.2 hydra-submitit-launcher==1.2.0 submitit==1.5.3
pool_up --nodes 2 --gpus h100:2
export HOME=$work/home
python=$work/venv/bin/python

cat >app.py <<'PYTHON'
import os, hydra
@hydra.main(version_base="1.3", config_path=None)
def main(config):
    with open(f"{os.environ['HOME']}/sweep-{config.x}", "w") as out:
        print(config.x, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["SLURM_ARRAY_TASK_COUNT"], file=out)
main()
PYTHON
"$python" app.py -m hydra/launcher=submitit_slurm hydra.launcher.partition=main hydra.launcher.timeout_min=5 \
    hydra.launcher.gpus_per_node=1 hydra.launcher.mem_gb=1 hydra.launcher.cpus_per_task=1 +x=1,2,3
same 'each point of a sweep was a task of one array with a GPU' '1 3;2 3;3 3' "$(cat sweep-? | cut -d' ' -f1,3 | paste -sd';')"

cat >functions.py <<'PYTHON'
import os, submitit, time
class Checkpointed:
    def __init__(self): self.turns = 0
    def __call__(self):
        self.turns += 1
        if self.turns == 1: time.sleep(600)
        return self.turns
    def checkpoint(self, *args): return submitit.helpers.DelayedSubmission(self)
executor = submitit.AutoExecutor(folder="log", cluster="slurm")
executor.update_parameters(slurm_partition="main", timeout_min=5, gpus_per_node=1, mem_gb=1, tasks_per_node=2, nodes=1)
print(executor.submit(lambda: (submitit.JobEnvironment().global_rank, os.environ["CUDA_VISIBLE_DEVICES"])).results())
executor.update_parameters(tasks_per_node=1)
print([job.result() for job in executor.map_array(lambda x: x * x, range(5))])
failing = executor.submit(lambda: 1 / 0)
print(type(failing.exception()).__name__)
job = executor.submit(Checkpointed())
while job.state != "RUNNING" or "Job has started" not in (job.stderr() or "") + (job.stdout() or "") and time.sleep(3): time.sleep(0.5)
job._interrupt(timeout=False)
print(job.result(), "turns")
PYTHON
timeout 300 "$python" functions.py >said || { cat said; tail -n 20 log/*.err; fail 'submitit has failed'; }
same 'results, ranks, errors and turns come back' "[(0, '0'), (1, '0')]
[0, 1, 4, 9, 16]
FailedJobError
2 turns" "$(cat said)"
pass 'a sweep of Hydra, and functions by submitit: an array, two tasks, a failure, a requeue from a checkpoint'
