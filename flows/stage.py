"""One stage through DVC: `dvc repro --single-item` in its own process group, its words followed and kept."""

import contextlib
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from flows.children import ProcessGroup
from tasks.kit.console import redact
from tasks.kit.errors import TrainLLMError
from tasks.kit.paths import Paths

Result = Literal["ran", "run-cache", "unchanged", "fresh", "failed", "not started"]

TAIL_LINES = 15
FORWARDED_LINES_PER_SECOND = (
    4  # 20,000 forwarded lines cost a Prefect server 31 CPU seconds and lock its database
)

_INTERRUPTED = 130  # the stage was asked to stop: by us, or by someone who means it
_EXIT_CODE = re.compile(r"failed to run: .*, exited with (-?\d+)")


@dataclass(frozen=True)
class Outcome:
    """What became of a stage in one run."""

    stage: str
    result: Result
    seconds: float = 0.0
    reason: str = ""
    exit_code: int = 0
    log: str = ""
    tail: tuple[str, ...] = ()
    worth_a_retry: bool = False
    """Whether the failure may be gone at the next try: a service away, a signal, time over; not a gate or a NaN."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class StageFailed(TrainLLMError):
    """A stage ended with an error; carries its outcome, and the exit code of the stage itself (DVC says 255)."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"stage {outcome.stage} failed ({outcome.reason}); its log: {outcome.log}")
        self.outcome = outcome
        self.exit_code = outcome.exit_code


class _Throttle:
    """Hands at most a few lines a second to `forward`, and says how many it left out."""

    def __init__(self, forward: Callable[[str], None]) -> None:
        self._forward = forward
        self._second = 0.0
        self._sent = 0
        self._left_out = 0

    def line(self, text: str) -> None:
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._sent = now, 0
        if self._sent >= FORWARDED_LINES_PER_SECOND:
            self._left_out += 1
            return
        self._sent += 1
        self.close()
        self._forward(text)

    def close(self) -> None:
        if self._left_out:
            self._forward(f"({self._left_out:,} lines are in the log file only)")
            self._left_out = 0


def run_stage(
    root: Path,
    stage: str,
    log: Path,
    timeout_seconds: float | None = None,
    pull: bool = False,
    forward: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a stage unless DVC finds its result. All output, redacted, goes to `log`; a few lines also to `forward`.

    Raises:
        StageFailed: it ended with an error or took longer than `timeout_seconds`; nothing of it lives on.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", stage]
    command += ["--pull", "--allow-missing"] if pull else []
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    words = _Words(stage)
    timed_out = threading.Event()
    group = ProcessGroup(command, root)
    timer = threading.Timer(timeout_seconds, _stop_late, (group, timed_out)) if timeout_seconds else None
    try:
        if timer:
            timer.daemon = True
            timer.start()
        throttle = _Throttle(forward)
        with log.open("a", encoding="utf-8") as file:
            assert group.process.stdout is not None
            for line in group.process.stdout:
                text = redact(line.rstrip())
                if text:
                    file.write(f"{text}\n")
                    file.flush()
                    words.hear(text)
                    throttle.line(text)
        throttle.close()
        code = group.process.wait()
    finally:
        if timer:
            timer.cancel()
        group.stop()
    seconds = round(time.monotonic() - began, 2)
    if timed_out.is_set():
        reason = f"stopped after {timeout_seconds:g} s, the limit of meta.timeout_seconds in dvc.yaml"
        raise StageFailed(Outcome(stage, "failed", seconds, reason, 1, str(log), words.tail, True))
    if code:
        raise StageFailed(words.failure(code, seconds, log))
    return Outcome(stage, words.result, seconds, "", 0, str(log))


@contextlib.contextmanager
def hold_object_store(root: Path) -> Iterator[None]:
    """Hold the embedded object store open, so that one server serves all stages; nothing for other stores."""
    if _object_store(root) != "embedded":
        yield
        return
    from tasks.kit.object_store import open_store
    from tasks.params.runtime import RuntimeParams

    with open_store(RuntimeParams(), Paths(root)):
        yield


def _object_store(root: Path) -> str:
    """`runtime.object_store` of a params.yaml that may be of another commit: with keys that are unknown here."""
    import yaml

    try:
        runtime = yaml.safe_load(Paths(root).params.read_text(encoding="utf-8"))["runtime"]
        return str(runtime["object_store"])
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return "embedded"  # the default; what is wrong with the file is said by the stages


def _stop_late(group: ProcessGroup, timed_out: threading.Event) -> None:
    timed_out.set()
    group.stop()


class _Words:
    """What DVC's own lines say of a stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._exit_code: int | None = None
        self._error = ""
        self.result: Result = "unchanged"

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    def hear(self, line: str) -> None:
        """Take in one line of output."""
        self._tail.append(line)
        if line.startswith(f"Running stage '{self._stage}'"):
            self.result = "ran"
        elif line.startswith(f"Stage '{self._stage}' is cached"):
            self.result = "run-cache"
        elif found := _EXIT_CODE.search(line):
            self._exit_code = int(found.group(1))
        elif "error: " in line.lower():
            self._error = line

    def failure(self, dvc_code: int, seconds: float, log: Path) -> Outcome:
        """The outcome of a failure: the stage's own code where it ran, that of DVC's trouble otherwise."""
        if self._exit_code is None:
            killed = f"DVC was ended by signal {-dvc_code}" if dvc_code < 0 else f"DVC exited with {dvc_code}"
            reason = self._error or killed
            code, again = 1, True  # DVC's own trouble: a remote, a lock; the stage did not judge anything
        else:
            reason = self._error or f"its command exited with {self._exit_code}"
            code = self._exit_code if self._exit_code in (2, 3) else 1
            again = code == 3 or self._exit_code < 0 or self._exit_code > 128
            again = again and self._exit_code != _INTERRUPTED
        return Outcome(self._stage, "failed", seconds, reason, code, str(log), self.tail, again)
