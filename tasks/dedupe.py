"""Stage `dedupe`: of documents that are the same, or verified to be nearly so, one stays.

Reads   data/clean/documents/NAME.parquet
Writes  data/dedupe/documents/NAME.parquet  survivors with clean's columns, plus `cluster`
        data/dedupe/removed.parquet         id, source, kept_id, kind (exact or near), similarity; sorted by id
Drops   exact duplicates (NFKC, case and white space folded), and near ones (true Jaccard similarity of the shingle
        sets from `threshold` on); texts shorter than one shingle are compared exactly only
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.kit.errors import InputError
from tasks.kit.files import atomic_path, file_digest, json_digest
from tasks.kit.paths import Paths
from tasks.kit.shards import Shard, ShardResult, map_shards
from tasks.params.dedupe import DedupeParams
from tasks.params.runtime import RuntimeParams
from tasks.text.bands import Buckets, shared_buckets
from tasks.text.catalogue import COLUMNS, Catalogue, read_catalogue
from tasks.text.clusters import Verdicts, assign
from tasks.text.minhash import signatures
from tasks.text.sets import lay_out_sets
from tasks.text.shingles import contents, fold, shingle_sets

_BATCH_ROWS = 512
_SAMPLES = 10
_EXCERPT_CHARACTERS = 200
_MIN_SOURCE_DOCUMENTS = 100
"""A source of fewer documents may lose any share: one page mirrored twice is no alarm."""


@dataclass(frozen=True)
class DedupeFigures:
    """Counts of documents and of pairs; `documents_in` = `documents_out` + `exact_removed` + `near_removed`."""

    documents_in: int
    documents_out: int
    exact_removed: int
    near_removed: int
    by_source: dict[str, dict[str, int]]
    candidate_pairs: int
    verified_pairs: int
    samples: list[dict[str, Any]]


@dataclass(frozen=True)
class _Survival:
    """Of each rank, the rank of its survivor (itself where it stays) and the similarity to it."""

    kept_by: npt.NDArray[np.int64]
    similarity: npt.NDArray[np.float64]
    candidate_pairs: int
    verified_pairs: int


def dedupe(params: DedupeParams, runtime: RuntimeParams, paths: Paths) -> DedupeFigures:
    """Sign every shard, find and verify the pairs, and write the survivors.

    Raises:
        InputError: there are no documents, or a source lost more than `max_source_loss`.
    """
    inputs = sorted(paths.clean_documents.glob("*.parquet"))
    digests = [file_digest(path) for path in inputs]
    signed = _map(sign_shard, inputs, digests, [()] * len(inputs), "signatures", params, runtime, paths)
    catalogue = read_catalogue([result.path for result in signed])
    if not len(catalogue.rows):
        raise InputError(f"{paths.clean_documents} holds no documents: run `dvc repro clean` first")
    buckets = _find_buckets(catalogue, [result.path for result in signed], params)
    verdicts = _verify(catalogue, buckets, inputs, digests, params, runtime, paths)
    survival = _combine(catalogue, verdicts)
    removed = _removed(catalogue, survival)
    by_source = _by_source(catalogue, removed)
    _check_losses(by_source, params)
    _write_survivors(catalogue, survival, inputs, digests, params, runtime, paths)
    with atomic_path(paths.dedupe_removed) as temporary:
        pq.write_table(removed, temporary, compression="zstd")
    kinds = Counter(removed["kind"].to_pylist())
    return DedupeFigures(
        documents_in=len(catalogue.rows),
        documents_out=len(catalogue.rows) - len(removed),
        exact_removed=kinds["exact"],
        near_removed=kinds["near"],
        by_source=by_source,
        candidate_pairs=survival.candidate_pairs,
        verified_pairs=survival.verified_pairs,
        samples=_samples(catalogue, removed, inputs),
    )


def sign_shard(source: Path, rows: tuple[()], params: DedupeParams, output: Path) -> dict[str, Any]:
    """Write id, source, content hash, size, number of tokens and band keys of each document of a shard."""
    schema = pa.schema([*COLUMNS.items(), *((band, pa.uint64()) for band in _band_columns(params))])
    with (
        pq.ParquetFile(source) as reader,
        pq.ParquetWriter(output, schema, use_dictionary=["source"]) as writer,
    ):
        for batch in reader.iter_batches(_BATCH_ROWS, columns=["id", "source", "text"]):
            folded = fold(batch["text"])
            if params.near:
                content, keys = signatures(
                    folded,
                    ngram=params.ngram,
                    num_bands=params.num_bands,
                    rows_per_band=params.rows_per_band,
                    seed=params.seed,
                )
            else:
                content, keys = contents(folded), np.empty((len(folded), 0), np.uint64)
            columns = [batch["id"], batch["source"], *map(pa.array, content), *map(pa.array, keys.T.copy())]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return {}


def shingle_shard(
    source: Path, rows: npt.NDArray[np.int64], params: DedupeParams, output: Path
) -> dict[str, Any]:
    """Write the shingle sets of the given rows of a shard, in their order, as an Arrow file."""
    schema = pa.schema([("shingles", pa.large_list(pa.uint64()))])
    with pq.ParquetFile(source) as reader, pa.ipc.new_file(output, schema) as writer:
        for batch, chosen in _chosen(reader, rows, ["text"]):
            sets = shingle_sets(fold(batch["text"].take(chosen)), params.ngram)
            writer.write_batch(pa.RecordBatch.from_arrays([sets], schema=schema))
    return {}


def keep_shard(
    source: Path, rows: npt.NDArray[np.int64], params: DedupeParams, output: Path
) -> dict[str, Any]:
    """Write the given rows of a shard, each with its cluster: the hash of its own content."""
    with pq.ParquetFile(source) as reader:
        schema = pa.schema([*reader.schema_arrow, pa.field("cluster", pa.string())])
        with pq.ParquetWriter(output, schema, compression="zstd") as writer:
            for batch, chosen in _chosen(reader, rows, None):
                table = pa.Table.from_batches([batch]).take(chosen)
                high = contents(fold(table["text"].combine_chunks())).high
                clusters = pa.array([f"{value:016x}" for value in high.tolist()], pa.string())
                writer.write_table(table.append_column(schema.field("cluster"), clusters))
    return {}


def _chosen(
    reader: pq.ParquetFile, rows: npt.NDArray[np.int64], columns: list[str] | None
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """The batches of a shard that hold some of the ascending `rows`, each with their places in it."""
    start = 0
    for batch in reader.iter_batches(_BATCH_ROWS, columns=columns):
        first, last = np.searchsorted(rows, [start, start + len(batch)])
        if last > first:
            yield batch, pa.array(rows[first:last] - start)
        start += len(batch)


def _map(
    function: Any,
    inputs: Sequence[Path],
    digests: Sequence[str],
    rows: Sequence[Any],
    name: str,
    params: DedupeParams,
    runtime: RuntimeParams,
    paths: Paths,
) -> list[ShardResult]:
    """One pass over the shards; `rows` says, by shard, which of its rows are asked for."""
    identity = params.model_dump(mode="json", exclude={"max_source_loss"})
    chosen = [json_digest(np.asarray(wanted).tolist()) for wanted in rows]
    return map_shards(
        function,
        [
            Shard(path.name, [identity, digest, marks], (path, wanted, params))
            for path, digest, marks, wanted in zip(inputs, digests, chosen, rows, strict=True)
        ],
        stage="dedupe",
        store=paths.shard_store("dedupe") / name,
        output=paths.dedupe_documents if name == "documents" else paths.state / "dedupe" / name,
        runtime=runtime,
    )


def _band_columns(params: DedupeParams) -> list[str]:
    return [f"band_{band:03d}" for band in range(params.num_bands)] if params.near else []


def _find_buckets(catalogue: Catalogue, signed: Sequence[Path], params: DedupeParams) -> Buckets:
    """Ranks that share a band key: one of each content, and none too short to have a shingle."""
    ranks = np.arange(len(catalogue.rows))
    eligible = ranks[(catalogue.leaders == ranks) & (catalogue.table["tokens"].to_numpy() >= params.ngram)]
    rows = catalogue.rows[eligible]
    bands = (
        np.concatenate([pq.read_table(path, columns=[column])[column].to_numpy() for path in signed])[rows]
        for column in _band_columns(params)
    )
    return shared_buckets(bands, eligible)


def _verify(
    catalogue: Catalogue,
    buckets: Buckets,
    inputs: Sequence[Path],
    digests: Sequence[str],
    params: DedupeParams,
    runtime: RuntimeParams,
    paths: Paths,
) -> Verdicts:
    """True similarity of the candidates, from their shingle sets: laid end to end in a memory-mapped file."""
    ranks = np.unique(buckets.documents)
    by_shard = catalogue.rows_by_shard(ranks)
    shards = [index for index, rows in enumerate(by_shard) if len(rows)]
    results = _map(
        shingle_shard,
        [inputs[index] for index in shards],
        [digests[index] for index in shards],
        [by_shard[index] for index in shards],
        "shingles",
        params,
        runtime,
        paths,
    )
    places = np.empty(len(ranks), np.int64)  # the sets come in the order of rows, the ranks are in another
    places[np.argsort(catalogue.rows[ranks], kind="stable")] = np.arange(len(ranks))
    with lay_out_sets([result.path for result in results], paths.state / "dedupe" / "sets.bin") as sets:
        return assign(buckets, sets.values, sets.starts[places], sets.ends[places], params.threshold)


def _combine(catalogue: Catalogue, verdicts: Verdicts) -> _Survival:
    """Exact copies follow their leader, also to the document that the leader itself is near to."""
    kept_by = np.arange(len(catalogue.rows))
    similarity = np.ones(len(catalogue.rows))
    gone = verdicts.kept_by >= 0
    kept_by[verdicts.documents[gone]] = verdicts.documents[verdicts.kept_by[gone]]
    similarity[verdicts.documents[gone]] = verdicts.similarity[gone]
    return _Survival(
        kept_by[catalogue.leaders],
        similarity[catalogue.leaders],
        verdicts.candidate_pairs,
        verdicts.verified_pairs,
    )


def _removed(catalogue: Catalogue, survival: _Survival) -> pa.Table:
    ranks = np.arange(len(catalogue.rows))
    gone = ranks[survival.kept_by != ranks]
    kept = survival.kept_by[gone]
    exact = catalogue.leaders[gone] == kept
    table = pa.table(
        {
            "id": catalogue.table["id"].take(pa.array(gone)),
            "source": catalogue.table["source"].take(pa.array(gone)),
            "kept_id": catalogue.table["id"].take(pa.array(kept)),
            "kind": pa.array(np.where(exact, "exact", "near"), pa.string()),
            "similarity": pa.array(survival.similarity[gone], pa.float64()),
        }
    )
    return table.sort_by("id").combine_chunks()


def _by_source(catalogue: Catalogue, removed: pa.Table) -> dict[str, dict[str, int]]:
    documents = Counter(catalogue.table["source"].to_pylist())
    gone = Counter(zip(removed["source"].to_pylist(), removed["kind"].to_pylist(), strict=True))
    return {
        source: {
            "documents_in": documents[source],
            "documents_out": documents[source] - gone[source, "exact"] - gone[source, "near"],
            "exact_removed": gone[source, "exact"],
            "near_removed": gone[source, "near"],
        }
        for source in sorted(documents)
    }


def _check_losses(by_source: dict[str, dict[str, int]], params: DedupeParams) -> None:
    for source, counts in by_source.items():
        total = counts["documents_in"]
        lost = total - counts["documents_out"]
        if total >= _MIN_SOURCE_DOCUMENTS and lost > params.max_source_loss * total:
            raise InputError(
                f"source {source!r} would lose {lost} of its {total} documents as duplicates ({lost / total:.1%}, "
                f"limit dedupe.max_source_loss = {params.max_source_loss:.1%}): look whether its documents are one "
                "template; leave the source out, or raise the limit"
            )


def _write_survivors(
    catalogue: Catalogue,
    survival: _Survival,
    inputs: Sequence[Path],
    digests: Sequence[str],
    params: DedupeParams,
    runtime: RuntimeParams,
    paths: Paths,
) -> None:
    ranks = np.arange(len(catalogue.rows))
    rows = catalogue.rows_by_shard(ranks[survival.kept_by == ranks])
    _map(keep_shard, inputs, digests, rows, "documents", params, runtime, paths)


def _samples(catalogue: Catalogue, removed: pa.Table, inputs: Sequence[Path]) -> list[dict[str, Any]]:
    """Pairs with the beginnings of both texts: near ones first, then by id."""
    pairs = sorted(removed.to_pylist(), key=lambda row: (row["kind"] != "near", row["id"]))[:_SAMPLES]
    names = sorted({name for pair in pairs for name in (pair["id"], pair["kept_id"])})
    ranks = pc.index_in(pa.array(names, pa.string()), catalogue.table["id"].combine_chunks()).to_numpy()
    excerpts: dict[str, str] = {}
    for path, rows in zip(inputs, catalogue.rows_by_shard(ranks.astype(np.int64)), strict=True):
        with pq.ParquetFile(path) as reader:
            for batch, chosen in _chosen(reader, rows, ["id", "text"]) if len(rows) else ():
                for row in batch.take(chosen).to_pylist():
                    excerpts[row["id"]] = row["text"][:_EXCERPT_CHARACTERS]
    return [
        {
            **pair,
            "similarity": round(pair["similarity"], 4),
            "excerpt": excerpts[pair["id"]],
            "kept_excerpt": excerpts[pair["kept_id"]],
        }
        for pair in pairs
    ]
