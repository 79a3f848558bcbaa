"""`train-llm run` as its users meet it: no-op, work, failure, interruption, a run of a commit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.params.tree import override_params

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ran = Callable[[Path], list[str]]


def read_lock(folder: Path) -> Any:
    """dvc.lock as values: DVC keeps the stages in the order in which they ended, which branches may swap."""
    return yaml.safe_load((folder / "dvc.lock").read_text())


def test_nothing_to_do_is_said_without_starting_prefect(done: Path, train_llm: Run, ran: Ran) -> None:
    before = ran(done)
    result = train_llm(done, "run")
    assert result.returncode == 0, result.stderr
    assert "Nothing to do: every stage is up to date." in result.stdout
    assert ran(done) == [*before, "list"]
    assert not (done / ".state" / "prefect").exists()


def test_a_run_starts_a_server_of_its_own_and_leaves_no_process(
    done: Path,
    train_llm: Run,
    ran: Ran,
    nothing_lives: Callable[[Path], None],
    migrated: Callable[[Path], None],
) -> None:
    migrated(done)
    before = ran(done)
    result = train_llm(done, "run", "-S", "report.title=other")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "params.yaml: report.title: train-llm -> other" in result.stdout
    assert ran(done) == [*before, "list", "end"]
    nothing_lives(done)
    assert "Error" not in result.stderr
    assert train_llm(done, "plan").returncode == 0


def test_a_store_that_is_away_while_it_is_listed_is_asked_again(done: Path, train_llm: Run) -> None:
    (done / "behaviour-list").write_text("away-once")
    result = train_llm(done, "run")
    assert result.returncode == 0, result.stderr
    assert "list: error: the store is away: trying again in 0 s" in result.stdout


def test_a_failed_stage_is_shown_with_its_last_lines_its_log_and_the_way_on(
    done: Path, train_llm: Run, ran: Ran, variables: dict[str, str]
) -> None:
    (done / "behaviour-left").write_text("fail 3")
    result = train_llm(
        done, "run", "-S", "evaluate.seed=8", "-S", "quantize.max_blocks=7", variables=variables
    )
    assert result.returncode == 3
    assert "Stage left failed: left: error: asked to fail" in result.stderr
    assert "go on with: train-llm run\n" in result.stderr
    assert "Traceback" not in result.stderr
    log = next(line for line in result.stderr.splitlines() if line.startswith("Whole log: "))
    assert "asked to fail" in Path(log.removeprefix("Whole log: ")).read_text()
    assert "not started" in result.stdout  # end
    (done / "behaviour-left").unlink()
    before = ran(done)
    again = train_llm(done, "run", variables=variables)
    assert again.returncode == 0, again.stderr
    assert ran(done) == [*before, "list", "left", "end"], "the branch that had worked is not run again"


def test_the_flow_and_plain_dvc_repro_leave_the_same_lock(
    toy: Path, tmp_path: Path, train_llm: Run, variables: dict[str, str], repro: Callable[..., None]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(toy, other, symlinks=True)
    result = train_llm(toy, "run", variables=variables)
    assert result.returncode == 0, result.stderr
    repro(other)
    assert read_lock(toy) == read_lock(other)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        signal.SIGKILL,
    ],
)
def test_a_stopped_run_leaves_no_process_and_the_next_one_goes_on(
    done: Path,
    train_llm: Run,
    variables: dict[str, str],
    nothing_lives: Callable[[Path], None],
    number: signal.Signals,
) -> None:
    (done / "behaviour-left").write_text("hang")
    override_params(done / "params.yaml", ["evaluate.seed=8"])
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run"],
        cwd=done,
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait_for(done / "hanging.pid", process)
        process.send_signal(number)
        output = process.communicate(timeout=120)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == (-9 if number == signal.SIGKILL else 130), output
    assert "Traceback" not in output
    nothing_lives(done)
    (done / "behaviour-left").unlink()
    again = train_llm(done, "run", variables=variables)
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_failed_run_of_a_commit_keeps_its_worktree_and_the_next_one_goes_on_there(
    done: Path, tmp_path: Path, train_llm: Run, ran: Ran, variables: dict[str, str]
) -> None:
    """And leaves the workspace alone, pushes what ran, says how to go on; the lock of its end can be adopted."""
    before = ran(done)
    (done / "dvc.lock").unlink()
    (done / ".dvc" / "config.local").write_text(
        f"[core]\n    remote = store\n['remote \"store\"']\n    url = {tmp_path / 'store'}\n"
    )
    command = ("run", "--git-ref", "HEAD", "-S", "evaluate.seed=8")
    failed = train_llm(done, *command, variables={**variables, "BEHAVIOUR_left": "fail 1"})
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "go on with: train-llm run --git-ref HEAD -S evaluate.seed=8\n" in failed.stderr
    record = json.loads(next((done / "runs").glob("*/record.json")).read_text())
    results = {stage["stage"]: stage["result"] for stage in record["stages"]}
    assert results["words"] == "run-cache", "the worktree shares the cache"
    assert any((tmp_path / "store").rglob("*")), "what ran before the failure is on the remote"
    worktree = next((done / ".state" / "worktrees").glob("*/.git")).parent
    assert f"warning: {worktree} is kept" in failed.stderr
    again = train_llm(done, *command, variables=variables)
    assert again.returncode == 0, again.stdout + again.stderr
    assert not worktree.exists()
    assert not (done / "dvc.lock").exists()
    assert ran(done) == before
    run = max(path.parent.name for path in (done / "runs").glob("*/record.json"))
    refused = train_llm(done, "adopt", run)
    assert refused.returncode == 1
    assert "params.yaml differs from the one of run" in refused.stderr
    override_params(done / "params.yaml", ["evaluate.seed=8"])
    assert train_llm(done, "adopt", run).returncode == 0
    assert (done / "dvc.lock").read_bytes() == (done / "runs" / run / "dvc.lock").read_bytes()


def test_an_error_that_ends_a_run_is_no_interruption(
    toy: Path, train_llm: Run, variables: dict[str, str]
) -> None:
    result = train_llm(toy, "run", "lefft", "--git-ref", "HEAD", variables=variables)
    assert result.returncode == 2, result.stdout + result.stderr
    record = json.loads(next((toy / "runs").glob("*/record.json")).read_text())
    assert record["state"] == "failed"


def _wait_for(path: Path, process: "subprocess.Popen[str]", seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)
