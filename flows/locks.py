"""What keeps runs apart in one workspace, and the clearing of what killed runs left locked."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.kit.errors import EnvironmentProblem
from tasks.kit.files import write_atomically
from tasks.kit.paths import Paths


def clear_dead_locks(root: Path) -> list[str]:
    """Drop from `.dvc/tmp/rwlock` what no living DVC holds. Returns one line for each thing cleared.

    DVC rewrites the file in place and keeps pids in it: cut short it stops every command, and a pid that the
    system gave to another program blocks for ever (dvc#3164, #8711). DVC itself clears a dead pid only where
    it is in its own way.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    guard = path.with_name("rwlock.lock")
    if not path.exists():
        return []
    with guard.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            write, read = dict(content.get("write", {})), dict(content.get("read", {}))
            alive_write = {name: holder for name, holder in write.items() if _runs_dvc(holder)}
            alive_read = {name: [h for h in holders if _runs_dvc(h)] for name, holders in read.items()}
        except (ValueError, TypeError, AttributeError):
            path.unlink()
            return [".dvc/tmp/rwlock was cut short by a killed run: removed"]
        alive_read = {name: holders for name, holders in alive_read.items() if holders}
        dead = (
            len(write) - len(alive_write) + sum(map(len, read.values())) - sum(map(len, alive_read.values()))
        )
        if not dead:
            return []
        write_atomically(path, json.dumps({"write": alive_write, "read": alive_read}).encode())
        return [f".dvc/tmp/rwlock held {dead} lock{'s' * (dead > 1)} of runs that no longer live: dropped"]


def _runs_dvc(holder: Any) -> bool:
    """Whether the pid of a lock entry is a living DVC, and not another program that was given its number."""
    import psutil

    try:
        process = psutil.Process(holder["pid"])
        return process.status() != psutil.STATUS_ZOMBIE and "dvc" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def check_host(root: Path) -> None:
    """Refuse a workspace that another host works in, and mark it as this host's.

    Locks hold pids, and two containers easily have the same ones: DVC would take the other's lock for its own
    (dvc#3370).

    Raises:
        EnvironmentProblem: the marker names another host.
    """
    marker = Paths(root).state / "host"
    here = socket.gethostname()
    owner = marker.read_text(encoding="utf-8").strip() if marker.exists() else ""
    if owner and owner != here:
        raise EnvironmentProblem(
            f"this workspace belongs to host {owner!r}, and this is {here!r}: give each host a clone of its own "
            f"(they share the DVC remote), or, when {owner!r} is gone for good, remove {marker}"
        )
    if not owner:
        write_atomically(marker, f"{here}\n".encode())


@contextlib.contextmanager
def hold_workspace(root: Path) -> Iterator[bool]:
    """Hold the workspace for one run. Yields False, holding nothing, where another run has it."""
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
