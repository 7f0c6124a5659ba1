"""Jobs of a gpupool cluster from Python: submit, wait, results.

    import gpupool

    job = gpupool.submit("train.sh", gpus="h100:2", time="4:00:00")
    print(job.wait().state)

    with gpupool.Executor(gpus=1, time="1:00:00") as pool:
        print(list(pool.map(evaluate, models)))

All goes through gpupool's commands, which must be in PATH: what they allow, refuse and advise is what happens here."""

from ._command import Option
from ._error import GpupoolError, JobError
from ._events import events
from ._executor import Executor, TaskFuture
from ._job import Job, JobInfo, as_completed, cancel, dry_run, jobs, nodes, runs, submit, submit_array, wait

__all__ = [
    "Executor",
    "GpupoolError",
    "Job",
    "JobError",
    "JobInfo",
    "Option",
    "TaskFuture",
    "as_completed",
    "cancel",
    "dry_run",
    "events",
    "jobs",
    "nodes",
    "runs",
    "submit",
    "submit_array",
    "wait",
]
