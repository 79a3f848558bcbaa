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

import psutil

from tasks.kit.processes import bypass_proxies_on_loopback, switch_telemetry_off

_PR_SET_PDEATHSIG = 1
_prctl: Any = getattr(
    ctypes.CDLL(None), "prctl", None
)  # bound before any fork: no import may happen after one

GRACE_SECONDS = 120.0  # what a training gets to save its checkpoint in

_running: set["ProcessGroup"] = set()
_stopping = threading.Event()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of every child: this interpreter's `bin` first on PATH (dvc.yaml says `python`), no telemetry.

    DVC runs commands with $SHELL: that of a service account is often `nologin`, with which every stage would fail.
    """
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "SHELL": "/bin/sh", **(extra or {})}
    switch_telemetry_off(variables)
    bypass_proxies_on_loopback(variables)
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
        stopped_by_signals: bool = True,
    ) -> None:
        """Start `command`. Must be called by a thread that lives as long as it: Linux ties the death signal to it.

        A server that others need to the end is not `stopped_by_signals`, but by whoever started it: with the
        server gone first, Prefect's client asks it again for minutes.
        """
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
        self._asked: set[int] = set()
        self._lock = threading.Lock()
        if stopped_by_signals:
            _running.add(self)

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Ask the group to end, wait until the last of it has, and KILL what is left after `grace_seconds`.

        Harmless when it has ended. Who leads the group may be gone long before the work has: DVC dies of a TERM
        at once, and its stage is still saving then.
        """
        deadline = time.monotonic() + grace_seconds
        while members := self._members():
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
                break
            self._ask_to_end(members)
            time.sleep(0.05)
        self.process.wait()
        _running.discard(self)

    def interrupt(self) -> None:
        """Begin to stop, without waiting for it."""
        threading.Thread(target=self.stop, daemon=True).start()

    def _ask_to_end(self, members: list[psutil.Process]) -> None:
        """TERM, once each, to the leader's children; to the leader itself when it has none.

        Not to all members: workers of a stage are stopped by the stage, and a stage whose DVC is ended together with
        it would get a second TERM, by the death of its parent, in the middle of saving.
        """
        living = {member.pid for member in members}
        below = [member for member in members if _parent(member) not in living - {self.process.pid}]
        children = [member for member in below if member.pid != self.process.pid]
        with self._lock:
            for member in children or below:
                if member.pid not in self._asked:
                    self._asked.add(member.pid)
                    with contextlib.suppress(psutil.Error):
                        member.terminate()

    def _members(self) -> list[psutil.Process]:
        """The living processes of the group; zombies that nobody collects (containers without an init) are none."""
        self.process.poll()
        if not self._signal(0):
            return []
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getpgid(pid) == self.process.pid:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


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
