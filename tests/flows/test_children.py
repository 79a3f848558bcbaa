"""Groups of processes: asked to end once, waited for as a whole, and what their environment holds."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.children import ProcessGroup, environment, stopped_by_signals
from flows.server import reach, wait_until_healthy

# A leader that dies of a TERM at once, as DVC does, over a worker that saves for a while when it gets one.
WORKER = """
import pathlib, signal, sys, time
from tasks.kit.processes import die_with_parent
die_with_parent()
terms = []
signal.signal(signal.SIGTERM, lambda number, frame: terms.append(number))
pathlib.Path("ready").write_text("yes")
while not terms:
    time.sleep(0.05)
time.sleep(float(sys.argv[1]))
pathlib.Path("saved").write_text(str(len(terms)))
"""
LEADER = "import subprocess, sys; subprocess.run([sys.executable, 'worker.py', sys.argv[1]])"


def start(folder: Path, seconds: float) -> ProcessGroup:
    (folder / "worker.py").write_text(WORKER)
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", LEADER, str(seconds)]
    group = ProcessGroup(command, folder, {"PYTHONPATH": root}, subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return group


def test_work_below_a_leader_may_save_and_gets_one_term(tmp_path: Path) -> None:
    group = start(tmp_path, 4)
    group.stop()
    assert (tmp_path / "saved").read_text() == "1"


def test_work_whose_leader_was_killed_may_save_too(tmp_path: Path) -> None:
    group = start(tmp_path, 4)
    group.process.kill()
    group.process.wait()
    group.stop()
    assert (tmp_path / "saved").exists()


def test_what_does_not_end_within_the_grace_is_killed(tmp_path: Path) -> None:
    group = start(tmp_path, 600)
    began = time.monotonic()
    group.stop(grace_seconds=1)
    assert time.monotonic() - began < 20
    assert not (tmp_path / "saved").exists()


def test_a_signal_to_us_lets_the_work_save(tmp_path: Path) -> None:
    group = start(tmp_path, 3)
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,)).start()
        while True:
            time.sleep(0.1)
    group.stop()
    assert (tmp_path / "saved").read_text() == "1"


def test_children_get_a_shell_that_runs_commands_and_no_proxy_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHELL", "/usr/sbin/nologin")
    monkeypatch.setenv("NO_PROXY", "internal.example,localhost")
    monkeypatch.delenv("no_proxy", raising=False)
    variables = environment()
    assert variables["SHELL"] == "/bin/sh"
    assert variables["NO_PROXY"] == "internal.example,localhost,127.0.0.1"
    assert variables["no_proxy"] == variables["NO_PROXY"]


def test_our_own_servers_are_asked_past_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    from flows.server import free_port

    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    group = ProcessGroup(command, tmp_path, output=subprocess.DEVNULL)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}/", group, tmp_path / "log", seconds=30)
        assert reach(f"http://127.0.0.1:{port}/") == ""
    finally:
        group.stop()
