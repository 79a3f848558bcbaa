"""Blocks read the packed files as they lie, and notice files that are not what the manifest says."""

from pathlib import Path

import numpy as np
import pytest

from tasks.kit.errors import InputError
from tasks.kit.files import write_json
from tasks.model.blocks import Blocks
from tasks.model.token_files import dtype_of, narrow

BLOCK_SIZE = 8


def write_split(folder: Path, counts: list[int], vocabulary_size: int = 500) -> np.ndarray:
    """A split whose train side has shards of so many blocks; returns all its blocks."""
    dtype = dtype_of(vocabulary_size)
    rows = np.random.default_rng(0).integers(0, vocabulary_size, (sum(counts), BLOCK_SIZE)).astype(dtype)
    (folder / "train").mkdir(parents=True)
    shards, start = [], 0
    for number, count in enumerate(counts):
        rows[start : start + count].tofile(folder / "train" / f"{number:05}.bin")
        shards.append({"name": f"{number:05}", "tokens": count * BLOCK_SIZE})
        start += count
    manifest = {"dtype": dtype.name, "block_size": BLOCK_SIZE, "vocabulary_size": vocabulary_size}
    empty = {"shards": []}
    write_json(
        folder / "manifest.json",
        {**manifest, "sides": {"train": {"shards": shards}, "validation": empty, "test": empty}},
    )
    return rows


@pytest.mark.parametrize("vocabulary_size", [500, 65_536, 70_000])
def test_gather_gives_the_blocks_in_the_order_asked_for_across_shards(tmp_path, vocabulary_size):
    rows = write_split(tmp_path, [3, 1, 5], vocabulary_size)
    blocks = Blocks.open(tmp_path, "train")
    indices = np.array([8, 0, 3, 2, 8, 4])
    gathered = blocks.gather(indices)
    assert len(blocks) == 9 and gathered.dtype == np.int64
    assert np.array_equal(gathered, rows[indices])


def test_one_block_is_a_view_of_the_file_not_a_copy(tmp_path):
    rows = write_split(tmp_path, [3, 2])
    blocks = Blocks.open(tmp_path, "train")
    assert all(np.array_equal(blocks[i], rows[i]) for i in range(5))
    assert np.array_equal(blocks[-1], rows[4])
    assert np.shares_memory(blocks[3], blocks.shards[1])


def test_blocks_beyond_the_end_are_refused(tmp_path):
    write_split(tmp_path, [3])
    blocks = Blocks.open(tmp_path, "train")
    with pytest.raises(IndexError, match="3 of 3"):
        blocks[3]
    with pytest.raises(IndexError):
        blocks.gather(np.array([0, -1]))


def test_the_split_opens_as_a_dataset_of_the_same_ids(tmp_path):
    rows = write_split(tmp_path, [1030, 7])
    dataset = Blocks.open(tmp_path, "train").as_dataset()
    assert dataset.column_names == ["input_ids", "attention_mask"] and len(dataset) == 1037
    assert dataset[1033]["input_ids"] == rows[1033].tolist()
    assert np.array_equal(dataset.with_format("numpy")[:]["input_ids"], rows)
    assert dataset[1036]["attention_mask"] == [1] * BLOCK_SIZE
    assert dataset.shuffle(seed=1).select(range(3))[0]["attention_mask"] == [1] * BLOCK_SIZE


def test_a_shard_that_was_cut_off_is_named(tmp_path):
    write_split(tmp_path, [3, 2])
    path = tmp_path / "train" / "00001.bin"
    path.write_bytes(path.read_bytes()[:-BLOCK_SIZE])
    with pytest.raises(InputError, match=r"00001\.bin holds 12 tokens, the manifest says 16"):
        Blocks.open(tmp_path, "train")


def test_a_missing_split_says_what_to_run(tmp_path):
    with pytest.raises(InputError, match="run the stages tokenize and split first"):
        Blocks.open(tmp_path, "train")


def test_an_id_beyond_the_vocabulary_never_wraps():
    with pytest.raises(InputError, match="token id 65536 lies outside the vocabulary of 65536"):
        narrow(np.array([1, 65_536]), 65_536, "shard x")
    assert narrow(np.array([1, 65_535]), 65_536, "shard x").tolist() == [1, 65_535]
