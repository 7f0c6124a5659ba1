"""Jobs: submitting them, how they stand, their end."""

from __future__ import annotations

import concurrent.futures
import datetime
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from . import _watch
from ._command import Option, ask, call, option_words
from ._error import GpupoolError, JobError

#: A script's path, or a command as a list.
Work = Union[str, "os.PathLike[str]", Sequence[str]]


@dataclass(frozen=True)
class JobInfo:
    """How a job stood when it was asked for. Keys and units: gpupool-json(5)."""

    id: int
    #: ``17``, ``98_5``.
    shown_id: str
    name: str
    user: str
    account: str
    partition: str
    qos: str
    #: ``PENDING``, ``RUNNING``, ``COMPLETED`` and so on; a later release may add some.
    state: str
    #: Why it waits, as ``gq`` has it.
    reason: str
    reason_text: str
    #: The nodes of its run, as ``node[1-2]``.
    nodelist: str
    gpu_count: float
    exit_code: int
    signal: int
    #: Why it ended, in words.
    end_text: str
    submit_time: Optional[datetime.datetime]
    start_time: Optional[datetime.datetime]
    end_time: Optional[datetime.datetime]
    elapsed_secs: int
    #: All that the command printed of it.
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def is_over(self) -> bool:
        return self.state in _watch.OVER

    @property
    def is_well(self) -> bool:
        """It ended, and well."""
        return self.state == "COMPLETED"

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> JobInfo:
        def text(key: str) -> str:
            return str(row.get(key) or "")

        code = row.get("exit_code") or {}
        return cls(
            id=int(row["id"]),
            shown_id=text("shown_id"),
            name=text("name"),
            user=text("user"),
            account=text("account"),
            partition=text("partition"),
            qos=text("qos"),
            state=text("state"),
            reason=text("reason"),
            reason_text=text("reason_text"),
            nodelist=text("nodelist"),
            gpu_count=float(row.get("gpu_count") or 0),
            exit_code=int(code.get("code") or 0),
            signal=int(code.get("signal") or 0),
            end_text=text("end_text"),
            submit_time=_instant(row.get("submit_time")),
            start_time=_instant(row.get("start_time")),
            end_time=_instant(row.get("end_time")),
            elapsed_secs=int(row.get("elapsed_secs") or 0),
            raw=row,
        )


def _instant(text: Optional[str]) -> Optional[datetime.datetime]:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


class Job:
    """A job, or a task of an array, by its number: ``Job(17)``, ``Job("98_5")``.

    ``await job`` is ``job.wait()`` in asyncio."""

    def __init__(self, id: Union[int, str], notes: Sequence[str] = ()) -> None:
        #: As listings show it.
        self.id = str(id)
        #: What the controller said of it when it was submitted.
        self.notes = tuple(notes)
        head, _, index = self.id.partition("_")
        if not head.isdecimal() or ("_" in self.id and not index.isdecimal()):
            raise ValueError(f"{self.id!r} is no job: write 17, or 98_5 for a task of an array")

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def info(self) -> JobInfo:
        """How it stands now.

        Raises GpupoolError where there is no such job that you may see."""
        found = _watch.look([self.id]).get(self.id)
        if found is None:
            raise GpupoolError(f"there is no job {self.id} that you may see")
        return JobInfo.of_row(found)

    @property
    def state(self) -> str:
        return self.info().state

    def wait(self, timeout: Optional[float] = None, check: bool = False) -> JobInfo:
        """Waits for its end, and says how it ended.

        Raises TimeoutError after so many seconds; with ``check`` JobError where it ended otherwise than well."""
        future = self.future()
        try:
            info = future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"job {self.id} is not over after {timeout} s") from None
        if check and not info.is_well:
            raise JobError(info, output=self.tail())
        return info

    def future(self) -> concurrent.futures.Future[JobInfo]:
        """Its end, as a future. Cancelling that leaves the job alone."""
        end: concurrent.futures.Future[JobInfo] = concurrent.futures.Future()

        def tell(row: Optional[dict[str, Any]], error: Optional[Exception]) -> None:
            if not end.set_running_or_notify_cancel():
                return
            if row is None:
                end.set_exception(error or GpupoolError(f"there is no job {self.id} that you may see"))
            else:
                end.set_result(JobInfo.of_row(row))

        _watch.watch(self.id, tell)
        return end

    def __await__(self) -> Generator[Any, None, JobInfo]:
        # It takes as long to import as all else of this package.
        import asyncio

        return asyncio.wrap_future(self.future()).__await__()

    def cancel(self) -> None:
        """Cancels it; a job that is over stays as it is."""
        cancel([self])

    def why(self) -> str:
        """What stands against its start, in words."""
        return call("gq", "--why", self.id)

    def output(self) -> str:
        """What it printed so far, or in all."""
        return call("gq", "--output", self.id)

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output; nothing where there is none to read."""
        try:
            return call("gq", "--tail", str(lines), "--output", self.id).rstrip("\n")
        except GpupoolError:
            return ""


def cancel(jobs: Iterable[Job]) -> None:
    """Cancels jobs, all in one request; jobs that are over stay as they are.

    Raises GpupoolError for the first that may not be cancelled."""
    for part in _watch.chunks([job.id for job in jobs]):
        for result in ask("gdel", *part)["results"]:
            if not result["ok"] and result.get("code") != "not_found":
                raise GpupoolError(str(result.get("error")))


def submit(work: Optional[Work] = None, *args: str, text: Optional[str] = None, **options: Option) -> Job:
    """Submits a script by its path, a command as a list, or a script's ``text``.

    Options are those of gsub(1) with ``_`` for ``-``: ``gpus="h100:2"``, ``time="4:00:00"`` or a timedelta, ``hold=True``.

    Raises GpupoolError with what stands against it."""
    if "array" in options:
        raise TypeError("array: use submit_array, which gives a job for each task")
    return start(_work_words(work, text, args), text, options)


def submit_array(indices: str, work: Optional[Work] = None, *args: str, text: Optional[str] = None, **options: Option) -> list[Job]:
    """Submits an array, ``"0-99%10"``, and gives its tasks. The rest as for ``submit``."""
    return start_array(indices, _work_words(work, text, args), text, options)


def dry_run(work: Optional[Work] = None, *args: str, text: Optional[str] = None, **options: Option) -> dict[str, Any]:
    """Where and when the job would start, and what that costs; submits nothing. Keys: gpupool-json(5), SUBMITTING."""
    words = option_words({**options, "dry_run": True})
    return ask("gsub", *words, *_work_words(work, text, args), text=text)


def start(words: Sequence[str], text: Optional[str], options: Mapping[str, Option]) -> Job:
    """Submits what gsub's last words say."""
    for name in ("dry_run", "interactive", "json", "mark", "parsable", "test_only", "wait", "wrap"):
        if name in options:
            raise TypeError(f"{name} is an option of the command gsub alone. Here: dry_run(...), Job.wait(), a list for a command")
    answer = ask("gsub", *option_words(options), *words, text=text)
    return Job(int(answer["id"]), answer.get("notes") or ())


