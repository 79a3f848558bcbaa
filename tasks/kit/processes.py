"""Processes that leave nothing behind: die with the parent, one copy of a stage, no telemetry."""

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from tasks.kit.errors import EnvironmentProblem

_PR_SET_PDEATHSIG = 1
# Bound before any fork: nothing may be imported between fork and exec.
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform.startswith("linux") else None

_LOOPBACK = ("127.0.0.1", "localhost")
_held_locks: list[int] = []

TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",  # MLflow takes the word, not `1`
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


def switch_telemetry_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Switch the telemetry of every package off, in this process and in what it starts."""
    environment.update(TELEMETRY_OFF)


def let_idle_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Idle OpenMP threads wait instead of spinning; must come before torch or numba loads.

    With other work on the cores, spinning cost 19.5 processor seconds where the same generation takes 1.5.
    """
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def bypass_proxies_on_loopback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Reach the servers of this machine directly, here and in children, also where HTTP_PROXY is set.

    Both spellings: curl and Python's urllib prefer the lower one, Go takes either.
    """
    named = [environment.get(spelling, "") for spelling in ("no_proxy", "NO_PROXY")]
    hosts = list(dict.fromkeys(host.strip() for host in ",".join(named).split(",") if host.strip()))
    if "*" in hosts:  # no proxy at all; beside other hosts it would not be read as that
        return
    hosts += [host for host in _LOOPBACK if host not in hosts]
    environment["NO_PROXY"] = environment["no_proxy"] = ",".join(hosts)


def die_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Ask the kernel for `signal_number` when the parent dies: DVC killed with -9 would leave its stage running.

    Linux only; elsewhere the stage lock alone keeps a second copy away.
    """
    if _prctl is None:
        return
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal_number)


def start_child(
    command: Sequence[str], *, death_signal: int = signal.SIGKILL, **options: Any
) -> "subprocess.Popen[Any]":
    """Start a program that gets `death_signal` when this process dies, and holds this process's stage lock with it.

    To be called by a thread that lives as long as the child: Linux ties the signal to it. `options` are Popen's.
    """
    starter = os.getpid()

    def tie() -> None:
        _prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != starter:  # it died in between
            os.kill(os.getpid(), death_signal)

    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        preexec_fn=tie if _prctl else None,
        pass_fds=tuple(_held_locks),
        **options,
    )


def run_child(
    command: Sequence[str], *, max_seconds: float | None = None, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end with `start_child`, and collect what it says as text.

    Raises:
        subprocess.TimeoutExpired: after `max_seconds`; the program has been killed by then.
    """
    child = start_child(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        **options,
    )
    with child:
        try:
            said, complained = child.communicate(timeout=max_seconds)
        except BaseException:
            child.kill()
            raise
    return subprocess.CompletedProcess(child.args, child.returncode, said, complained)


def stop_on_sigterm(repeat_seconds: float = 10.0) -> None:
    """Turn SIGTERM into KeyboardInterrupt, so that `finally` blocks stop what this process started.

    A repeat within `repeat_seconds` of the first is the same wish: whoever stops the process group of a run sends
    one, and the death of DVC a millisecond later another. A later one interrupts again.
    """
    first: list[float] = []

    def interrupt(number: int, frame: object) -> None:
        now = time.monotonic()
        if first and now - first[0] < repeat_seconds:
            return
        first[:] = first or [now]
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@contextlib.contextmanager
def hold_stage_lock(stage: str, folder: Path, max_seconds: float = 30.0) -> Iterator[None]:
    """Hold the lock of a stage in this workspace; it is free when this process and all of `start_child` have ended.

    So an orphan keeps a second copy away.

    Raises:
        EnvironmentProblem: another process still holds it after `max_seconds`; names its pid.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{stage}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + max_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = os.pread(descriptor, 20, 0).decode().strip() or "unknown"
                    raise EnvironmentProblem(
                        f"stage {stage} is still running in this workspace (process {holder}): "
                        "wait for it, or stop that process, then run again"
                    ) from None
                time.sleep(0.2)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        _held_locks.append(descriptor)
        try:
            yield
        finally:
            _held_locks.remove(descriptor)
    finally:
        os.close(descriptor)
