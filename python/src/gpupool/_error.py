"""What goes wrong."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from ._job import JobInfo


class GpupoolError(Exception):
    """A command refused, or the controller did. The text is the command's own, with its advice."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        #: Of the command: 1 or 2 for a refusal, 3 where no controller answers.
        self.exit_code = exit_code


class JobError(GpupoolError):
    """A job ended otherwise than well, or brought no result."""

    def __init__(self, info: JobInfo, text: str = "", output: str = "") -> None:
        said = text or f"job {info.shown_id} ended: {info.state}, exit code {info.exit_code}:{info.signal}"
        if info.end_text and not text:
            said += f" ({info.end_text})"
        if output:
            said += f"\nthe last lines of its output:\n{output}"
        super().__init__(said)
        #: How the job stands.
        self.info = info
        #: The last lines of its output.
        self.output = output

    def __reduce__(self) -> tuple[typing.Any, ...]:
        return (_job_error, (self.info, str(self), self.output))


def _job_error(info: JobInfo, text: str, output: str) -> JobError:
    error = JobError(info, text)
    error.output = output
    return error
