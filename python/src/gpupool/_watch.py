"""Ends of jobs: one ``gq events --follow`` for all that are waited for, and a look at each job that it names.

Events only say when to look; what a job's state is, the controller is asked. Each job is looked at when it is watched, after an event
of it, and every minute, so an event that is lost delays and loses nothing."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

from ._command import ask, program
from ._error import GpupoolError

Tell = Callable[[Optional[dict[str, Any]], Optional[Exception]], None]

#: Jobs that one command is asked for.
_AT_ONCE = 500
#: Seconds between two looks at a job of which no event comes.
_LOOK_EVERY = 60.0
#: Seconds in which events are gathered for one look.
_GATHER = 0.02
#: Seconds before a controller is asked again that did not answer, how long it is waited for, and how long one that refuses.
_PAUSE, _PATIENCE, _REFUSED = 2.0, 600.0, 30.0
#: Kinds of events after which a job may be over.
_KINDS = "job_ended,job_cancelled,array_ended"

#: States of a job that is over.
OVER = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE", "BOOT_FAIL")
)

_lock = threading.Lock()
_watcher: Optional[_Watcher] = None


def watch(job: str, tell: Tell) -> None:
    """Calls ``tell`` once when the job is over, with its row; with an error where it is not there or cannot be asked for."""
    global _watcher
    with _lock:
        if _watcher is None or not _watcher.is_running:
            _watcher = _Watcher()
        _watcher.add(job, tell)


def _begin_anew() -> None:
    """In a child of fork, which has no thread of ours."""
    global _lock, _watcher
    _lock, _watcher = threading.Lock(), None


os.register_at_fork(after_in_child=_begin_anew)


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Numbers of jobs, as many at once as one command is asked for."""
    for at in range(0, len(ids), _AT_ONCE):
        yield ids[at : at + _AT_ONCE]


