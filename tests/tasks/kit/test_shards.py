"""Shards: only what is new is computed, a kill leaves nothing half done, results do not depend on workers."""

from pathlib import Path
from typing import Any

import pytest

from tasks.kit.shards import Shard, map_shards
from tasks.params.runtime import RuntimeParams


def double(number: int, output: Path) -> dict[str, Any]:
    """Write twice the number; leave a trace of each call beside the output's folder."""
    with (output.parent / "calls.txt").open("a") as calls:
        calls.write(f"{number}\n")
    if number == 13:
        output.write_text("half")
        raise ValueError("thirteen")
    output.write_text(str(2 * number))
    return {"number": number}


def shards(numbers: list[int]) -> list[Shard]:
    return [Shard(f"{number:03}.txt", {"number": number}, (number,)) for number in numbers]


def run(tmp_path: Path, numbers: list[int], workers: int = 1) -> tuple[list[int], list[int]]:
    """Numbers computed in this run, and the values that lie in the output."""
    results = map_shards(
        double,
        shards(numbers),
        stage="clean",
        store=tmp_path / "store",
        output=tmp_path / "out",
        runtime=RuntimeParams(num_workers=workers),
    )
    values = [int(path.read_text()) for path in sorted((tmp_path / "out").iterdir())]
    return [result.figures["number"] for result in results if result.computed], values


def test_a_second_run_computes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, [1, 2, 3]) == ([1, 2, 3], [2, 4, 6])
    assert run(tmp_path, [1, 2, 3]) == ([], [2, 4, 6])


def test_an_added_shard_costs_only_itself(tmp_path: Path) -> None:
    run(tmp_path, [1, 2, 3])
    assert run(tmp_path, [1, 2, 3, 4]) == ([4], [2, 4, 6, 8])


def test_a_removed_shard_leaves_the_output_and_the_store(tmp_path: Path) -> None:
    run(tmp_path, [1, 2, 3])
    assert run(tmp_path, [1, 3]) == ([], [2, 6])
    assert run(tmp_path, [1, 2, 3])[0] == [2]


def test_after_a_failure_the_finished_shards_are_not_done_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="thirteen"):
        run(tmp_path, [1, 2, 13])
    assert not (tmp_path / "out").exists()
    assert run(tmp_path, [1, 2, 3]) == ([3], [2, 4, 6])


def test_a_result_without_its_marker_is_not_believed(tmp_path: Path) -> None:
    run(tmp_path, [1])
    marker = next((tmp_path / "store").glob("*.json"))
    marker.unlink()
    marker.with_name(marker.stem).write_text("rubbish")
    assert run(tmp_path, [1]) == ([1], [2])


def test_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    assert run(tmp_path / "two", [1, 2, 3, 4], workers=2) == run(tmp_path / "one", [1, 2, 3, 4])


def test_a_result_that_was_edited_in_the_output_is_made_again(tmp_path: Path) -> None:
    """The output may be a second name of the stored file: an edit there would come back at every run."""
    run(tmp_path, [1, 2])
    (tmp_path / "out" / "001.txt").write_text("99")
    assert run(tmp_path, [1, 2]) == ([1], [2, 4])
