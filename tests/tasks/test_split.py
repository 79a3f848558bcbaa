"""Split keeps groups together, moves nothing when documents are added, and loses no id without counting it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from tasks.kit.errors import InputError
from tasks.kit.files import file_digest, folder_digest, write_json
from tasks.kit.paths import Paths
from tasks.model.blocks import Blocks
from tasks.model.packing import cut_into_shards
from tasks.model.token_files import INDEX_SCHEMA, dtype_of, map_index, map_tokens, read_manifest, write_index
from tasks.params.split import SplitParams
from tasks.split import split
from tasks.text.sides import SIDES, side_of, split_key

VOCABULARY_SIZE = 1000
PARAMS = SplitParams(block_size=16)


def document(number: int, group: str | None = None) -> dict[str, object]:
    """A document whose 1 to 60 ids, and then 0, the end, follow from its number."""
    rng = np.random.default_rng(number)
    identity = xxhash.xxh3_128_hexdigest(str(number).encode())
    cluster = xxhash.xxh3_64_hexdigest(f"cluster {number}".encode())
    ids = [*rng.integers(1, VOCABULARY_SIZE, rng.integers(1, 61)).tolist(), 0]
    return {
        "id": identity,
        "source": "s",
        "group": group,
        "cluster": cluster,
        "characters": 3 * len(ids),
        "ids": ids,
    }


def write_token_shards(paths: Paths, shards: dict[str, list[dict]], params: SplitParams = PARAMS) -> None:
    """What tokenize would have written of these documents."""
    paths.token_shards.mkdir(parents=True, exist_ok=True)
    entries = []
    for name, documents in shards.items():
        ids = np.array([i for d in documents for i in d["ids"]], dtype_of(VOCABULARY_SIZE))
        ids.tofile(paths.token_shards / f"{name}.bin")
        ends = np.cumsum([len(d["ids"]) for d in documents]).tolist()
        sides = [side_of(split_key(d["group"], d["cluster"]), params) for d in documents]
        rows = [{**d, "end": end, "side": side} for d, end, side in zip(documents, ends, sides, strict=True)]
        write_index(paths.token_shards / f"{name}.idx", pa.Table.from_pylist(rows, INDEX_SCHEMA))
        entries.append({"name": name, "documents": len(documents), "tokens": len(ids)})
    manifest = {
        "dtype": "uint16",
        "vocabulary_size": VOCABULARY_SIZE,
        "tokenizer_digest": "t",
        "end_of_document_id": 0,
    }
    write_json(paths.token_shards / "manifest.json", {**manifest, "shards": entries})


def make(folder: Path, shards: dict[str, list[dict]], params: SplitParams = PARAMS) -> Paths:
    paths = Paths(folder)
    write_token_shards(paths, shards, params)
    split(params, paths)
    return paths


def rows_of(paths: Paths, side: str) -> list[dict]:
    """All rows of a side's indexes, each with the ids that its shard holds of it."""
    rows = []
    for shard in read_manifest(paths.split)["sides"][side]["shards"]:
        ids = map_tokens(paths.split / side / f"{shard['name']}.bin", dtype_of(VOCABULARY_SIZE))
        index = map_index(paths.split / side / f"{shard['name']}.idx").to_pylist()
        rows += [{**row, "ids": ids[row["end"] - row["tokens"] : row["end"]].tolist()} for row in index]
    return rows


DOCUMENTS = [
    document(number, group=f"book {number % 40}" if number % 3 == 0 else None) for number in range(1500)
]


def test_every_id_is_in_a_block_or_counted_as_dropped(tmp_path):
    paths = make(tmp_path, {"a": DOCUMENTS[:700], "b": DOCUMENTS[700:]})
    figures = split(PARAMS, paths)
    by_id = {d["id"]: d for d in DOCUMENTS}
    for side in SIDES:
        rows, blocks = rows_of(paths, side), Blocks.open(paths.split, side)
        there = [d for d in DOCUMENTS if side_of(split_key(d["group"], d["cluster"]), PARAMS) == side]
        assert {row["id"] for row in rows} <= {d["id"] for d in there}
        assert all(row["ids"] == by_id[row["id"]]["ids"][: row["tokens"]] for row in rows)
        assert all(row["ids"][-1] == 0 for row in rows[:-1])
        assert blocks.gather(np.arange(len(blocks))).reshape(-1).tolist() == [
            i for row in rows for i in row["ids"]
        ]
        figure = figures.sides[side]
        assert figure.documents == len(there) and figure.tokens == 16 * figure.blocks == 16 * len(blocks)
        assert figure.tokens + figure.dropped_tail_tokens == sum(len(d["ids"]) for d in there)
        assert figure.dropped_tail_tokens < 16


