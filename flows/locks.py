"""What keeps runs apart in one workspace, and the clearing of what killed runs left locked."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tasks.kit.errors import EnvironmentProblem
from tasks.kit.files import write_atomically
from tasks.kit.paths import Paths

_CLOCK_SECONDS = 1.0  # start times are counted from the boot, whose own time is known to about that


def clear_dead_locks(root: Path) -> list[str]:
    """Drop from `.dvc/tmp/rwlock` what no living process holds. Returns one line for each thing cleared.

    DVC rewrites the file in place and keeps pids in it: cut short it stops every command, and a pid that the
    system gave to another program blocks for ever (dvc#3164, #8711). DVC itself clears a dead pid only where
    it is in its own way.
    """
    return _dead_locks(root, clear=True)


def find_dead_locks(root: Path) -> list[str]:
    """One line for each thing that `clear_dead_locks` would clear."""
    return _dead_locks(root, clear=False)


def _dead_locks(root: Path, clear: bool) -> list[str]:
    path = root / ".dvc" / "tmp" / "rwlock"
    guard = path.with_name("rwlock.lock")
    if not path.exists():
        return []
    done = ("removed", "dropped") if clear else ("the next run removes it", "the next run drops them")
    with guard.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            written = path.stat().st_mtime
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            write, read = dict(content.get("write", {})), dict(content.get("read", {}))
            alive_write = {name: holder for name, holder in write.items() if _lives(holder, written)}
            alive_read = {name: [h for h in holders if _lives(h, written)] for name, holders in read.items()}
        except (ValueError, TypeError, AttributeError):
            if clear:
                path.unlink()
            return [f".dvc/tmp/rwlock was cut short by a killed run: {done[0]}"]
        alive_read = {name: holders for name, holders in alive_read.items() if holders}
        dead = (
            len(write) - len(alive_write) + sum(map(len, read.values())) - sum(map(len, alive_read.values()))
        )
        if not dead:
            return []
        if clear:
            write_atomically(path, json.dumps({"write": alive_write, "read": alive_read}).encode())
        return [f".dvc/tmp/rwlock held {dead} lock{'s' * (dead > 1)} of runs that no longer live: {done[1]}"]


def _lives(holder: Any, written: float) -> bool:
    """Whether the process of a lock entry lives; one that began after the file was written only has its number."""
    import psutil

    try:
        process = psutil.Process(holder["pid"])
        began = process.create_time()
        return process.status() != psutil.STATUS_ZOMBIE and began <= written + _CLOCK_SECONDS
    except psutil.Error:
        return False


def check_host(root: Path) -> None:
    """Refuse a workspace that another host works in.

    Locks hold pids, and two containers easily have the same ones: DVC would take the other's lock for its own
    (dvc#3370).

    Raises:
        EnvironmentProblem: the marker names another host.
    """
    marker = _host_marker(root)
    here = socket.gethostname()
    owner = marker.read_text(encoding="utf-8").strip() if marker.exists() else ""
    if owner and owner != here:
        raise EnvironmentProblem(
            f"this workspace belongs to host {owner!r}, and this is {here!r}: give each host a clone of its own "
            f"(they share the DVC remote), or, when {owner!r} is gone for good, remove {marker}"
        )


def claim_for_host(root: Path) -> None:
    """Check the host, and mark the workspace as this host's. Raises like `check_host`."""
    check_host(root)
    if not _host_marker(root).exists():
        write_atomically(_host_marker(root), f"{socket.gethostname()}\n".encode())


def _host_marker(root: Path) -> Path:
    return Paths(root).state / "host"


# Set by the command line around its flow: the flow then works under the hold that the plan was made under.
held_by_caller: ContextVar[bool] = ContextVar("held_by_caller", default=False)


@contextlib.contextmanager
def hold_workspace(root: Path) -> Iterator[bool]:
    """Hold the workspace for one run. Yields False, holding nothing, where another run has it."""
    if held_by_caller.get():
        yield True
        return
    path = Paths(root).state / "locks" / "workspace.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield True


def workspace_holder(root: Path) -> str:
    """Pid of the run that holds the workspace, as text; `unknown` when it cannot be read."""
    try:
        return (Paths(root).state / "locks" / "workspace.lock").read_text().strip() or "unknown"
    except OSError:
        return "unknown"
