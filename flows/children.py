"""Child processes that never outlive the run: groups of their own, stopped whole, dead when we are dead."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from tasks.kit.processes import switch_telemetry_off

_PR_SET_PDEATHSIG = 1
_prctl: Any = getattr(
    ctypes.CDLL(None), "prctl", None
)  # bound before any fork: no import may happen after one

_running: set["ProcessGroup"] = set()
_stopping = threading.Event()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of every child: this interpreter's `bin` first on PATH (dvc.yaml says `python`), no telemetry."""
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(extra or {})}
    switch_telemetry_off(variables)
    folder = str(Path(sys.executable).parent)
    path = variables.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != folder:
        variables["PATH"] = f"{folder}{os.pathsep}{path}"
    return variables


class ProcessGroup:
    """A command in a process group of its own, which is stopped as a whole."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        extra: Mapping[str, str] | None = None,
        output: int | IO[Any] = subprocess.PIPE,
    ) -> None:
        """Start `command`. Must be called by a thread that lives as long as it: Linux ties the death signal to it."""
        if _stopping.is_set():
            raise KeyboardInterrupt
        self.process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent if _prctl else None,
        )
        _running.add(self)

    def stop(self, grace_seconds: float = 15.0) -> None:
        """TERM to the whole group, then KILL to what is left after `grace_seconds`. Harmless when it has ended."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_seconds)
        deadline = time.monotonic() + (2.0 if self.process.poll() is not None else 0.0)
        while self._signal(0) and time.monotonic() < deadline:  # a stage whose DVC is gone ends by itself
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        self.process.wait()
        _running.discard(self)

    def interrupt(self) -> None:
        """TERM to the whole group, without waiting."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """While the block runs, SIGINT and SIGTERM first stop every group, then do what they did before.

    Threads wait for their stages, and Python waits for its threads: without this, Ctrl-C would wait for the
    training to end. Signals reach the main thread only; elsewhere the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: FrameType | None) -> None:
        _stopping.set()
        for group in list(_running):
            group.interrupt()
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)
        else:
            raise KeyboardInterrupt

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _stopping.clear()
