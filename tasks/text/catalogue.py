"""All documents in one canonical order, which no shard's name or number and no worker can change."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "source": pa.string(),
    "high": pa.uint64(),
    "low": pa.uint64(),
    "size": pa.int64(),
    "tokens": pa.int64(),
}
"""What a catalogue needs to know of a document: its id and source, and its `tasks.text.shingles.Contents`."""


@dataclass(frozen=True)
class Catalogue:
    """Documents, longest first, then by content hash, then by id; the place in this order is a document's rank.

    It is held in memory: about 130 bytes a document, texts not among them.
    """

    table: pa.Table
    rows: npt.NDArray[np.int64]
    """Of each rank, the row in the shards laid end to end."""
    leaders: npt.NDArray[np.int64]
    """Of each rank, the first rank of the same content."""
    shard_starts: npt.NDArray[np.int64]
    """First row of each shard, and the number of rows at the end."""

    def rows_by_shard(self, ranks: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Of each shard, which of its rows the given ranks are, ascending."""
        rows = np.sort(self.rows[ranks])
        cuts = np.searchsorted(rows, self.shard_starts)
        return [
            rows[first:last] - start
            for first, last, start in zip(cuts[:-1], cuts[1:], self.shard_starts[:-1], strict=True)
        ]


def read_catalogue(signed: Sequence[Path]) -> Catalogue:
    """Read the catalogue from Parquet files that hold `COLUMNS`, one a shard."""
    tables = [pq.read_table(path, columns=list(COLUMNS)) for path in signed]
    starts = np.cumsum([0, *map(len, tables)], dtype=np.int64)
    table = pa.concat_tables(tables) if tables else pa.schema(COLUMNS).empty_table()
    keys = [("size", "descending"), ("high", "ascending"), ("low", "ascending"), ("id", "ascending")]
    rows = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
    table = table.take(pa.array(rows))
    high, low, size = (table[name].to_numpy() for name in ("high", "low", "size"))
    new = np.ones(len(rows), bool)
    new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1]) | (size[1:] != size[:-1])
    leaders = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0)) if len(rows) else rows
    return Catalogue(table, rows, leaders, starts)
