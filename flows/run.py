"""`train-llm run`: list, plan, and only where there is work start the flow, on a server of our own if need be."""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.children import stopped_by_signals
from flows.forecast import as_text, duration, planned_with
from flows.graph import PlannedStage, has_remote, plan
from flows.locks import claim_for_host, clear_dead_locks, held_by_caller, hold_workspace
from flows.records import commit_of
from flows.stage import Outcome, StageFailed, hold_object_store, run_stage
from tasks.kit.console import redact
from tasks.kit.errors import TrainLLMError
from tasks.kit.paths import Paths

if TYPE_CHECKING:
    from flows.records import Record

_WORDS = {
    "ran": "done",
    "run-cache": "restored",
    "unchanged": "unchanged",
    "fresh": "fresh",
    "failed": "FAILED",
    "not started": "not started",
}


def run(root: Path, stage: str | None, overrides: Sequence[str], git_ref: str | None) -> int:
    """Bring `stage` (all without it) up to date. Returns the exit code.

    Raises:
        TrainLLMError: before anything was started, or because the server did not come up.
    """
    command = resume_command(stage, git_ref, overrides)
    if not git_ref:
        before = planned_with(root, stage, overrides)  # refuses what is wrong before anything is touched
        with hold_workspace(root) as held:
            if held:
                with stopped_by_signals():
                    claim_for_host(root)
                    code = _prepare(root, stage, overrides, before)
                if code is not None:
                    return code
                # One hold from the plan to the end: nobody changes params.yaml in between.
                token = held_by_caller.set(True)
                try:
                    return _flow(root, stage, [], None, True, resume_command(stage, None))
                finally:
                    held_by_caller.reset(token)
        command = resume_command(stage, commit_of(root) or None, overrides)  # in a worktree, if at all
    return _flow(root, stage, list(overrides), git_ref, False, command)


def _prepare(
    root: Path, stage: str | None, overrides: Sequence[str], before: Sequence[PlannedStage]
) -> int | None:
    """Write the overrides, list the sources, print the plan. Returns an exit code when that was all."""
    from tasks.params.tree import override_params

    for change in override_params(Paths(root).params, overrides):
        _say(f"params.yaml: {change}")
    for line in clear_dead_locks(root):
        _say(line)
    with hold_object_store(root):
        try:
            _list_sources(root, [planned for planned in before if planned.is_source])
        except StageFailed as error:
            return _report_failure([error.outcome], resume_command(stage, None))
    stages = plan(root, [stage] if stage else ())
    _say(as_text(stages))
    return None if any(planned.has_work for planned in stages) else 0


def _list_sources(root: Path, sources: Sequence[PlannedStage]) -> None:
    """Run the stages that always run and need no other: cheap listings, on which the plan rests."""
    for planned in sources:
        log = Paths(root).state / "logs" / "latest-listing" / f"{planned.name}.log"
        log.unlink(missing_ok=True)
        _show(_with_retries(root, planned, log))


def _with_retries(root: Path, planned: PlannedStage, log: Path) -> Outcome:
    """Run a stage as often as the flow would."""
    schedule = planned.schedule
    for _ in range(schedule.retries):
        try:
            return run_stage(root, planned.name, log, schedule.timeout_seconds, has_remote(root))
        except StageFailed as error:
            if not error.outcome.worth_a_retry:
                raise
            _say(f"{error.outcome.reason}: trying again in {schedule.retry_delay_seconds:g} s")
            time.sleep(schedule.retry_delay_seconds)
    return run_stage(root, planned.name, log, schedule.timeout_seconds, has_remote(root))


def _flow(
    root: Path, stage: str | None, overrides: list[str], git_ref: str | None, listed: bool, command: str
) -> int:
    """Run the flow in this process, against PREFECT_API_URL or a server of our own. Returns the exit code."""
    from flows.server import client_environment, prefect_server

    with contextlib.ExitStack() as stack:
        home = client_environment(root)
        if os.environ.get("PREFECT_API_URL"):
            home.pop("PREFECT_HOME")  # its profiles may hold the key of that server
        os.environ.update(home)
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # our lines, not Prefect's
        server = None
        if not os.environ.get("PREFECT_API_URL"):
            _say("Starting a Prefect server for this run (set PREFECT_API_URL to use one that is there) ...")
            began = time.monotonic()
            server = stack.enter_context(prefect_server(root))
            os.environ["PREFECT_API_URL"] = server.url
            stack.callback(os.environ.pop, "PREFECT_API_URL")
        import flows.pipeline  # noqa: F401  (Prefect: seconds in which the server starts)

        if server:
            server.wait()
            _say(f"Prefect answers at {server.url} after {duration(time.monotonic() - began)}.")
        stack.callback(_send_what_is_queued)
        return _call_flow(stage, overrides, git_ref, listed, command)


def _send_what_is_queued() -> None:
    """Hand logs and events to the server while it lives: at exit Prefect would retry against a dead one for 11 s."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=10)


def _call_flow(
    stage: str | None, overrides: list[str], git_ref: str | None, listed: bool, command: str
) -> int:
    from flows.pipeline import exit_code, on_outcome, on_start, train_llm

    records: list[Record] = []
    on_start.set(records.append)
    on_outcome.set(_show)
    state = train_llm(
        git_ref=git_ref,
        targets=[stage] if stage else None,
        overrides=overrides or None,
        listed=listed,
        return_state=True,
    )
    record = records[0] if records else None
    error = state.result(raise_on_failure=False) if not state.is_completed() else None
    if record:
        failed = [outcome for outcome in record.outcomes.values() if outcome.result == "failed"]
        _say(f"Record of this run: {record.folder}")
        for warning in record.warnings:
            _complain(f"train-llm: warning: {warning}")
        if failed:
            return _report_failure(failed, command)
    if isinstance(error, TrainLLMError):
        raise error
    if not state.is_completed():
        _complain(f"train-llm: error: the flow ended as {state.name}: {state.message or ''}")
    return exit_code(record, error) if error else int(not state.is_completed())


def _report_failure(failed: list[Outcome], command: str) -> int:
    """Say of each failed stage what its last lines were, where the whole log is, and how to go on."""
    sys.stdout.flush()
    for outcome in failed:
        lines = [f"\nStage {outcome.stage} failed: {outcome.reason}"]
        lines += [f"    {line}" for line in outcome.tail]
        lines += [f"Whole log: {outcome.log}"]
        _complain("\n".join(lines))
    _complain(f"Repair the cause, then go on with: {command}")
    return failed[0].exit_code or 1


def resume_command(stage: str | None, git_ref: str | None, overrides: Sequence[str] = ()) -> str:
    """The command that goes on after a failure.

    In the workspace the overrides are in params.yaml by then; a run of a commit begins with that commit's.
    """
    words = ["train-llm", "run", *([stage] if stage else [])]
    if git_ref:
        words += ["--git-ref", git_ref]
        words += [word for override in overrides for word in ("-S", override)]
    return shlex.join(words)


def _show(outcome: Outcome) -> None:
    reason = f"  {outcome.reason}" if outcome.reason and outcome.result in ("failed", "not started") else ""
    _say(f"{outcome.stage:<12} {_WORDS[outcome.result]:<11} {duration(outcome.seconds):>10}{reason}")


def _say(text: str) -> None:
    sys.stdout.write(f"{redact(text)}\n")
    sys.stdout.flush()


def _complain(text: str) -> None:
    sys.stderr.write(f"{redact(text)}\n")
    sys.stderr.flush()
