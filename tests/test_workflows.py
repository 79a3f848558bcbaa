"""The workflows are safe and well formed, by the checkers that others use; each must find a planted fault too."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent

BAD = """
name: bad
on: pull_request_target
jobs:
  bad:
    runs-on: ubuntu-24.4
    steps:
      - uses: actions/checkout@v7
      - run: echo ${{ github.event.pull_request.title }}
"""


def check(tool: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(BIN / tool), *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_there_are_workflows_to_check() -> None:
    assert [path.name for path in WORKFLOWS] == ["check.yml", "train.yml"]


def test_zizmor_finds_nothing_unsafe() -> None:
    result = check("zizmor", "--offline", "--no-progress", ".github")
    assert result.returncode == 0, result.stdout + result.stderr


def test_actionlint_finds_no_mistake() -> None:
    result = check("actionlint", "-no-color", *map(str, WORKFLOWS))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.dependabot", [ROOT / ".github" / "dependabot.yml"]),
    ],
)
def test_the_files_fit_their_schema(schema: str, files: list[Path]) -> None:
    result = check("check-jsonschema", "--builtin-schema", schema, *map(str, files))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("tool", [("zizmor", "--offline", "--no-progress"), ("actionlint",)])
def test_the_checkers_do_find_a_planted_fault(tool: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "bad.yml").write_text(BAD)
    result = check(*tool, str(folder / "bad.yml"))
    assert result.returncode != 0
    assert "bad.yml" in result.stdout + result.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_rights_are_given_job_by_job_and_no_job_runs_for_ever(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    assert "concurrency" in workflow
    for job in workflow["jobs"].values():
        assert job["permissions"]
        assert job["timeout-minutes"] <= 360
