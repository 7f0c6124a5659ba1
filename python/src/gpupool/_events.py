"""What happens in the cluster, as it happens."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from ._command import Option, option_words, program
from ._error import GpupoolError


def events(follow: bool = True, **options: Option) -> Iterator[dict[str, Any]]:
    """Events one by one, each at least once; options are those of ``gq events``: ``after=ID``, ``since="now-1hour"``, ``kind="job_ended"``.

    Keep the last ``id``, and go on after it with ``after``. A controller that restarts is waited for. Keys: docs/events.md."""
    words = option_words({"json": True, "follow": follow, **options})
    process = subprocess.Popen(
        [program("gq"), "events", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        for line in process.stdout:
            yield json.loads(line)
        said = process.stderr.read().strip()
        if process.wait() != 0:
            raise GpupoolError(said or f"gq events ended with {process.returncode}", process.returncode)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
