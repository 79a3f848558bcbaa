"""Where a run works: the workspace itself, or a worktree of one commit over the same cache."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.children import environment
from flows.locks import claim_for_host, hold_workspace, workspace_holder
from flows.records import commit_of
from tasks.kit.errors import EnvironmentProblem, ParamsError, StageError
from tasks.kit.paths import Paths

# What a worktree shares with its project: stores that are safe for many users. Not `train`: one trainer a checkpoint.
# Not `shards`: a run removes the shards that it did not need, and the other would lose its own.
_SHARED_STATE = ("s3", "mlflow")

# Run by the worktree's own code: a commit may have parameters that this code does not know yet.
_OVERRIDE = """
import sys
from pathlib import Path
from tasks.kit.errors import TrainLLMError
from tasks.params.tree import override_params
try:
    print("\\n".join(override_params(Path("params.yaml"), sys.argv[1:])))
except TrainLLMError as error:
    sys.exit(str(error))
"""


@dataclass
class Workspace:
    """The folder in which a run works. A worktree is kept until a run of its commit has `completed` there."""

    folder: Path
    is_worktree: bool = False
    completed: bool = False

    def override(self, overrides: Sequence[str]) -> list[str]:
        """Write overrides into params.yaml, checked by the code of that folder. Returns one line a change.

        Raises:
            ParamsError: for a key that does not exist or a value that does not fit.
        """
        if not self.is_worktree:
            from tasks.params.tree import override_params

            return override_params(Paths(self.folder).params, overrides)
        if not overrides:
            return []
        result = subprocess.run(
            [sys.executable, "-c", _OVERRIDE, *overrides],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if result.returncode:
            raise ParamsError(result.stderr.strip())
        return result.stdout.splitlines()


@contextlib.contextmanager
def open_workspace(root: Path, git_ref: str | None) -> Iterator[Workspace]:
    """The workspace of a run, held for it alone.

    Without `git_ref` it is `root`; while another run has that, a worktree of the commit that is checked out.
    Two `dvc repro` in one workspace lose results, so there is never a second one.

    Raises:
        EnvironmentProblem: the workspace is another host's, or is held while it has changes that are in no commit,
            or another run of the same commit is under way.
        ParamsError: git does not know `git_ref`.
    """
    claim_for_host(root)
    if git_ref:
        with _worktree(root, git_ref) as worktree:
            yield worktree
        return
    with hold_workspace(root) as held:
        if held:
            yield Workspace(root)
            return
    commit = commit_of(root)
    if not commit or commit.endswith("+"):
        raise EnvironmentProblem(
            f"another run (process {workspace_holder(root)}) holds this workspace, and its changes are in no commit: "
            "wait for that run to end, or commit, and run again (it then works in a worktree of its own)"
        )
    with _worktree(root, commit) as worktree:
        yield worktree


@contextlib.contextmanager
def _worktree(root: Path, git_ref: str) -> Iterator[Workspace]:
    """A checkout of one commit in `.state/worktrees/COMMIT`, with its checkpoints from a try that did not complete."""
    commit = _resolve(root, git_ref)
    folder = Paths(root).state.resolve() / "worktrees" / commit[:12]
    guard = folder.with_name(f"{folder.name}.hold")
    with hold_workspace(guard) as held:
        if not held:
            raise EnvironmentProblem(
                f"another run (process {workspace_holder(guard)}) of commit {commit[:12]} is under way in {folder}: "
                "wait for its end, and run again"
            )
        _check_out(root, folder, commit)
        _share(root, folder)
        worktree = Workspace(folder, is_worktree=True)
        yield worktree
        if worktree.completed:
            _git(root, "worktree", "remove", "--force", str(folder))


def _check_out(root: Path, folder: Path, commit: str) -> None:
    """Make the worktree, or bring a kept one back to its commit: the overrides of the former try go, `.state` stays."""
    if not (folder / ".git").exists():
        _git(root, "worktree", "prune")
        _git(root, "worktree", "add", "--force", "--detach", str(folder), commit)
        return
    index_lock = Path(_git(folder, "rev-parse", "--git-path", "index.lock"))
    (folder / index_lock).unlink(missing_ok=True)  # of a git that was killed: the folder is held by this run
    _git(folder, "reset", "--quiet", "--hard", commit)


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
