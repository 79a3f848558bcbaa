"""The record of a run: `runs/<id>/` with record.json, and the dvc.lock and params.yaml that belong together."""

import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flows.stage import Outcome
from tasks.kit.console import redact
from tasks.kit.errors import InputError, ParamsError
from tasks.kit.files import read_json, write_atomically, write_json
from tasks.kit.paths import Paths


@dataclass
class Record:
    """What one run was asked, where it ran, and what became of each stage; rewritten as it goes."""

    home: Path
    run: str
    workspace: Path
    targets: Sequence[str]
    overrides: Sequence[str]
    git_ref: str | None
    commit: str
    flow_run_id: str
    started_at: str = field(default_factory=lambda: _now())
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    state: str = "running"
    warnings: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.home / "runs" / self.run

    def add(self, outcome: Outcome) -> None:
        """Note what became of a stage."""
        self.outcomes[outcome.stage] = outcome
        self.save()

    def warn(self, warning: str) -> None:
        """Note what went wrong beside the stages."""
        self.warnings.append(warning)
        self.save()

    def finish(self, state: str) -> None:
        """Note how the run ended, and keep its dvc.lock and params.yaml: the ones that others can adopt."""
        self.state = state
        paths = Paths(self.workspace)
        for path in (paths.dvc_lock, paths.params, paths.dvc_yaml):
            if path.exists():
                write_atomically(self.folder / path.name, path.read_bytes())
        self.save()

    def save(self) -> None:
        stages = [
            {**outcome.as_dict(), "tail": [redact(line) for line in outcome.tail]}
            for outcome in self.outcomes.values()
        ]
        write_json(
            self.folder / "record.json",
            {
                "run": self.run,
                "state": self.state,
                "flow_run_id": self.flow_run_id,
                "commit": self.commit,
                "git_ref": self.git_ref,
                "host": socket.gethostname(),
                "targets": list(self.targets),
                "overrides": [redact(override) for override in self.overrides],
                "started_at": self.started_at,
                "written_at": _now(),
                "warnings": [redact(warning) for warning in self.warnings],
                "stages": stages,
            },
        )


def new_run() -> str:
    """A name for a run: sorts by time, unique among runs that start in the same second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"


def commit_of(root: Path) -> str:
    """Commit of a checkout, with `+` when tracked files differ from it; empty outside of git."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return ""
    return f"{head}+" if _git(root, "status", "--porcelain", "--untracked-files=no") else head


def adopt(root: Path, run: str) -> Path:
    """Put the dvc.lock of a run in the place of the workspace's. Returns the path of the former one, kept.

    Raises:
        ParamsError: no such run; lists those there are.
        InputError: dvc.yaml or params.yaml here are not those of the run, so its lock would describe other inputs.
    """
    folder = root / "runs" / run
    if Path(run).name != run or not (folder / "record.json").exists():
        known = sorted((p.parent.name for p in (root / "runs").glob("*/record.json")), reverse=True)
        raise ParamsError(f"there is no run {run!r}; the last are: {', '.join(known[:5]) or 'none'}")
    if not (folder / "dvc.lock").exists():
        state = read_json(folder / "record.json").get("state")
        raise InputError(f"run {run} kept no dvc.lock (its state: {state}): nothing to adopt")
    for name in ("dvc.yaml", "params.yaml"):
        _check_same(root / name, folder / name, run)
    former = root / "runs" / "dvc.lock.before-adopt"
    if (root / "dvc.lock").exists():
        shutil.copyfile(root / "dvc.lock", former)
    write_atomically(root / "dvc.lock", (folder / "dvc.lock").read_bytes())
    return former


def _check_same(here: Path, there: Path, run: str) -> None:
    import yaml

    values = [
        yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None for path in (here, there)
    ]
    for value in values:
        if isinstance(value, dict):
            value.pop("runtime", None)  # enters no key
    if values[0] != values[1]:
        raise InputError(
            f"{here.name} differs from the one of run {run} ({there}): its dvc.lock belongs to other inputs. "
            f"Check out the run's commit, or copy its {here.name}, then adopt again"
        )


def _git(root: Path, *arguments: str) -> str | None:
    result = subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return result.stdout.strip() if result.returncode == 0 else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