def look(ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The rows of jobs by number; jobs that are not there are absent."""
    found: dict[str, dict[str, Any]] = {}
    for part in chunks(ids):
        _take(ask("gq", "-r", "-t", "all", "-j", ",".join(part))["jobs"], set(part), found)
        # Not in the controller's memory any more, or an array, of which some tasks may be so.
        older = [one for one in part if one not in found]
        if older:
            rows = ask("gacct", "-j", ",".join(older))["runs"]
            _take(rows, set(older), found)
            for head in older:
                tasks = [row for row in rows if str(row.get("array_id")) == head]
                if tasks:
                    found[head] = {**_of_all(tasks), "id": int(head), "shown_id": head}
    return found


def _take(rows: Iterable[dict[str, Any]], names: set[str], found: dict[str, dict[str, Any]]) -> None:
    for row in rows:
        shown, head = str(row["shown_id"]), row.get("array_id")
        if shown in names:
            found[shown] = row
        elif head is None and str(row["id"]) in names:
            found[str(row["id"])] = row
        # Tasks that were cancelled while they waited have one row.
        for index in indices(str(row.get("array_tasks") or "")):
            if f"{head}_{index}" in names:
                found[f"{head}_{index}"] = {**row, "shown_id": f"{head}_{index}", "array_index": index}


def _of_all(tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of an array: of a task that runs or waits, else of one that ended otherwise than well, else of any."""
    going_on = [row for row in tasks if row["state"] not in OVER]
    running = [row for row in going_on if row["state"] != "PENDING"]
    failed = [row for row in tasks if row["state"] != "COMPLETED"]
    return (running or going_on or failed or tasks)[0]


def indices(text: str) -> Iterator[int]:
    """The indices of an array: ``1-5,9``, ``0-99:2%10``."""
    for part in text.partition("%")[0].split(","):
        if part:
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            yield from range(int(first), int(last or first) + 1, int(step or 1))


class _Watcher:
    """A thread that runs while any job is waited for."""

    def __init__(self) -> None:
        self.is_running = True
        self._waiting: dict[str, list[Tell]] = {}
        self._looked: dict[str, float] = {}
        self._due: set[str] = set()
        self._events: Optional[subprocess.Popen[bytes]] = None
        self._read = b""
        self._wake, self._woken = os.pipe()[::-1]
        self._begin_at = 0.0
        threading.Thread(target=self._run, name="gpupool-watch", daemon=True).start()

    def add(self, job: str, tell: Tell) -> None:
        # Called under the lock, as all that touches what is waited for.
        self._waiting.setdefault(job, []).append(tell)
        self._due.add(job)
        os.write(self._wake, b"x")

    def _run(self) -> None:
        silent_since: Optional[float] = None
        while True:
            with _lock:
                if not self._waiting:
                    self.is_running = False
                    break
            try:
                self._follow()
                self._settle()
                silent_since = None
            except (GpupoolError, OSError, ValueError) as error:
                self._stop_events()
                silent_since = silent_since or time.monotonic()
                refused = isinstance(error, GpupoolError) and error.exit_code != 3
                if time.monotonic() - silent_since > (_REFUSED if refused else _PATIENCE):
                    self._fail(error)
                else:
                    time.sleep(_PAUSE)
        self._stop_events()
        os.close(self._wake)
        os.close(self._woken)

    def _follow(self) -> None:
        """Reads events until some job is to be looked at."""
        until: Optional[float] = None
        while True:
            now = time.monotonic()
            with _lock:
                self._due.update(job for job, at in self._looked.items() if at + _LOOK_EVERY <= now)
                until = until or (now + _GATHER if self._due else None)
                soonest = min(self._looked.values(), default=now) + _LOOK_EVERY
            if until is not None and until <= now:
                return
            events = self._following(now)
            soonest = min(until or soonest, soonest if events else self._begin_at)
            ready, _, _ = select.select([self._woken] + events, [], [], max(soonest - now, 0))
            if self._woken in ready:
                os.read(self._woken, 4096)
            if ready and ready[-1] in events and not self._take_events(os.read(ready[-1], 1 << 16)):
                self._stop_events()

    def _following(self, now: float) -> list[int]:
        """Where events come from; nothing for a moment after they broke off."""
        if self._events is None and now >= self._begin_at:
            self._begin_at = now + _PAUSE
            # A minute ago, since clocks differ; what ended before is seen by the first look.
            words = ["events", "--json", "--follow", "--since", "now-60", "--kind", _KINDS]
            self._events = subprocess.Popen(
                [program("gq"), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        stream = self._events and self._events.stdout
        return [stream.fileno()] if stream else []

    def _take_events(self, data: bytes) -> bool:
        *lines, self._read = (self._read + data).split(b"\n")
        with _lock:
            for line in lines:
                event = json.loads(line)
                shown, head = str(event.get("shown_id")), event.get("array_id")
                named = {shown, str(event.get("job_id")), str(head)}
                self._due.update(named.intersection(self._waiting))
                if event.get("array_tasks"):
                    self._due.update(job for job in self._waiting if job.startswith(f"{head}_"))
        return bool(data)

    def _settle(self) -> None:
        """Looks at the jobs that are due, and tells of those that are over."""
        with _lock:
            due = [job for job in self._due if job in self._waiting]
            self._due.clear()
        try:
            found = look(due)
        except BaseException:
            with _lock:
                self._due.update(due)
            raise
        ended: list[tuple[Tell, Optional[dict[str, Any]]]] = []
        with _lock:
            for job in due:
                row = found.get(job)
                if row is None or row.get("state") in OVER:
                    self._looked.pop(job, None)
                    ended += [(tell, row) for tell in self._waiting.pop(job)]
                else:
                    self._looked[job] = time.monotonic()
        for tell, row in ended:
            tell(row, None)

    def _fail(self, error: Exception) -> None:
        with _lock:
            told = [tell for tells in self._waiting.values() for tell in tells]
            self._waiting.clear()
            self._looked.clear()
            self._due.clear()
        for tell in told:
            tell(None, error)

    def _stop_events(self) -> None:
        if self._events is not None:
            self._events.kill()
            self._events.wait()
            assert self._events.stdout is not None
            self._events.stdout.close()
            self._events, self._read = None, b""
