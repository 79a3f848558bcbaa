"""Where a run works: the workspace itself, or a worktree of one commit over the same cache."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from flows.locks import check_host, hold_workspace, workspace_holder
from flows.records import commit_of
from tasks.kit.errors import EnvironmentProblem, ParamsError, StageError
from tasks.kit.paths import Paths

# What a worktree shares with its project: stores that are safe for many users. Not `train`: one trainer a checkpoint.
_SHARED_STATE = ("s3", "mlflow", "shards")


@contextlib.contextmanager
def open_workspace(root: Path, git_ref: str | None) -> Iterator[Path]:
    """The folder in which a run works, held for it alone.

    Without `git_ref` it is `root`; while another run has that, a worktree of the commit that is checked out.
    Two `dvc repro` in one workspace lose results, so there is never a second one.

    Raises:
        EnvironmentProblem: the workspace is another host's, or is held while it has changes that are in no commit.
        ParamsError: git does not know `git_ref`.
    """
    check_host(root)
    if git_ref:
        with _worktree(root, git_ref) as folder:
            yield folder
        return
    with hold_workspace(root) as held:
        if held:
            yield root
            return
    commit = commit_of(root)
    if not commit or commit.endswith("+"):
        raise EnvironmentProblem(
            f"another run (process {workspace_holder(root)}) holds this workspace, and its changes are in no commit: "
            "wait for that run to end, or commit, and run again (it then works in a worktree of its own)"
        )
    with _worktree(root, commit) as folder:
        yield folder


@contextlib.contextmanager
def _worktree(root: Path, git_ref: str) -> Iterator[Path]:
    """A checkout of one commit in `.state/worktrees`; kept when the run fails, so that a second try resumes there."""
    commit = _resolve(root, git_ref)
    for number in range(1, 100):
        folder = Paths(root).state.resolve() / "worktrees" / f"{commit[:12]}-{number}"
        with hold_workspace(folder.with_name(f"{folder.name}.hold")) as held:
            if not held:
                continue
            if not (folder / ".git").exists():
                _git(root, "worktree", "prune")
                _git(root, "worktree", "add", "--force", "--detach", str(folder), commit)
            _share(root, folder)
            yield folder
            _git(root, "worktree", "remove", "--force", str(folder))
            return
    raise EnvironmentProblem(f"99 runs of commit {commit[:12]} hold a worktree each: wait for some to end")


def _resolve(root: Path, git_ref: str) -> str:
    if git_ref.startswith("-"):
        raise ParamsError(f"git_ref {git_ref!r} is no name of a commit")
    query = ("rev-parse", "--quiet", "--verify", "--end-of-options", f"{git_ref}^{{commit}}")
    try:
        return _git(root, *query)
    except StageError:
        with contextlib.suppress(StageError):
            _git(root, "fetch", "--quiet", "--all")
    try:
        return _git(root, *query)
    except StageError:
        raise ParamsError(
            f"git_ref {git_ref!r} is no commit, branch or tag of {root.resolve()}, also after `git fetch --all`: "
            "push it first"
        ) from None


def _share(root: Path, folder: Path) -> None:
    """Give a worktree the project's cache and stores."""
    from dvc.config import Config

    project = Config(str(root / ".dvc"))
    cache = project.get("cache", {}).get("dir") or str((root / ".dvc" / "cache").resolve())
    local = project.load_one("local")
    local.setdefault("cache", {})["dir"] = cache
    with Config(str(folder / ".dvc")).edit("local") as settings:
        settings.update(local)
    for name in _SHARED_STATE:
        target = Paths(root).state.resolve() / name
        target.mkdir(parents=True, exist_ok=True)
        link = Paths(folder).state / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target, target_is_directory=True)


def _git(root: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
    )
    if result.returncode:
        raise StageError(f"git {arguments[0]} failed: {result.stderr.strip() or result.returncode}")
    return result.stdout.strip()
