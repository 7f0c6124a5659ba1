"""``python -m gpupool FOLDER``: one call of an Executor, in its job. Reads ``task-N.in``, writes ``task-N.out``; N is the task of the array."""

import os
import pickle
import runpy
import sys
import traceback
import types
from typing import Any, Optional

#: The script of the submitting process is imported under this name, so that its ``if __name__ == "__main__"`` does not run.
_MAIN = "__gpupool_main__"


class TaskError(Exception):
    """An exception of a task that cannot be pickled; the text is its traceback."""


def main_of_here() -> Optional[tuple[str, str]]:
    """How the script of this process is imported elsewhere: by its module's name, or its path; None in a notebook."""
    module = sys.modules["__main__"]
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name != "__main__" and not spec.name.endswith(".__main__"):
        return "module", spec.name
    path = getattr(module, "__file__", None)
    return ("path", os.path.abspath(path)) if path and os.path.isfile(path) else None


def import_main(main: tuple[str, str]) -> None:
    """Makes the submitting script ``__main__`` here, where the pickles look for its functions. As multiprocessing does it."""
    kind, name = main
    run = runpy.run_module if kind == "module" else runpy.run_path
    module = types.ModuleType(_MAIN)
    module.__dict__.update(run(name, run_name=_MAIN))
    sys.modules["__main__"] = sys.modules[_MAIN] = module


def dumps(value: Any, by_value: bool = False) -> bytes:
    """A pickle; by cloudpickle, where it is installed, of what pickle cannot, and ``by_value`` of all."""
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        plain = pickle.dumps(value)
        if by_value and b"__main__" in plain:
            raise pickle.PicklingError(
                "a function of a notebook, or of a script on stdin, goes to a job by cloudpickle, which is not installed: pip install cloudpickle"
            ) from None
        return plain
    if not by_value:
        try:
            return pickle.dumps(value)
        except Exception:
            pass
    data: bytes = cloudpickle.dumps(value)
    return data


class ResultReader(pickle.Unpickler):
    """Reads what a job wrote: what it calls the submitting script is ``__main__`` here."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == _MAIN else module, name)


def write_whole(path: str, data: bytes) -> None:
    """Writes a file so that it is there whole or not at all, also after a crash of the node."""
    part = f"{path}.{os.getpid()}"
    with open(part, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def outcome(folder: str, index: str) -> tuple[bool, Any, str]:
    """Runs a task: whether it returned, what it returned or raised, and the traceback."""
    try:
        with open(os.path.join(folder, "context"), "rb") as file:
            context = pickle.load(file)
        sys.path[:] = context["path"]
        with open(os.path.join(folder, f"task-{index}.in"), "rb") as file:
            data = file.read()
        if context["main"] and b"__main__" in data:
            import_main(context["main"])
        function, args, kwargs = pickle.loads(data)
        return True, function(*args, **kwargs), ""
    except Exception as error:
        return False, error, traceback.format_exc()


def main(folder: str) -> int:
    index = os.environ.get("SLURM_ARRAY_TASK_ID", "0")
    returned, value, text = outcome(folder, index)
    try:
        data = dumps((returned, value, text))
        pickle.loads(data)
    except Exception as error:
        text = text or f"what it returned cannot be pickled: {error}\n"
        returned, data = False, pickle.dumps((False, TaskError(text), text))
    write_whole(os.path.join(folder, f"task-{index}.out"), data)
    if not returned:
        print(text, file=sys.stderr, end="")
    return 0 if returned else 1

