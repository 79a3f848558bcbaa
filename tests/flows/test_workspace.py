"""Where a run works: a commit's worktree is kept until a run of it has completed, and belongs to one run at a time."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from flows.workspace import open_workspace
from tasks.kit.errors import EnvironmentProblem, ParamsError
from tasks.params.tree import override_params

ROOT = Path(__file__).resolve().parents[2]


def commit(folder: Path) -> None:
    author = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    for command in (("add", "-A"), (*author, "commit", "-qm", "Change")):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)


def test_a_second_try_of_a_commit_finds_the_first_ones_checkpoints_and_the_commits_parameters(
    toy: Path,
) -> None:
    with open_workspace(toy, "HEAD") as first:
        assert first.override(["evaluate.seed=8"]) == ["evaluate.seed: 7 -> 8"]
        checkpoint = first.folder / ".state" / "train" / "step-1"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_text("weights")
    with open_workspace(toy, "main") as second:
        assert second.folder == first.folder
        assert checkpoint.read_text() == "weights"
        assert (second.folder / "params.yaml").read_bytes() == (toy / "params.yaml").read_bytes()
        second.completed = True
    assert not second.folder.exists()


def test_a_git_that_was_killed_in_the_worktree_does_not_block_the_next_try(toy: Path) -> None:
    with open_workspace(toy, "HEAD") as first:
        name = ("git", "rev-parse", "--git-path", "index.lock")
        found = subprocess.run(name, cwd=first.folder, check=True, capture_output=True, text=True)
        (first.folder / found.stdout.strip()).touch()
    with open_workspace(toy, "HEAD") as second:
        assert second.folder == first.folder


def test_two_runs_of_one_commit_at_once_do_not_meet(toy: Path) -> None:
    with (
        open_workspace(toy, "HEAD"),
        pytest.raises(EnvironmentProblem, match=r"another run \(process \d+\) of commit"),
        open_workspace(toy, "HEAD"),
    ):
        pass


def test_a_second_run_beside_another_works_in_a_worktree_and_is_refused_with_changes_in_no_commit(
    toy: Path,
) -> None:
    with open_workspace(toy, None) as first:
        assert first.folder == toy
        with open_workspace(toy, None) as second:
            assert second.folder != toy
        override_params(toy / "params.yaml", ["evaluate.seed=8"])
        with (
            pytest.raises(EnvironmentProblem, match=rf"another run \(process {os.getpid()}\) holds this"),
            open_workspace(toy, None),
        ):
            pass


def test_runs_side_by_side_share_the_object_store_but_no_shards(toy: Path) -> None:
    """A run removes the shards that it did not need."""
    with open_workspace(toy, "HEAD") as worktree:
        state = worktree.folder / ".state"
        assert (state / "s3").resolve() == (toy / ".state" / "s3").resolve()
        assert not (state / "shards").exists()


def test_an_override_of_a_parameter_that_only_the_commit_knows_is_taken(toy: Path) -> None:
    shutil.copytree(ROOT / "tasks", toy / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    schema = toy / "tasks" / "params" / "report.py"
    schema.write_text(f"{schema.read_text().rstrip()}\n    future_title: str = 'a'\n")
    params = toy / "params.yaml"
    params.write_text(params.read_text().replace("\nreport:\n", "\nreport:\n  future_title: a\n"))
    commit(toy)
    with open_workspace(toy, "HEAD") as worktree:
        assert worktree.override(["report.future_title=b"]) == ["report.future_title: a -> b"]
        with pytest.raises(ParamsError, match="report has no 'futur_title'; did you mean 'future_title'"):
            worktree.override(["report.futur_title=b"])
