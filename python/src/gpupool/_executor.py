"""Python functions as jobs: ``concurrent.futures.Executor`` over a cluster."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional, TypeVar, Union

from . import _job
from ._command import Option
from ._error import GpupoolError, JobError
from ._task import ResultReader, dumps, main_of_here, write_whole

T = TypeVar("T")

#: Seconds that the file of a job may take to come through a shared file system, where it ended well, and where a call raised.
_FILE_PATIENCE, _RAISED_PATIENCE = 30.0, 10.0
#: Results that are read at once.
_READERS = 8
_FILE_PAUSE = 0.2


class TaskFuture(concurrent.futures.Future[T]):
    """A call that is a job. Cancelling it cancels the job, also where that runs."""

    #: The job, once it is submitted.
    job: _job.Job

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        try:
            self.job.cancel()
        except GpupoolError:
            pass
        return True


class Executor(concurrent.futures.Executor):
    """Runs each call in a job of its own; those of one ``map`` are tasks of one array.

    Options are those of gsub(1), as for ``submit``. ``folder`` must be on a file system that nodes share with this machine: calls
    and results go through it, in files of this user alone; ``keep`` leaves them there, also of runs that ended well. ``python`` runs the
    calls, on the nodes; this package must be there. ``at_once`` bounds how many tasks of one ``map`` run at once.

    What is called must be picklable, as for multiprocessing: functions of modules, and of a script that begins what it does below
    ``if __name__ == "__main__"``. Where cloudpickle is installed, here and there, lambdas and functions of notebooks are fine too.

    A call that raises raises here. A job that ends otherwise (time limit, memory, cancelled) raises JobError with the last lines of its output."""

    def __init__(
        self,
        *,
        folder: Union[str, os.PathLike[str]] = "gpupool-runs",
        python: Optional[str] = None,
        at_once: Optional[int] = None,
        keep: bool = False,
        **options: Option,
    ) -> None:
        for taken in ("array", "output", "error", "chdir"):
            if taken in options:
                raise TypeError(f"{taken}: an Executor sets that by itself")
        if at_once is not None and at_once < 1:
            raise ValueError(f"at_once = {at_once}: at least one task runs at once")
        self._folder = os.path.abspath(folder)
        self._python = python or sys.executable
        self._at_once = at_once
        self._keep = keep
        self._options = options
        self._lock = threading.Lock()
        self._is_shut = False
        self._open: set[TaskFuture[Any]] = set()
        self._readers = concurrent.futures.ThreadPoolExecutor(_READERS, thread_name_prefix="gpupool-results")

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> TaskFuture[T]:
        return self._start([(fn, args, kwargs)])[0]

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: Optional[float] = None, chunksize: int = 1
    ) -> Iterator[T]:
        """As of concurrent.futures; all calls are one array, submitted at once. ``chunksize`` calls are one task."""
        if chunksize < 1:
            raise ValueError(f"chunksize = {chunksize}: at least one call is a task")
        calls = list(zip(*iterables))
        parts = [calls[at : at + chunksize] for at in range(0, len(calls), chunksize)]
        futures = self._start([(_call_each, (fn, part), {}) for part in parts])
        return _results(futures, None if timeout is None else time.monotonic() + timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """With ``cancel_futures`` jobs that wait and run are cancelled, in one request."""
        with self._lock:
            self._is_shut = True
            left = list(self._open)
        if cancel_futures:
            stopped = [future.job for future in left if concurrent.futures.Future.cancel(future)]
            for future in left:
                if future.cancelled():
                    future.set_running_or_notify_cancel()
            _job.cancel(stopped)
        if wait:
            concurrent.futures.wait(left)
            self._readers.shutdown()

    def _start(self, calls: Sequence[tuple[Callable[..., Any], Any, Any]]) -> list[TaskFuture[Any]]:
        with self._lock:
            if self._is_shut:
                raise RuntimeError("this Executor is shut down")
        if not calls:
            return []
        run = _write_run(self._folder, calls)
        try:
            work = ["--", self._python, "-m", "gpupool", run]
            options = {"job_name": _name(calls), **self._options}
            if len(calls) == 1:
                jobs = [_job.start(work, None, {**options, "output": os.path.join(run, "task-0.log")})]
            else:
                tasks = f"0-{len(calls) - 1}" + (f"%{self._at_once}" if self._at_once else "")
                jobs = _job.start_array(tasks, work, None, {**options, "output": os.path.join(run, "task-%a.log")})
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            raise
        futures = []
        left = _Left(len(jobs), None if self._keep else run)
        for index, job in enumerate(jobs):
            future: TaskFuture[Any] = TaskFuture()
            future.job = job
            with self._lock:
                self._open.add(future)
            # Not in the thread that watches: a file may take a while to come.
            finish = functools.partial(self._finish, future, run, index, left)
            job.future().add_done_callback(functools.partial(self._ended, finish))
            futures.append(future)
        return futures

    def _ended(
        self, finish: Callable[[concurrent.futures.Future[_job.JobInfo]], None], end: concurrent.futures.Future[_job.JobInfo]
    ) -> None:
        try:
            self._readers.submit(finish, end)
        except RuntimeError:
            # Shut down: nobody waits for it.
            finish(end)

    def _finish(
        self, future: TaskFuture[Any], run: str, index: int, left: _Left, end: concurrent.futures.Future[_job.JobInfo]
    ) -> None:
        value, error = None, None
        try:
            value = _result(end.result(), run, index)
        except BaseException as raised:
            error = raised
        with self._lock:
            self._open.discard(future)
        left.one_ended(error is None or future.cancelled())
        if future.cancelled() or not future.set_running_or_notify_cancel():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


class _Left:
    """The folder of a run, which goes with the last of its results."""

    def __init__(self, count: int, folder: Optional[str]) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._folder = folder

    def one_ended(self, well: bool) -> None:
        with self._lock:
            self._count -= 1
            if not well:
                # Its logs may be wanted.
                self._folder = None
            done = self._count == 0 and self._folder
        if done:
            shutil.rmtree(done, ignore_errors=True)


def _call_each(fn: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[T]:
    return [fn(*args) for args in calls]


def _results(futures: Sequence[TaskFuture[Any]], until: Optional[float]) -> Iterator[Any]:
    try:
        for future in futures:
            yield from future.result(None if until is None else max(until - time.monotonic(), 0))
    finally:
        for future in futures:
            future.cancel()


def _name(calls: Sequence[tuple[Callable[..., Any], Any, Any]]) -> str:
    fn, args, _ = calls[0]
    fn = args[0] if fn is _call_each else fn
    return str(getattr(fn, "__name__", type(fn).__name__))


def _write_run(folder: str, calls: Sequence[tuple[Callable[..., Any], Any, Any]]) -> str:
    """A folder with all that the jobs read."""
    os.makedirs(folder, exist_ok=True)
    run = tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=folder)
    main = main_of_here()
    context = {"path": [os.path.abspath(path) for path in sys.path], "main": main}
    try:
        write_whole(os.path.join(run, "context"), pickle.dumps(context))
        for index, call in enumerate(calls):
            # A notebook is no file that a job could import.
            write_whole(os.path.join(run, f"task-{index}.in"), dumps(call, by_value=main is None))
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        raise
    return run


def _result(info: _job.JobInfo, run: str, index: int) -> Any:
    """What the call returned, or the exception that it raised."""
    path = os.path.join(run, f"task-{index}.out")
    patience = {"COMPLETED": _FILE_PATIENCE, "FAILED": _RAISED_PATIENCE if info.exit_code == 1 else 0}.get(info.state, 0)
    until = time.monotonic() + patience
    while True:
        try:
            # A directory that is listed is looked at anew on NFS.
            os.listdir(run)
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    raise JobError(info, f"{path} is another user's, and is not read")
                returned, value, text = ResultReader(file).load()
            break
        except FileNotFoundError:
            if time.monotonic() >= until:
                raise _without_result(info, run, index) from None
            time.sleep(_FILE_PAUSE)
    if returned:
        return value
    raise value from TaskTraceback(text)


def _without_result(info: _job.JobInfo, run: str, index: int) -> JobError:
    log = os.path.join(run, f"task-{index}.log")
    try:
        with open(log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - 8192, 0))
            output = "\n".join(file.read().decode("utf-8", "replace").splitlines()[-20:])
    except OSError:
        output = ""
    if info.is_well:
        said = f"job {info.shown_id} ended well, but {run} has no result of it. Do its nodes share that folder with this machine?"
        return JobError(info, said, output)
    return JobError(info, output=output)


class TaskTraceback(Exception):
    """The traceback of a call, as its node printed it."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'