def test_no_group_and_no_cluster_is_on_two_sides(tmp_path):
    paths = make(tmp_path, {"a": DOCUMENTS})
    keys = [{split_key(r["group"], r["cluster"]) for r in rows_of(paths, side)} for side in SIDES]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert any(key.startswith("book") for key in keys[1])


def test_names_and_order_of_the_input_change_nothing(tmp_path):
    one = make(tmp_path / "one", {"a": DOCUMENTS[:700], "b": DOCUMENTS[700:]})
    other = make(tmp_path / "other", {"x": DOCUMENTS[900:][::-1], "y": [], "z": DOCUMENTS[:900]})
    assert folder_digest(one.split) == folder_digest(other.split)


def test_ten_more_documents_move_none_of_the_first(tmp_path):
    before = make(tmp_path / "before", {"a": DOCUMENTS})
    more = [document(number) for number in range(5000, 5010)]
    after = make(tmp_path / "after", {"a": [*more, *DOCUMENTS]})
    new = {d["id"] for d in more}
    for side in SIDES:
        old_order = [row["id"] for row in rows_of(before, side)]
        new_order = [row["id"] for row in rows_of(after, side) if row["id"] not in new]
        shortest = min(len(old_order), len(new_order))
        assert old_order[:shortest] == new_order[:shortest] and abs(len(old_order) - len(new_order)) <= 1


def test_documents_are_shuffled_and_another_seed_shuffles_otherwise(tmp_path):
    one = [r["id"] for r in rows_of(make(tmp_path / "1", {"a": DOCUMENTS}), "train")]
    seeded = PARAMS.model_copy(update={"seed": 18})
    other = [r["id"] for r in rows_of(make(tmp_path / "2", {"a": DOCUMENTS}, seeded), "train")]
    arrived = [d["id"] for d in DOCUMENTS if d["id"] in set(one)]
    assert one != arrived
    both = set(one) & set(other)
    assert [i for i in one if i in both] != [i for i in other if i in both]


def test_large_sides_are_cut_into_shards_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.split.SHARD_TOKENS", 5_000)
    paths = make(tmp_path, {"a": DOCUMENTS})
    train = read_manifest(paths.split)["sides"]["train"]
    assert len(train["shards"]) > 3
    assert all(shard["tokens"] <= 5_000 + 61 for shard in train["shards"][:-1])
    assert len(Blocks.open(paths.split, "train")) == train["blocks"]
    assert train["dropped_tail_tokens"] < 16 * len(train["shards"])
    for shard in train["shards"]:
        assert file_digest(paths.split / "train" / f"{shard['name']}.bin") == shard["digest"]
        assert file_digest(paths.split / "train" / f"{shard['name']}.idx") == shard["index_digest"]


def test_a_remainder_below_one_block_joins_the_last_shard(tmp_path):
    from tasks.model.packing import Documents

    counts = np.array([100, 100, 5])
    documents = Documents(np.zeros(3, int), np.arange(3), np.array([0, 100, 200]), counts)
    assert list(cut_into_shards(documents, 16, 100)) == [slice(0, 1), slice(1, 3)]


def test_a_document_longer_than_many_blocks_is_packed_whole(tmp_path):
    long = {**document(1), "ids": [*range(1, 900), 0]}
    paths = make(tmp_path, {"a": [*DOCUMENTS, {**long, "id": "f" * 32, "cluster": DOCUMENTS[1]["cluster"]}]})
    rows = [r for side in SIDES for r in rows_of(paths, side) if r["id"] == "f" * 32]
    assert len(rows) == 1 and rows[0]["ids"] == long["ids"]


def test_a_side_without_one_block_stops_with_both_numbers(tmp_path):
    paths = Paths(tmp_path)
    write_token_shards(paths, {"a": DOCUMENTS[:4]})
    with pytest.raises(
        InputError,
        match=r"test would have no block.*\n(.*\n)*  test: 0 tokens of 0 documents, a block needs 16",
    ) as e:
        split(PARAMS, paths)
    assert "split.block_size" in str(e.value) and "share 5%" in str(e.value)


def test_token_shards_of_another_seed_are_refused(tmp_path):
    paths = Paths(tmp_path)
    write_token_shards(paths, {"a": DOCUMENTS})
    with pytest.raises(InputError, match="run the stage tokenize again"):
        split(PARAMS.model_copy(update={"seed": 18}), paths)


def test_a_token_shard_that_was_cut_off_is_named(tmp_path):
    paths = Paths(tmp_path)
    write_token_shards(paths, {"a": DOCUMENTS})
    path = paths.token_shards / "a.bin"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"a\.bin holds .* ids, its \.idx ends at"):
        split(PARAMS, paths)
