"""Documents of token shards into packed shards of whole blocks, in an order that no listing changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tasks.kit.errors import InputError
from tasks.kit.files import atomic_path, file_digest
from tasks.model.token_files import PACKED_INDEX_SCHEMA, TokenShard, map_index, map_tokens, write_index

# 64 million ids: 128 MB of uint16. One shard at a time is in memory, whatever the corpus.
SHARD_TOKENS = 2**26


@dataclass(frozen=True)
class Documents:
    """The documents of one side in packing order: where each lies (arrays of one length).

    Attributes:
        owner: number of the token shard.
        row: row in its index.
        start, count: position of the first id in its .bin, and number of ids.
    """

    owner: np.ndarray
    row: np.ndarray
    start: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, part: slice | np.ndarray) -> "Documents":
        return Documents(self.owner[part], self.row[part], self.start[part], self.count[part])


class TokenShards:
    """The token shards of tokenize, all of them mapped.

    Raises:
        InputError: a file is missing, or ids and index do not belong together.
    """

    def __init__(self, folder: Path, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.ids = [map_tokens(folder / f"{name}.bin", dtype) for name in names]
        self.indexes = [map_index(folder / f"{name}.idx") for name in names]
        for name, ids, index in zip(names, self.ids, self.indexes, strict=True):
            end = index["end"][-1].as_py() if len(index) else 0
            if end != len(ids):
                raise InputError(
                    f"{folder / name}.bin holds {len(ids):,} ids, its .idx ends at {end:,}: it was cut off or changed; "
                    "run the stage tokenize again"
                )

    def documents(self, side: str, seed: int) -> Documents:
        """The documents of `side`, sorted by the hash of (seed, id): a shuffle that an added document leaves as it is.

        Needs 40 bytes a document.
        """
        parts: list[tuple[np.ndarray, ...]] = []
        for number, index in enumerate(self.indexes):
            ends = index["end"].to_numpy()
            starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
            rows = np.flatnonzero(pc.equal(index["side"], side).to_numpy())
            ids = index["id"].take(pa.array(rows)).to_pylist()
            keys = np.fromiter((_position(seed, identity) for identity in ids), np.uint64, len(rows))
            parts.append((keys, np.full(len(rows), number), rows, starts[rows], (ends - starts)[rows]))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return Documents(*columns[1:])[np.argsort(columns[0], kind="stable")]

    def table(self, documents: Documents) -> pa.Table:
        """Their rows of the indexes, in the order of `documents`."""
        owners = np.unique(documents.owner)
        tables = [self.indexes[o].take(pa.array(documents.row[documents.owner == o])) for o in owners]
        order = np.concatenate([np.flatnonzero(documents.owner == o) for o in owners])
        return pa.concat_tables(tables).take(pa.array(np.argsort(order))).combine_chunks()


def _position(seed: int, identity: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{seed}\0{identity}".encode())


def cut_into_shards(documents: Documents, block_size: int, shard_tokens: int) -> Iterator[slice]:
    """Runs of documents of about `shard_tokens` ids, each at least one block where the side has one.

    Every run ends with its own tail, so a run is as long as memory comfortably holds.
    """
    ends = np.cumsum(documents.count)
    first = 0
    while first < len(documents):
        done = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, done + max(shard_tokens, block_size), side="left")) + 1
        if last < len(documents) and ends[-1] - ends[last - 1] < block_size:
            last = len(documents)  # what is left fills no block of its own
        yield slice(first, min(last, len(documents)))
        first = last


def pack(
    source: TokenShards, documents: Documents, block_size: int, folder: Path, name: str
) -> tuple[TokenShard, int]:
    """Write the documents one after the other as NAME.bin of whole blocks, and NAME.idx.

    Returns the shard, and the number of ids at the end that fill no block and are dropped.
    """
    total = int(documents.count.sum())
    kept = total - total % block_size
    ids = np.empty(total, source.dtype)
    ends = np.cumsum(documents.count)
    # Piece by piece in the order of the input, so that its pages are read once and in a row.
    for number in np.lexsort((documents.start, documents.owner)):
        start, count = documents.start[number], documents.count[number]
        ids[ends[number] - count : ends[number]] = source.ids[documents.owner[number]][start : start + count]
    with atomic_path(folder / f"{name}.bin") as path:
        ids[:kept].tofile(path)
    table, held = _packed_index(source.table(documents), ends, documents.count, kept)
    with atomic_path(folder / f"{name}.idx") as path:
        write_index(path, table)
    digests = (file_digest(folder / f"{name}{suffix}") for suffix in (".bin", ".idx"))
    return TokenShard(name, held, kept, *digests), total - kept


def _packed_index(table: pa.Table, ends: np.ndarray, counts: np.ndarray, kept: int) -> tuple[pa.Table, int]:
    """The rows of the documents of which at least one id was kept, with ends in this file."""
    held = int(np.searchsorted(ends - counts, kept, side="left"))
    new_ends = np.minimum(ends[:held], kept)
    columns = {
        "end": pa.array(new_ends, pa.int64()),
        "tokens": pa.array(new_ends - (ends - counts)[:held], pa.int64()),
    }
    table = table.slice(0, held)
    arrays = [columns[n] if n in columns else table[n].combine_chunks() for n in PACKED_INDEX_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=PACKED_INDEX_SCHEMA), held
