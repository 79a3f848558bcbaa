"""Processes: one copy of a stage, nothing that outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks.kit.errors import EnvironmentProblem
from tasks.kit.processes import hold_stage_lock

WAIT_SECONDS = 60


def wait_until_gone(pid: int) -> bool:
    """Whether the process ends (or is a zombie that nobody reaped) within the time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_a_second_copy_of_a_stage_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with hold_stage_lock("train", tmp_path):
        code = (
            "from tasks.kit.processes import hold_stage_lock; from pathlib import Path\n"
            f"with hold_stage_lock('train', Path({str(tmp_path)!r}), max_seconds=0.2): pass"
        )
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert f"process {os.getpid()}" in second.stderr


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    with hold_stage_lock("train", tmp_path):
        pass
    with hold_stage_lock("train", tmp_path, max_seconds=0):
        pass


def test_an_orphan_that_inherited_the_lock_still_holds_it(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; from tasks.kit.processes import hold_stage_lock; from pathlib import Path\n"
        f"with hold_stage_lock('train', Path({str(tmp_path)!r})):\n"
        "    child = subprocess.Popen(['sleep', '600'], close_fds=False, stdout=subprocess.DEVNULL)\n"
        "    print(child.pid, flush=True); os._exit(0)"
    )
    started = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    orphan = int(started.stdout)
    try:
        with pytest.raises(EnvironmentProblem), hold_stage_lock("train", tmp_path, max_seconds=0.2):
            pass
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert wait_until_gone(orphan)
    with hold_stage_lock("train", tmp_path, max_seconds=10):
        pass


def test_a_child_dies_with_its_parent() -> None:
    child = (
        "from tasks.kit.processes import die_with_parent; import time\n"
        "die_with_parent(); print(1, flush=True); time.sleep(600)"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
    assert wait_until_gone(pid)
