"""The deployment of prefect.yaml on a real server with a real worker, started from `/`."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.children import ProcessGroup, environment
from flows.server import Server

ROOT = Path(__file__).resolve().parents[2]
STAGES = ["end", "left", "list", "right", "words"]


@pytest.fixture(scope="module")
def workspace(toy_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project, with the flow in it, as a clone has."""
    folder = Path(shutil.copytree(toy_template, tmp_path_factory.mktemp("workspace") / "toy", symlinks=True))
    for name in ("flows", "tasks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def deployed(
    server: Server,
    variables: dict[str, str],
    workspace: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """The pool, the deployment, and a worker whose folder is `/`."""
    _prefect(variables, "work-pool", "create", "train-llm", "--type", "process")
    _prefect(variables, "deploy", "--all")
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "train-llm", "--type", "process"]
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    with log.open("w") as output:
        worker = ProcessGroup(command, Path("/"), {**variables, "TRAIN_LLM_ROOT": str(workspace)}, output)
    try:
        yield
    finally:
        worker.stop()


def test_the_deployment_runs_each_stage_as_a_task_run_of_its_name(
    server: Server,
    variables: dict[str, str],
    workspace: Path,
    deployed: None,
    ran: Callable[[Path], list[str]],
) -> None:
    command = ("deployment", "run", "train-llm/default", "--watch", "--watch-timeout", "700")
    _prefect(variables, *command, "--param", "git_ref=main")
    runs = _wait_for_task_runs(server, 5)
    assert sorted(run["name"] for run in runs) == STAGES
    assert {run["state"]["type"] for run in runs} == {"COMPLETED"}
    record = json.loads(next((workspace / "runs").glob("*/record.json")).read_text())
    assert record["state"] == "completed"
    assert (workspace / "runs" / record["run"] / "dvc.lock").exists()
    assert not ran(workspace), "a run of a commit must not touch the workspace"
    assert not list((workspace / ".state" / "worktrees").glob("*/.git"))
    table = _call(variables, "flows.comment", f"metrics-{record['commit'][:12]}")
    assert "| words | documents | - |" in table


def test_a_failed_stage_fails_the_deployment_run_and_what_follows_does_not_start(
    server: Server,
    variables: dict[str, str],
    workspace: Path,
    deployed: None,
    ran: Callable[[Path], list[str]],
) -> None:
    (workspace / "behaviour-left").write_text("fail 1")
    (workspace / "ran.log").unlink(missing_ok=True)
    _prefect(
        variables,
        *("deployment", "run", "train-llm/default", "--watch", "--watch-timeout", "700"),
        *("--param", 'overrides=["evaluate.seed=8", "report.title=another"]'),
        expected=1,
    )
    assert "end" not in ran(workspace)
    assert "left" in ran(workspace)


def test_the_schedule_is_off_and_a_second_run_waits(
    server: Server, variables: dict[str, str], deployed: None
) -> None:
    deployment = _ask(server, "/deployments/name/train-llm/default", None)
    assert [schedule["active"] for schedule in deployment["schedules"]] == [False]
    assert deployment["global_concurrency_limit"]["limit"] == 1
    assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"


@pytest.mark.parametrize(("value", "said"), [(None, "is not set where"), ("/nowhere", "is /nowhere where")])
def test_a_worker_without_a_clone_is_told_which_variable_it_lacks(
    monkeypatch: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    from prefect.deployments.steps import run_shell_script

    if value is None:
        monkeypatch.delenv("TRAIN_LLM_ROOT", raising=False)
    else:
        monkeypatch.setenv("TRAIN_LLM_ROOT", value)
    step = yaml.safe_load((ROOT / "prefect.yaml").read_text())["pull"][0]
    with pytest.raises(RuntimeError, match=f"TRAIN_LLM_ROOT {said}.*must name a clone"):
        asyncio.run(run_shell_script(**step["prefect.deployments.steps.run_shell_script"]))


def _prefect(variables: dict[str, str], *arguments: str, expected: int = 0) -> None:
    _call(variables, "prefect", "--no-prompt", *arguments, expected=expected)


def _call(variables: dict[str, str], module: str, *arguments: str, expected: int = 0) -> str:
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={name: value for name, value in environment(variables).items() if name != "TRAIN_LLM_ROOT"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=750,
    )
    assert result.returncode == expected, result.stdout + result.stderr
    return result.stdout


def _wait_for_task_runs(server: Server, number: int) -> list[dict[str, Any]]:
    """Task runs reach the server's tables through its event queue: soon, not at once."""
    deadline = time.monotonic() + 60
    while True:
        runs: list[dict[str, Any]] = _ask(server, "/task_runs/filter", {})
        finished = [run for run in runs if run["state"] and run["state"]["type"] == "COMPLETED"]
        if len(finished) >= number or time.monotonic() > deadline:
            return runs
        time.sleep(0.2)


def _ask(server: Server, path: str, body: dict[str, Any] | None) -> Any:
    request = urllib.request.Request(
        f"{server.url}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
