"""One stage through DVC: verdicts, logs, exit codes, and that nothing of it lives on."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flows.graph import plan
from flows.locks import check_host, claim_for_host, clear_dead_locks, find_dead_locks, hold_workspace
from flows.stage import StageFailed, hold_object_store, run_stage
from tasks.kit.errors import EnvironmentProblem
from tasks.params.tree import override_params

SECRET = "hunter2-and-more"


def test_dvc_says_whether_a_stage_ran_was_restored_or_stayed(done: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_stage(done, "left", log).result == "unchanged"
    override_params(done / "params.yaml", ["evaluate.seed=8"])
    assert run_stage(done, "left", log).result == "ran"
    override_params(done / "params.yaml", ["evaluate.seed=7"])
    assert run_stage(done, "left", log).result == "run-cache"


@pytest.mark.parametrize(
    ("asked", "code", "again"),
    [(1, 1, False), (2, 2, False), (3, 3, True), (77, 1, False), (137, 1, True), (130, 1, False)],
)
def test_the_exit_code_of_the_stage_is_passed_on_and_decides_over_a_retry(
    done: Path, tmp_path: Path, asked: int, code: int, again: bool
) -> None:
    (done / "behaviour-left").write_text(f"fail {asked}")
    override_params(done / "params.yaml", ["evaluate.seed=8"])
    with pytest.raises(StageFailed) as caught:
        run_stage(done, "left", tmp_path / "log")
    assert caught.value.exit_code == code
    assert caught.value.outcome.worth_a_retry is again
    assert caught.value.outcome.reason == "left: error: asked to fail"
    assert any("asked to fail" in line for line in caught.value.outcome.tail)


def test_the_whole_log_is_kept_without_secrets_and_few_lines_are_forwarded(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_SECRET", SECRET)
    (done / "behaviour-left").write_text("chat")
    override_params(done / "params.yaml", ["evaluate.seed=8"])
    forwarded: list[str] = []
    outcome = run_stage(done, "left", tmp_path / "log", forward=forwarded.append)
    log = (tmp_path / "log").read_text()
    assert "line 0 ********" in log
    assert "line 2999 ********" in log
    assert SECRET not in log + "".join(forwarded)
    assert len(forwarded) < 100 + 10 * outcome.seconds
    assert any("lines are in the log file only" in line for line in forwarded)


def test_a_stage_over_its_time_is_stopped_with_all_its_processes(done: Path, tmp_path: Path) -> None:
    (done / "behaviour-left").write_text("hang")
    override_params(done / "params.yaml", ["evaluate.seed=8"])
    failures: list[StageFailed] = []

    def run() -> None:
        with pytest.raises(StageFailed, match=r"meta\.timeout_seconds") as caught:
            run_stage(done, "left", tmp_path / "log", timeout_seconds=12)
        failures.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 60
    while not ((done / "hanging.pid").exists() and (done / "hanging.pid").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    thread.join()
    assert failures[0].outcome.worth_a_retry
    assert _ended(int((done / "hanging.pid").read_text()))


def test_a_stage_that_a_signal_ended_is_worth_a_retry(done: Path, tmp_path: Path) -> None:
    (done / "behaviour-left").write_text("killed")
    override_params(done / "params.yaml", ["evaluate.seed=8"])
    with pytest.raises(StageFailed) as caught:
        run_stage(done, "left", tmp_path / "log")
    assert caught.value.outcome.worth_a_retry


def test_the_object_store_is_held_for_params_with_keys_of_another_commit(toy: Path) -> None:
    text = (toy / "params.yaml").read_text()
    (toy / "params.yaml").write_text(f"{text}\nfuture: {{key: 1}}\n")
    with hold_object_store(toy):
        pass


def test_a_stage_whose_dvc_waits_for_the_lock_is_not_lost(done: Path, tmp_path: Path) -> None:
    """DVC gives up after 3 s without `--wait-for-lock`, and the result of the finished stage is gone."""
    import fcntl

    override_params(done / "params.yaml", ["evaluate.seed=8"])
    with (done / ".dvc" / "tmp" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(6, fcntl.flock, (lock, fcntl.LOCK_UN))
        release.start()
        began = time.monotonic()
        outcome = run_stage(done, "left", tmp_path / "log")
        release.join()
    assert outcome.result == "ran"
    assert time.monotonic() - began > 5
    assert next(stage for stage in plan(done, ["left"]) if stage.name == "left").verdict == "fresh"


@pytest.mark.parametrize("content", ["", '{"wri', '{"write": 3}', "[]"])
def test_a_lock_file_cut_short_is_removed(done: Path, content: str) -> None:
    path = done / ".dvc" / "tmp" / "rwlock"
    path.write_text(content)
    assert clear_dead_locks(done) == [".dvc/tmp/rwlock was cut short by a killed run: removed"]
    assert not path.exists()


def test_locks_of_dead_and_of_reused_pids_go_and_those_of_a_living_process_stay(done: Path) -> None:
    """A pid whose process began after the lock file was written belongs to another process by now."""
    import json
    import os
    import subprocess
    import sys

    path = done / ".dvc" / "tmp" / "rwlock"
    alive = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(4)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)  # dvc"])
    try:
        holders = [{"pid": pid, "cmd": "dvc repro"} for pid in (alive.pid, other.pid, 2**22 - 3)]
        path.write_text(json.dumps({"write": {"a": holders[1]}, "read": {"b": holders, "c": holders[2:]}}))
        os.utime(path, (time.time() - 2, time.time() - 2))
        before = path.read_bytes()
        assert find_dead_locks(done) == [
            ".dvc/tmp/rwlock held 4 locks of runs that no longer live: the next run drops them"
        ]
        assert path.read_bytes() == before, "looking changes nothing"
        assert clear_dead_locks(done) == [".dvc/tmp/rwlock held 4 locks of runs that no longer live: dropped"]
        assert json.loads(path.read_text()) == {"write": {}, "read": {"b": holders[:1]}}
        assert clear_dead_locks(done) == []
    finally:
        for process in (alive, other):
            process.kill()
            process.wait()


def test_a_workspace_of_another_host_is_refused(tmp_path: Path) -> None:
    check_host(tmp_path)
    assert not (tmp_path / ".state").exists(), "looking leaves no marker"
    claim_for_host(tmp_path)
    claim_for_host(tmp_path)
    (tmp_path / ".state" / "host").write_text("elsewhere\n")
    with pytest.raises(EnvironmentProblem, match="belongs to host 'elsewhere'"):
        check_host(tmp_path)


def test_a_workspace_is_held_once(tmp_path: Path) -> None:
    with hold_workspace(tmp_path) as first, hold_workspace(tmp_path) as second:
        assert (first, second) == (True, False)
    with hold_workspace(tmp_path) as again:
        assert again


def test_single_stages_side_by_side_lose_no_lock_entry(
    done: Path, tmp_path: Path, ran: Callable[[Path], list[str]]
) -> None:
    override_params(done / "params.yaml", ["evaluate.seed=8", "quantize.max_blocks=7"])
    threads = [
        threading.Thread(target=run_stage, args=(done, name, tmp_path / name)) for name in ("left", "right")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verdicts = {stage.name: stage.verdict for stage in plan(done)}
    assert (verdicts["left"], verdicts["right"]) == ("fresh", "fresh")
    assert sorted(ran(done)[-2:]) == ["left", "right"]


def _ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # left to whoever collects orphans
    except psutil.NoSuchProcess:
        return True
