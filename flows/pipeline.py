"""The Prefect flow `train-llm`: its task graph is dvc.yaml's, DVC says whether a stage runs, Prefect when.

Prefect's own caching is off: a second cache could only disagree with DVC's.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed
from prefect.runtime import flow_run
from prefect.states import Completed, Failed, State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.children import ProcessGroup, stopped_by_signals
from flows.graph import PlannedStage, has_remote, plan
from flows.locks import clear_dead_locks
from flows.metrics import metrics_table
from flows.records import Record, commit_of, new_run
from flows.stage import Outcome, StageFailed, hold_object_store, run_stage
from flows.workspace import Workspace, open_workspace
from tasks.kit.errors import EnvironmentProblem, TrainLLMError
from tasks.kit.paths import Paths
from tasks.kit.processes import bypass_proxies_on_loopback

_BYTES_A_STAGE = 6 << 30  # memory that a second stage beside the first must find free

# What the command line hangs in to print a line a stage; nothing elsewhere.
on_outcome: ContextVar[Callable[[Outcome], None]] = ContextVar("on_outcome", default=lambda outcome: None)
on_start: ContextVar[Callable[[Record], None]] = ContextVar("on_start", default=lambda record: None)


@flow(
    name="train-llm",
    task_runner=ThreadPoolTaskRunner(max_workers=64),  # threads that wait; `_places` limits those that work
    persist_result=False,
    validate_parameters=True,
)
def train_llm(
    git_ref: str | None = None,
    targets: list[str] | None = None,
    overrides: list[str] | None = None,
    listed: bool = False,
) -> State[Any]:
    """Bring every stage (or `targets` and what they need) up to date.

    Args:
        git_ref: Commit, branch or tag to run, in a worktree of its own; none: the workspace as it is.
        targets: Stages; none: all.
        overrides: `section.key=value` written into params.yaml first.
        listed: The stages that always run have just run (the command line does so before it plans).
    """
    home = Path.cwd()
    bypass_proxies_on_loopback()
    with stopped_by_signals(), open_workspace(home, git_ref) as workspace:
        state = _run(home, workspace, git_ref, targets or [], overrides or [], listed)
        workspace.completed = state.is_completed()
    return state


def _run(
    home: Path,
    workspace: Workspace,
    git_ref: str | None,
    targets: list[str],
    overrides: list[str],
    listed: bool,
) -> State[Any]:
    logger = get_run_logger()
    root = workspace.folder
    for change in workspace.override(overrides):
        logger.info("params.yaml: %s", change)
    record = Record(
        home, new_run(), root, targets, overrides, git_ref, commit_of(root), str(flow_run.get_id() or "")
    )
    record.save()
    on_start.get()(record)
    state = "interrupted"
    try:
        for line in clear_dead_locks(root):
            logger.warning(line)
        with hold_object_store(root):
            if not listed:
                _run_stages(record, [stage for stage in plan(root, targets) if stage.is_source])
            if not _failures(record):
                _run_stages(record, list(plan(root, targets)), listed=True)
            _share_results(record)
        state = "failed" if _failures(record) else "completed"
        if _failures(record) and workspace.is_worktree:
            record.warn(f"{root} is kept: the next run of this commit goes on there")
    except Exception:
        state = "failed"
        raise
    finally:
        record.finish(state)
        _write_artifacts(record)
    if failures := _failures(record):
        return Failed(message="; ".join(f"{o.stage}: {o.reason}" for o in failures))
    results = [outcome.result for outcome in record.outcomes.values()]
    return Completed(message=f"{len(results)} stages, {results.count('ran')} ran; record: runs/{record.run}")


def _run_stages(record: Record, stages: list[PlannedStage], listed: bool = False) -> None:
    """Submit one task a stage, each after those it needs, and note the outcomes as they come."""
    places = _places()
    futures: dict[str, PrefectFuture[Any]] = {}
    for stage in stages:
        if stage.name in record.outcomes:
            continue
        schedule = stage.schedule
        reason = "dvc.lock matches" if stage.verdict == "fresh" else None
        if listed and stage.is_source and not stage.has_work:
            reason = "listed just now"
        futures[stage.name] = bring_up_to_date.with_options(
            name=stage.name,
            task_run_name=stage.name,
            retries=schedule.retries,
            retry_delay_seconds=schedule.retry_delay_seconds,
            tags=set(schedule.tags),
        ).submit(
            stage.name,
            _Job(record, places, schedule.timeout_seconds, has_remote(record.workspace)),
            reason,
            wait_for=[futures[name] for name in stage.after if name in futures],
        )
    names = {future.task_run_id: name for name, future in futures.items()}
    for future in as_completed(list(futures.values())):
        future.wait()  # takes the state from the thread; `.state` alone would ask the server, which may lag behind
        outcome = _outcome_of(names[future.task_run_id], future.state)
        record.add(outcome)
        on_outcome.get()(outcome)


class _Job:
    """What a stage's task needs besides its name; not a parameter that Prefect would look into."""

    def __init__(
        self, record: Record, places: threading.BoundedSemaphore, timeout: float | None, pull: bool
    ) -> None:
        self.root, self.places, self.timeout, self.pull = record.workspace, places, timeout, pull
        self.log_folder = Paths(record.home).state / "logs" / record.run


