"""From one Parquet shard of documents to its .bin of ids, and to its .idx: the pure functions that tokenize maps."""

import functools
import heapq
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tasks.kit.errors import InputError
from tasks.kit.files import file_digest
from tasks.model.token_files import INDEX_SCHEMA, dtype_of, map_tokens, narrow, write_index
from tasks.params.split import SidesParams
from tasks.text.encoding import Encoder, ParityError, TokenizerFacts, is_unusual
from tasks.text.sides import side_of, split_key

logger = logging.getLogger("train_llm")

_BATCH_ROWS = 256
_SAMPLE_DOCUMENTS = 200
# Of each shard so many characters are encoded by tokenizers too (about 0.8 s), and as many of unusual documents.
_MAX_CHECKED_CHARACTERS = 1_000_000


def encode_shard(documents: Path, tokenizer: Path, fast: bool, output: Path) -> dict[str, Any]:
    """Write all ids of a Parquet shard. Returns its figures.

    A difference between the two encoders sends the whole shard through the slow one, and is told in `fell_back`.

    Raises:
        InputError: a document without text, an id outside the vocabulary, or ids that do not give the text back.
    """
    encoder = _open_encoder(tokenizer)
    fell_back = None
    if fast:
        try:
            return {**_write_ids(encoder, documents, True, output), "fell_back": None}
        except ParityError as error:
            fell_back = str(error)
            logger.warning(
                "%s: %s; this shard is encoded by tokenizers, 30 times slower", documents.name, error
            )
    return {**_write_ids(encoder, documents, False, output), "fell_back": fell_back}


def index_shard(
    documents: Path, ids: Path, facts: TokenizerFacts, sides: SidesParams, output: Path
) -> dict[str, Any]:
    """Write the documents of a shard: their ends are where the end-of-document id stands, which no text can hold.

    Raises:
        InputError: there are not as many ends as documents.
    """
    table = pq.read_table(documents, columns=["id", "source", "group", "cluster", "characters"])
    ends = np.flatnonzero(map_tokens(ids, dtype_of(facts.vocabulary_size)) == facts.end_of_document_id) + 1
    if len(ends) != len(table):
        raise InputError(
            f"{documents.name}: {len(table)} documents, but {len(ends)} ends of document: the tokenizer makes its "
            "end-of-sequence token out of text, so that documents cannot be told apart"
        )
    keys = zip(table["group"].to_pylist(), table["cluster"].to_pylist(), strict=True)
    side = pa.array([side_of(split_key(group, cluster), sides) for group, cluster in keys], pa.string())
    table = table.append_column("end", pa.array(ends, pa.int64())).append_column("side", side)
    write_index(output, table.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA).combine_chunks())
    return {"digest": file_digest(output)}


@functools.lru_cache(maxsize=1)
def _cached_encoder(tokenizer: Path, modified_at: int) -> Encoder:
    return Encoder(tokenizer)


def _open_encoder(tokenizer: Path) -> Encoder:
    """One encoder a process, for all its shards."""
    return _cached_encoder(tokenizer, (tokenizer / "tokenizer.json").stat().st_mtime_ns)


def _write_ids(encoder: Encoder, documents: Path, fast: bool, output: Path) -> dict[str, Any]:
    facts = encoder.facts
    check = _Check(encoder, documents, fast)
    figures: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    digest, max_id = xxhash.xxh3_128(), -1
    with output.open("wb") as file:
        for batch in _batches(documents):
            flat, counts = encoder.encode_fast(batch["text"]) if fast else encoder.encode(batch["text"])
            check.run(batch, flat, counts)
            ids = narrow(
                _with_ends(flat, counts, facts.end_of_document_id), facts.vocabulary_size, documents.name
            )
            ids.tofile(file)
            digest.update(ids.data)
            max_id = max(max_id, int(ids.max()))
            figures["documents"] += len(counts)
            figures["tokens"] += len(ids)
            figures["characters"] += pc.sum(batch["characters"]).as_py()
            figures["unknown"] += (
                0 if facts.unknown_id is None else int(np.count_nonzero(flat == facts.unknown_id))
            )
            for source, count in zip(batch["source"].to_pylist(), counts.tolist(), strict=True):
                by_source[source] += count + 1
    return {
        **{name: figures[name] for name in ("documents", "tokens", "characters", "unknown")},
        "sampled": check.sampled,
        "changed": check.changed,
        "max_id": max_id,
        "digest": digest.hexdigest(),
        "tokens_by_source": dict(sorted(by_source.items())),
    }


