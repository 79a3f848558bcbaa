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
from tasks.kit.processes import bypass_proxies_on_loopback, hold_stage_lock, run_child

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


def test_an_orphan_of_a_killed_stage_keeps_the_lock_as_long_as_it_lives(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    stage = (
        "import os, signal, subprocess, sys; from pathlib import Path\n"
        "from tasks.kit.processes import hold_stage_lock, start_child\n"
        f"with hold_stage_lock('train', Path({str(tmp_path)!r})):\n"
        f"    child = start_child([sys.executable, '-c', {child!r}], death_signal=signal.SIGTERM,"
        " stdout=subprocess.PIPE)\n"
        "    child.stdout.readline(); os.write(1, b'%d\\n' % child.pid); os.kill(os.getpid(), signal.SIGKILL)"
    )
    started = subprocess.run(
        [sys.executable, "-c", stage], stdout=subprocess.PIPE, text=True, timeout=60, check=False
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


INTERRUPTED = """
import sys, time
from tasks.kit.processes import stop_on_sigterm
stop_on_sigterm(repeat_seconds=float(sys.argv[1]))
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    try:
        print("saving", flush=True)
        time.sleep(2)
        print("saved")
    except KeyboardInterrupt:
        print("cut short")
"""


def test_a_second_sigterm_a_millisecond_later_does_not_cut_the_saving_short() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, "10"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    time.sleep(0.001)
    process.terminate()
    assert process.communicate(timeout=WAIT_SECONDS)[0].split() == ["saving", "saved"]


def test_a_sigterm_that_comes_later_ends_it_at_once() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, "0.1"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.stdout.readline()
    time.sleep(0.2)
    process.terminate()
    assert process.communicate(timeout=WAIT_SECONDS)[0].split() == ["cut", "short"]


def test_a_program_that_was_run_to_its_end_dies_with_who_ran_it() -> None:
    child = "import os, time; os.write(2, b'%d' % os.getpid()); time.sleep(600)"
    parent = (
        "import sys; from tasks.kit.processes import start_child\n"
        f"start_child([sys.executable, '-c', {child!r}]).wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        pid = int(os.read(process.stderr.fileno(), 20))
    finally:
        process.kill()
        process.wait()
    assert wait_until_gone(pid)


def test_a_program_that_takes_too_long_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["sleep", "600"], max_seconds=0.2)
    assert time.monotonic() - began < WAIT_SECONDS
    assert not [child for child in psutil.Process().children() if "600" in child.cmdline()]


def test_loopback_is_added_to_the_hosts_without_a_proxy() -> None:
    environment = {"NO_PROXY": "example.org", "HTTP_PROXY": "http://proxy:3128"}
    for _ in range(2):
        bypass_proxies_on_loopback(environment)
    assert environment["no_proxy"] == environment["NO_PROXY"] == "example.org,127.0.0.1,localhost"


def test_both_spellings_are_joined_and_everything_stays_everything() -> None:
    environment = {"NO_PROXY": "example.org", "no_proxy": "example.com"}
    bypass_proxies_on_loopback(environment)
    assert environment["no_proxy"] == "example.com,example.org,127.0.0.1,localhost"
    everything = {"NO_PROXY": "*"}
    bypass_proxies_on_loopback(everything)
    assert everything == {"NO_PROXY": "*"}


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