def _worth_a_retry(task: Any, task_run: Any, state: State[Any]) -> bool:
    """A wrong parameter, a gate that refused or a loss that is no number is the same at the second try."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StageFailed) and error.outcome.worth_a_retry


@task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_worth_a_retry)
def bring_up_to_date(stage: str, job: _Job, fresh_because: str | None) -> Any:
    """Run a stage through DVC, or end at once as Cached when it is known to be fresh."""
    logger = get_run_logger()
    if fresh_because:
        return Completed(
            name="Cached", message=fresh_because, data=Outcome(stage, "fresh", reason=fresh_because)
        )
    with job.places:
        outcome = run_stage(
            job.root,
            stage,
            job.log_folder / f"{stage}.log",
            job.timeout,
            job.pull,
            lambda line: logger.info(line),
        )
    if outcome.result in ("run-cache", "unchanged"):
        words = {"run-cache": "restored from the run cache", "unchanged": "inputs and outputs did not change"}
        outcome = replace(outcome, reason=words[outcome.result])
        return Completed(name="Cached", message=outcome.reason, data=outcome)
    return outcome


def _outcome_of(stage: str, state: State[Any]) -> Outcome:
    result = state.result(raise_on_failure=False) if state.is_final() and not state.is_pending() else None
    if isinstance(result, Outcome):
        return result
    if isinstance(result, StageFailed):
        return result.outcome
    if state.name == "NotReady" or state.is_pending():
        return Outcome(stage, "not started", reason="a stage that it needs failed")
    return Outcome(stage, "failed", reason=state.message or state.name or "unknown", exit_code=1)


def _failures(record: Record) -> list[Outcome]:
    return [outcome for outcome in record.outcomes.values() if outcome.result == "failed"]


def _places() -> threading.BoundedSemaphore:
    """How many stages may work side by side: one, and one more for every 6 GiB that are free, up to four."""
    import psutil

    return threading.BoundedSemaphore(max(1, min(4, psutil.virtual_memory().available // _BYTES_A_STAGE)))


def _share_results(record: Record) -> None:
    """Push objects and run cache to the DVC remote, where one is configured: other machines then restore them.

    After a failure too: what ran before it is worth as much. That failure is then the news, not one of the push.
    """
    failures = _failures(record)
    if not has_remote(record.workspace) or (failures and not _ran(record)):
        return
    log = Paths(record.home).state / "logs" / record.run / "push.log"
    result = push.submit(str(record.workspace), str(log)).result(raise_on_failure=not failures)
    if isinstance(result, Exception):
        get_run_logger().warning("%s", result)
        record.warn(str(result))


def _ran(record: Record) -> bool:
    return any(outcome.result == "ran" for outcome in record.outcomes.values())


@task(cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=5)
def push(root: str, log: str) -> None:
    """`dvc push --run-cache`."""
    with Path(log).open("a", encoding="utf-8") as file:
        group = ProcessGroup([sys.executable, "-m", "dvc", "push", "--run-cache"], Path(root), output=file)
        try:
            code = group.process.wait()
        finally:
            group.stop()
    if code:
        raise EnvironmentProblem(
            f"the results are here but not on the DVC remote (dvc push exited with {code}): see {log}, check the "
            "remote and its keys, and run again"
        )


def _write_artifacts(record: Record) -> None:
    """The table of stages, and the metrics as Markdown, where the run is seen."""
    rows = [
        {"stage": o.stage, "result": o.result, "seconds": o.seconds, "reason": o.reason}
        for o in record.outcomes.values()
    ]
    table = metrics_table(record.workspace)
    try:
        create_table_artifact(
            key="stages", table=rows, description=f"What became of each stage in {record.run}"
        )
        if table:
            keys = ["metrics"] + ([f"metrics-{record.commit[:12]}"] if record.git_ref else [])
            for key in keys:
                create_markdown_artifact(key=key, markdown=table, description=f"Metrics of {record.run}")
    except Exception as error:  # the server may be gone; the run's own record is on disk
        logging.getLogger("train_llm").warning("the artifacts were not written: %s", error)


def exit_code(record: Record | None, error: BaseException | None) -> int:
    """Exit code of a run: that of the first stage that failed, else that of the error, else 0."""
    if record and (failures := _failures(record)):
        return failures[0].exit_code or 1
    if isinstance(error, TrainLLMError):
        return error.exit_code
    return 1 if error else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    train_llm()