def _batches(documents: Path) -> Iterator[pa.RecordBatch]:
    for batch in pq.ParquetFile(documents).iter_batches(
        _BATCH_ROWS, columns=["id", "source", "text", "characters"]
    ):
        if batch["text"].null_count:
            row = batch["text"].is_null().index(True).as_py()
            raise InputError(
                f"{documents.name}: document {batch['id'][row]} has no text, which clean must drop"
            )
        if len(batch):
            yield batch.set_column(
                batch.schema.get_field_index("text"), "text", batch["text"].cast(pa.large_string())
            )


def _with_ends(flat: np.ndarray, counts: np.ndarray, end_of_document_id: int) -> np.ndarray:
    """The ids with the end-of-document id after each document."""
    ids = np.empty(len(flat) + len(counts), np.uint32)
    ends = np.cumsum(counts + 1) - 1
    inside = np.ones(len(ids), bool)
    inside[ends] = False
    ids[inside] = flat
    ids[ends] = end_of_document_id
    return ids


class _Check:
    """What is looked at while a shard is encoded: parity of the encoders, and the way back from ids to text."""

    def __init__(self, encoder: Encoder, documents: Path, fast: bool) -> None:
        self.encoder, self.fast = encoder, fast
        self.sampled = self.changed = 0
        # Ids are hashes, so the smallest are a fair sample.
        ids = pq.read_table(documents, columns=["id"])["id"].to_pylist()
        self._sample = set(heapq.nsmallest(_SAMPLE_DOCUMENTS, ids))
        self._budgets = {"sample": _MAX_CHECKED_CHARACTERS, "unusual": _MAX_CHECKED_CHARACTERS}

    def run(self, batch: pa.RecordBatch, flat: np.ndarray, counts: np.ndarray) -> None:
        """Check a batch.

        Raises:
            ParityError: gigatoken's ids are not those of tokenizers.
            InputError: those of tokenizers do not give the text back, with a tokenizer that must.
        """
        names = batch["id"].to_pylist()
        if self.encoder.facts.reversible:
            self._check_way_back(batch["text"], names, flat, counts)
        rows = self._rows(batch, names)
        if not len(rows):
            return
        ends = np.cumsum(counts)
        part = np.concatenate([flat[ends[row] - counts[row] : ends[row]] for row in rows])
        texts = batch["text"].take(pa.array(rows))
        if self.fast:
            self.encoder.check_parity(texts, [names[row] for row in rows], part, counts[rows])
        if not self.encoder.facts.reversible:
            self.sampled += len(rows)
            self.changed += self.encoder.count_changed(texts, part, counts[rows])

    def _check_way_back(
        self, texts: pa.Array, names: list[str], flat: np.ndarray, counts: np.ndarray
    ) -> None:
        row = self.encoder.first_irreversible(texts, flat, counts)
        if row is None:
            return
        if self.fast:
            raise ParityError(f"gigatoken's ids do not give document {names[row]} back")
        raise InputError(
            f"document {names[row]}: its ids do not decode to its text, though the tokenizer is byte-level: "
            "its vocabulary lacks a byte; train one here (tokenize.tokenizer: null) or bring a whole one"
        )

    def _rows(self, batch: pa.RecordBatch, names: list[str]) -> np.ndarray:
        """Rows to look at closely: the sample and, for parity, unusual texts; each while its budget lasts."""
        wanted = {"sample": np.fromiter((name in self._sample for name in names), bool, len(names))}
        if self.fast:
            wanted["unusual"] = is_unusual(batch["text"]) & ~wanted["sample"]
        lengths = batch["characters"].to_numpy()
        chosen = []
        for kind, mask in wanted.items():
            for row in np.flatnonzero(mask):
                if self._budgets[kind] > 0:
                    self._budgets[kind] -= int(lengths[row])
                    chosen.append(row)
        return np.array(sorted(chosen), np.int64)
