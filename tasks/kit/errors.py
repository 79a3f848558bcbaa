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
