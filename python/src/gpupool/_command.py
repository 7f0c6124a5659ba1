"""Calls of gpupool's commands: how options are written, and what their answers and refusals become."""

import datetime
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from ._error import GpupoolError

#: A value of an option. ``True`` is an option without a value, ``None`` and ``False`` leave it out, a list gives it several times.
Option = Union[None, bool, int, float, str, "os.PathLike[str]", datetime.timedelta, Sequence[str]]


def program(name: str) -> str:
    """The path of a command of gpupool.

    Raises GpupoolError where PATH has none."""
    path = shutil.which(name)
    if path is None:
        raise GpupoolError(f"{name} is not in PATH. Install gpupool's commands (package gpupool-client) on this machine")
    return path


def call(name: str, *words: str, text: Optional[str] = None) -> str:
    """What a command prints.

    Raises GpupoolError with its error text where it fails."""
    said, error = _run(name, words, text)
    if error:
        raise error
    return said


def ask(name: str, *words: str, text: Optional[str] = None) -> dict[str, Any]:
    """The object that a command prints with ``--json``; also one with results of which some failed."""
    said, error = _run(name, ("--json", *words), text)
    try:
        answer = json.loads(said)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise error or GpupoolError(f"{name} --json printed no object: {said[:200]!r}")
    return answer


def _run(name: str, words: Sequence[str], text: Optional[str]) -> tuple[str, Optional[GpupoolError]]:
    # A script is read from stdin only where there is one.
    source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    done = subprocess.run([program(name), *words], capture_output=True, encoding="utf-8", errors="replace", check=False, **source)
    said = done.stderr.strip() or f"{name} ended with {done.returncode}"
    return done.stdout, GpupoolError(said, done.returncode) if done.returncode else None


def option_words(options: Mapping[str, Option]) -> list[str]:
    """``cpus_per_task=4`` as ``--cpus-per-task=4``, and so on."""
    words: list[str] = []
    for key, value in options.items():
        name = "--" + key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(name)
        elif isinstance(value, (str, int, float, os.PathLike, datetime.timedelta)):
            words.append(f"{name}={_text(value)}")
        else:
            words.extend(f"{name}={one}" for one in value)
    return words


def _text(value: Union[int, float, str, "os.PathLike[str]", datetime.timedelta]) -> str:
    if isinstance(value, datetime.timedelta):
        secs = int(value.total_seconds())
        return f"{secs // 86400}-{secs // 3600 % 24:02}:{secs // 60 % 60:02}:{secs % 60:02}"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
