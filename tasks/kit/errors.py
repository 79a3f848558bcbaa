"""The errors that a user can meet, and the exit code of each.

    TrainLLMError
    ├── ParamsError          2  params.yaml, an override or a command-line argument is wrong
    ├── EnvironmentProblem   3  the machine, a service, a package or a right is missing
    └── StageError           1  the stage ran and cannot give a result that may be used
        ├── InputError       1  what it was given to read is broken, empty or of another make
        └── GateError        1  a quality gate refused; the expectation is named

Every message says what was found, where (file, line, key), and what to do. They are printed without a
traceback; `assert` is for our own mistakes.
"""

import errno
from concurrent.futures import BrokenExecutor


class TrainLLMError(Exception):
    """Base of all errors whose message is meant for the user."""

    exit_code = 1


class ParamsError(TrainLLMError):
    """A parameter, override or argument is wrong; nothing was started."""

    exit_code = 2


class EnvironmentProblem(TrainLLMError):
    """Something outside the project is missing or out of reach."""

    exit_code = 3


class StageError(TrainLLMError):
    """A stage cannot give a result that may be used."""


class InputError(StageError):
    """The input of a stage is broken, empty, or was made by something else."""


class GateError(StageError):
    """A quality gate refused; the message names the expectation and both numbers."""


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)


def machine_fault(error: BaseException) -> EnvironmentProblem | None:
    """What to do about an error of the machine, not of train-llm: a full disk, a missing right, no memory left.

    None when it is another.
    """
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return EnvironmentProblem(
            f"the disk or its quota is full{_place(error)} ({error.strerror}): make room, then run it again; "
            "what was finished is kept"
        )
    if isinstance(error, OSError) and error.errno in _NO_RIGHT:
        return EnvironmentProblem(
            f"no right to read or write{_place(error)} ({error.strerror}): correct its owner and mode, or the mount"
        )
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return EnvironmentProblem(
            "the machine has not enough memory: close other programs, or lower runtime.num_workers, "
            "runtime.micro_batch_size or runtime.evaluation_batch_size"
        )
    if isinstance(error, BrokenExecutor):
        return EnvironmentProblem(
            f"a worker process was killed, most likely for want of memory ({error}): lower runtime.num_workers "
            "(1 needs least), or close other programs; finished shards are kept"
        )
    return None


def _place(error: OSError) -> str:
    return f" at {error.filename}" if error.filename else ""