def start_array(indices: str, words: Sequence[str], text: Optional[str], options: Mapping[str, Option]) -> list[Job]:
    """The same as an array: its tasks."""
    array = start(words, text, {**options, "array": indices})
    return [Job(f"{array.id}_{index}", array.notes) for index in _watch.indices(indices)]


def _work_words(work: Optional[Work], text: Optional[str], args: Sequence[str]) -> list[str]:
    if (work is None) == (text is None):
        raise TypeError("a job is a script's path, a command as a list, or text=..., one of them")
    if work is None:
        return ["-", *args]
    if isinstance(work, (str, os.PathLike)):
        path = os.fspath(work)
        # Not to be taken for an option.
        return [os.path.join(os.curdir, path) if path.startswith("-") else path, *args]
    return ["--", *work, *args]


def wait(jobs: Iterable[Job], timeout: Optional[float] = None) -> list[JobInfo]:
    """Waits for the end of all, and says how each ended, in their order. Raises TimeoutError."""
    futures = [job.future() for job in jobs]
    done, late = concurrent.futures.wait(futures, timeout)
    for future in late:
        future.cancel()
    if late:
        raise TimeoutError(f"{len(late)} of {len(futures)} jobs are not over after {timeout} s")
    return [future.result() for future in futures]


def as_completed(jobs: Iterable[Job], timeout: Optional[float] = None) -> Iterator[tuple[Job, JobInfo]]:
    """Each job with how it ended, as they end. Raises TimeoutError."""
    futures = {job.future(): job for job in jobs}
    try:
        for future in concurrent.futures.as_completed(futures, timeout):
            yield futures[future], future.result()
    except concurrent.futures.TimeoutError:
        raise TimeoutError(f"not all jobs are over after {timeout} s") from None
    finally:
        for future in futures:
            future.cancel()


def jobs(**options: Option) -> list[JobInfo]:
    """The queue, narrowed by options of gq(1): ``me=True``, ``states="PENDING"``, ``account="vision"``; ``states="all"`` has jobs that are over too."""
    return [JobInfo.of_row(row) for row in ask("gq", *option_words(options))["jobs"]]


def runs(**options: Option) -> list[JobInfo]:
    """Accounting, narrowed by options of gacct(1): ``starttime="2026-11-01"``, ``user="ada"``. ``raw`` has use, GPUs and steps."""
    return [JobInfo.of_row(row) for row in ask("gacct", *option_words(options))["runs"]]


def nodes() -> list[dict[str, Any]]:
    """Nodes with their GPUs. Keys: gpupool-json(5), NODES."""
    found: list[dict[str, Any]] = ask("gnodes")["nodes"]
    return found
