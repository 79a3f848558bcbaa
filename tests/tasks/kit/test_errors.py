"""Faults of the machine are told as such, with what to do."""

import errno
import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tasks.kit.errors import machine_fault
from tasks.kit.executor import executor
from tasks.params.runtime import RuntimeParams

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "data/x"), "full at data/x .*make room"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), r"full \(Disk quota exceeded"),
        (PermissionError(errno.EACCES, "Permission denied", "data"), "no right .* at data .*owner and mode"),
        (OSError(errno.EROFS, "Read-only file system", "data"), "no right .* at data .*mount"),
        (MemoryError(), r"not enough memory.*runtime\.num_workers"),
    ],
)
def test_a_fault_of_the_machine_says_what_to_do(error: Exception, words: str) -> None:
    problem = machine_fault(error)
    assert problem is not None
    assert problem.exit_code == 3
    with pytest.raises(type(problem), match=words):
        raise problem


def test_other_errors_are_no_fault_of_the_machine() -> None:
    assert machine_fault(FileNotFoundError(errno.ENOENT, "No such file", "x")) is None
    assert machine_fault(ValueError("x")) is None


def test_a_killed_worker_is_a_fault_of_the_machine() -> None:
    with executor(RuntimeParams(num_workers=2)) as pool, pytest.raises(BrokenProcessPool) as caught:
        pool.submit(os._exit, 137).result()
    assert "a worker process was killed" in str(machine_fault(caught.value))


def test_a_stage_without_the_right_to_write_ends_with_3_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".state").symlink_to("/sys/kernel")  # where not even root may make a folder
    monkeypatch.chdir(tmp_path)
    code = "import sys; from tasks.__main__ import main; sys.exit(main(['report']))"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "no right to read or write at .state/locks" in result.stderr
    assert "Traceback" not in result.stderr
