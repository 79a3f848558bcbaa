"""What the ranks of a training report."""

import errno
from pathlib import Path

import pytest

from tasks.kit.files import read_json
from tasks.model.launch import report_failure


def test_a_full_disk_under_a_rank_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    report_failure(tmp_path, 1, OSError(errno.ENOSPC, "No space left on device", "step-3"))
    report = read_json(tmp_path / "failures" / "1.json")
    assert report["kind"] == "EnvironmentProblem"
    assert "full at step-3" in report["message"]


def test_a_report_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2hunter2")
    (tmp_path / "failures").mkdir()
    report_failure(tmp_path, 0, RuntimeError("bad hunter2hunter2"))
    assert read_json(tmp_path / "failures" / "0.json")["message"] == "RuntimeError: bad ********"
