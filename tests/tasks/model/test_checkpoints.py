"""Checkpoints are whole or not there."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.model import checkpoints


def write(root: Path, step: int, best_step: int | None = None) -> Path:
    folder = checkpoints.step_folder(root, step)
    temporary = checkpoints.begin(folder)
    (temporary / "engine").mkdir()
    (temporary / "engine" / "part.pt").write_bytes(bytes(range(200)) * 10)
    checkpoints.commit(folder, {"step": step, "best_step": best_step})
    return folder


def write_best(root: Path, step: int) -> Path:
    folder = checkpoints.best_folder(root, step)
    (checkpoints.begin(folder) / "weights").write_bytes(b"x")
    checkpoints.commit(folder, {})
    return folder


def newest_step(root: Path) -> int | None:
    newest = checkpoints.newest_whole(root)
    return newest.step if newest else None


def test_the_newest_is_used_with_the_state_that_was_sealed(tmp_path: Path) -> None:
    write(tmp_path, 3)
    write(tmp_path, 12)
    newest = checkpoints.newest_whole(tmp_path)
    assert newest is not None
    assert (newest.step, newest.state["step"]) == (12, 12)


def test_nothing_there_is_nothing(tmp_path: Path) -> None:
    assert checkpoints.newest_whole(tmp_path) is None


def damage_by_cutting(folder: Path) -> str:
    part = folder / "engine" / "part.pt"
    part.write_bytes(part.read_bytes()[:-1])
    return "has 1,999 bytes in place of 2,000"


def damage_by_flipping(folder: Path) -> str:
    part = folder / "engine" / "part.pt"
    part.write_bytes(b"\xff" + part.read_bytes()[1:])
    return "does not have the bytes that were written"


def damage_by_removing(folder: Path) -> str:
    (folder / "engine" / "part.pt").unlink()
    return "engine/part.pt is missing"


def damage_manifest(folder: Path) -> str:
    (folder / "manifest.json").write_text('{"state": ')
    return "manifest.json is damaged"


def damage_by_no_manifest(folder: Path) -> str:
    (folder / "manifest.json").unlink()
    return "manifest.json is missing"


@pytest.mark.parametrize(
    "damage",
    [damage_by_cutting, damage_by_flipping, damage_by_removing, damage_manifest, damage_by_no_manifest],
)
def test_a_damaged_newest_is_named_and_the_one_before_is_used(
    damage: Callable[[Path], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 4)
    newest = write(tmp_path, 8)
    words = damage(newest)
    assert newest_step(tmp_path) == 4
    assert str(newest) in caplog.text
    assert words in caplog.text


def test_a_save_that_was_killed_counts_for_nothing_and_is_cleared(tmp_path: Path) -> None:
    write(tmp_path, 4)
    temporary = checkpoints.begin(checkpoints.step_folder(tmp_path, 8))
    (temporary / "part").write_bytes(b"half")
    assert newest_step(tmp_path) == 4
    assert not temporary.exists()


def test_a_stale_higher_number_is_replaced_when_its_step_comes_again(tmp_path: Path) -> None:
    stale = write(tmp_path, 8)
    (stale / "engine" / "part.pt").write_bytes(b"old")
    write(tmp_path, 8)
    assert checkpoints.problem_of(stale) is None


def test_pruning_keeps_the_newest_and_the_best_weights_that_they_need(tmp_path: Path) -> None:
    for step in (1, 2, 5):
        write_best(tmp_path, step)
    for step, best in ((2, 1), (4, 2), (6, 5), (8, 5)):
        write(tmp_path, step, best)
    checkpoints.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best-00000005",
        "step-00000006",
        "step-00000008",
    ]


def test_a_checkpoint_whose_best_weights_are_gone_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_best(tmp_path, 3)
    write(tmp_path, 4, best_step=3)
    best = write_best(tmp_path, 7)
    write(tmp_path, 8, best_step=7)
    (best / "weights").unlink()
    assert newest_step(tmp_path) == 4
    assert "best-00000007" in caplog.text


def write_training(root: Path, name: str, days_old: float, finished: bool = True) -> Path:
    training = root / name
    if finished:
        checkpoints.begin(training / "final")
        checkpoints.commit(training / "final", {})
    write(training, 4)
    then = time.time() - days_old * 86_400
    for path in training.iterdir():
        os.utime(path, (then, then))
    return training


def test_of_a_finished_training_only_the_result_stays(tmp_path: Path) -> None:
    training = write_training(tmp_path, "one", days_old=0)
    write_best(training, 4)
    (training / "history.jsonl").write_text("")
    checkpoints.clear_finished(training)
    assert sorted(path.name for path in training.iterdir()) == ["final", "history.jsonl"]


def test_other_trainings_go_when_newer_ones_are_finished_or_nobody_went_on_with_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for age in range(5):
        write_training(tmp_path, f"finished-{age}", days_old=age)
    write_training(tmp_path, "current", days_old=100)
    write_training(tmp_path, "unfinished-13", days_old=13, finished=False)
    write_training(tmp_path, "unfinished-15", days_old=15, finished=False)
    with caplog.at_level("INFO"):
        checkpoints.prune_trainings(tmp_path, "current")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "current",
        "finished-0",
        "finished-1",
        "finished-2",
        "unfinished-13",
    ]
    assert "finished-3 removed: 3 newer ones are kept" in caplog.text
    assert "unfinished-15 removed: unfinished, and not touched for 14 days" in caplog.text
