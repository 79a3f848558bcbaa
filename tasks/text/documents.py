"""Parquet shards of raw documents, written object by object: an object that fails half-way leaves no row."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.text.rows import DocumentRow

DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("group", pa.string()),
        pa.field("meta", pa.string(), nullable=False),
    ]
)
_BATCH_ROWS = 1024
_BATCH_BYTES = 16 << 20
_ROW_GROUP_ROWS = 4096
_ROW_GROUP_BYTES = 64 << 20
_SPOOL_BYTES = 32 << 20


class DocumentSpool:
    """Rows of one object, until it is known to be whole; in memory first, then in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115  (closed by `close`)
        self._writer = pa.ipc.new_stream(self._file, DOCUMENT_SCHEMA)
        self._rows: list[DocumentRow] = []
        self._size = 0
        self.num_rows = 0

    def add(self, row: DocumentRow) -> None:
        """Append a row."""
        self._rows.append(row)
        self._size += len(row.text or "")
        self.num_rows += 1
        if len(self._rows) >= _BATCH_ROWS or self._size >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            values = zip(*self._rows, strict=True)
            columns = [
                pa.array(column, field.type) for column, field in zip(values, DOCUMENT_SCHEMA, strict=True)
            ]
            self._writer.write_batch(pa.record_batch(columns, schema=DOCUMENT_SCHEMA))
            self._rows, self._size = [], 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows; nothing can be added afterwards."""
        self._flush()
        self._writer.close()
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        """Free the rows."""
        self._file.close()


class DocumentWriter:
    """A Parquet file of documents with the same row groups for the same rows, however they come in."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, DOCUMENT_SCHEMA, compression="zstd", write_page_checksum=True)
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._size = 0

    def __enter__(self) -> "DocumentWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._write()
        self._writer.close()

    def write(self, spool: DocumentSpool) -> None:
        """Append the rows of a finished object."""
        for batch in spool.batches():
            self._pending.append(batch)
            self._rows += batch.num_rows
            self._size += batch.nbytes
            if self._rows >= _ROW_GROUP_ROWS or self._size >= _ROW_GROUP_BYTES:
                self._write()

    def _write(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending, DOCUMENT_SCHEMA).combine_chunks()
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._pending, self._rows, self._size = [], 0, 0
