"""Stage `clean`: one normal form for every text, and a reason for every document that goes.

Reads   data/ingest/documents/NAME.parquet
Writes  data/clean/documents/NAME.parquet  the same columns, `text` never null, plus `characters` and `script`
        data/clean/dropped/NAME.parquet    id, source, reason
Drops   missing_text, raw_too_long, html_unclosed_tags, and by tasks.text.quality: too_short, too_long,
        broken_characters, few_letters, repeated_lines, endless_lines
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.kit.errors import InputError
from tasks.kit.files import file_digest
from tasks.kit.paths import Paths
from tasks.kit.shards import Shard, map_shards
from tasks.params.clean import CleanParams
from tasks.params.runtime import RuntimeParams
from tasks.text.markup import html_to_text, is_html
from tasks.text.measures import Measures, measure
from tasks.text.normalize import normalize
from tasks.text.quality import reason_to_drop
from tasks.text.repair import repair

_BATCH_ROWS = 512
_SAMPLES = 10
_EXCERPT_CHARACTERS = 200
# Cleaning shrinks a text by markup and white space; one this many times over the limit is not even looked at.
_RAW_FACTOR = 16

_ADDED = [pa.field("characters", pa.int32()), pa.field("script", pa.string())]
_DROPPED = pa.schema([("id", pa.string()), ("source", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True)
class CleanFigures:
    """Counts of documents; `documents_in` = `documents_out` + the sum of `dropped_by_reason`."""

    documents_in: int
    documents_out: int
    characters_out: int
    html_converted: int
    mojibake_repaired: int
    dropped_by_reason: dict[str, int]
    by_source: dict[str, dict[str, Any]]
    by_script: dict[str, int]
    dropped_samples: dict[str, list[dict[str, str]]]


class _Prepared(NamedTuple):
    """A text in its normal form, or the reason why there is none."""

    text: str
    reason: str | None
    was_html: bool
    was_repaired: bool


def clean(params: CleanParams, runtime: RuntimeParams, paths: Paths) -> CleanFigures:
    """Clean every shard and account for every document.

    Raises:
        InputError: there are no shards, or not one document was kept.
    """
    inputs = sorted(paths.ingest_documents.glob("*.parquet"))
    if not inputs:
        raise InputError(f"{paths.ingest_documents} holds no Parquet shards: run `dvc repro ingest` first")
    digests = [file_digest(path) for path in inputs]
    identity = params.model_dump(mode="json")
    kept = map_shards(
        clean_shard,
        [
            Shard(path.name, [identity, digest], (path, params))
            for path, digest in zip(inputs, digests, strict=True)
        ],
        stage="clean",
        store=paths.shard_store("clean") / "documents",
        output=paths.clean_documents,
        runtime=runtime,
    )
    dropped = map_shards(
        explain_shard,
        [
            Shard(path.name, [identity, digest], (path, result.path, params))
            for path, digest, result in zip(inputs, digests, kept, strict=True)
        ],
        stage="clean",
        store=paths.shard_store("clean") / "dropped",
        output=paths.clean_dropped,
        runtime=runtime,
    )
    figures = _sum([result.figures for result in kept], [result.figures for result in dropped])
    if not figures.documents_out:
        raise InputError(
            f"none of {figures.documents_in} documents of {paths.ingest_documents} was kept, dropped by reason: "
            f"{figures.dropped_by_reason}: look at the samples of these reasons, and at section `clean` of params.yaml"
        )
    return figures


def clean_shard(source: Path, params: CleanParams, output: Path) -> dict[str, Any]:
    """Write the documents of one shard that are kept, in their order; counts of them."""
    with pq.ParquetFile(source) as reader:
        schema = pa.schema([*reader.schema_arrow, *_ADDED])
        figures: dict[str, Any] = {
            "html": 0,
            "repaired": 0,
            "characters": 0,
            "in": Counter(),
            "out": Counter(),
        }
        scripts: Counter[str] = Counter()
        with pq.ParquetWriter(output, schema, compression="zstd") as writer:
            for batch in reader.iter_batches(_BATCH_ROWS):
                prepared, measures, reasons = _judge(batch, params)
                rows = [row for row, reason in enumerate(reasons) if reason is None]
                table = _kept_rows(batch, rows, prepared, measures)
                writer.write_table(table)
                figures["html"] += sum(prepared[row].was_html for row in rows)
                figures["repaired"] += sum(prepared[row].was_repaired for row in rows)
                figures["characters"] += sum(measures[row].characters for row in rows)
                figures["in"].update(batch["source"].to_pylist())
                figures["out"].update(table["source"].to_pylist())
                scripts.update(table["script"].to_pylist())
    return {**figures, "in": dict(figures["in"]), "out": dict(figures["out"]), "scripts": dict(scripts)}


def explain_shard(source: Path, kept: Path, params: CleanParams, output: Path) -> dict[str, Any]:
    """Write id, source and reason of the documents of `source` that are not in `kept`; counts and samples.

    The rules are pure, so judging these few again gives the reason without a second copy of all the texts.
    """
    survivors = set(pq.read_table(kept, columns=["id"])["id"].to_pylist())
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    samples: dict[str, list[dict[str, str]]] = defaultdict(list)
    with pq.ParquetFile(source) as reader, pq.ParquetWriter(output, _DROPPED, compression="zstd") as writer:
        for batch in reader.iter_batches(_BATCH_ROWS):
            rows = [row for row, name in enumerate(batch["id"].to_pylist()) if name not in survivors]
            gone = batch.take(pa.array(rows, pa.int64()))
            _, _, reasons = _judge(gone, params)
            assert all(reasons), "a document was neither kept nor dropped"
            columns = [gone["id"], gone["source"], pa.array(reasons, pa.string())]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_DROPPED))
            for name, origin, reason, text in zip(
                *(column.to_pylist() for column in (*columns, gone["text"])), strict=True
            ):
                counts[reason][origin] += 1
                excerpt = (text or "")[:_EXCERPT_CHARACTERS]
                samples[reason].append({"id": name, "source": origin, "excerpt": excerpt})
            samples = defaultdict(list, {reason: _smallest(found) for reason, found in samples.items()})
    return {"counts": {reason: dict(found) for reason, found in counts.items()}, "samples": dict(samples)}


def _judge(
    batch: pa.RecordBatch, params: CleanParams
) -> tuple[list[_Prepared], list[Measures], list[str | None]]:
    """Normal form, measures and reason to drop (None: keep) of every document."""
    prepared = [
        _prepare(text, meta, params)
        for text, meta in zip(batch["text"].to_pylist(), batch["meta"].to_pylist(), strict=True)
    ]
    measures = measure(pa.array([document.text for document in prepared], pa.large_string()))
    reasons = [
        document.reason or reason_to_drop(document.text, measured, params)
        for document, measured in zip(prepared, measures, strict=True)
    ]
    return prepared, measures, reasons


def _prepare(text: str | None, meta: str | None, params: CleanParams) -> _Prepared:
    if text is None or not text.strip():
        return _Prepared("", "missing_text", False, False)
    if len(text) > _RAW_FACTOR * params.max_characters:
        return _Prepared("", "raw_too_long", False, False)
    was_html = params.strip_html and "<" in text and is_html(text, _format(meta))
    if was_html:
        plain = html_to_text(text)
        if plain is None:
            return _Prepared("", "html_unclosed_tags", True, False)
        text = plain
    repaired = repair(text) if params.fix_mojibake else text
    return _Prepared(normalize(repaired), None, was_html, repaired is not text and repaired != text)


def _format(meta: str | None) -> str:
    """What ingest says of the object's format; nothing where it says nothing."""
    if not meta:
        return ""
    form = orjson.loads(meta).get("format", "")
    return form if isinstance(form, str) else ""


def _kept_rows(
    batch: pa.RecordBatch, rows: list[int], prepared: list[_Prepared], measures: list[Measures]
) -> pa.Table:
    table = pa.Table.from_batches([batch]).take(pa.array(rows, pa.int64()))
    texts = pa.array([prepared[row].text for row in rows], pa.large_string())
    table = table.set_column(table.column_names.index("text"), table.schema.field("text"), texts)
    table = table.append_column(_ADDED[0], pa.array([measures[row].characters for row in rows], pa.int32()))
    return table.append_column(_ADDED[1], pa.array([measures[row].script for row in rows], pa.string()))


def _smallest(samples: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(samples, key=lambda sample: sample["id"])[:_SAMPLES]


def _sum(kept: list[dict[str, Any]], dropped: list[dict[str, Any]]) -> CleanFigures:
    documents_in: Counter[str] = Counter()
    documents_out: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    for figures in kept:
        documents_in.update(figures["in"])
        documents_out.update(figures["out"])
        scripts.update(figures["scripts"])
    reasons: Counter[str] = Counter()
    by_source: dict[str, Counter[str]] = defaultdict(Counter)
    samples: dict[str, list[dict[str, str]]] = defaultdict(list)
    for figures in dropped:
        for reason, sources in figures["counts"].items():
            reasons[reason] += sum(sources.values())
            for source, count in sources.items():
                by_source[source][reason] += count
            samples[reason] += figures["samples"][reason]
    return CleanFigures(
        documents_in=documents_in.total(),
        documents_out=documents_out.total(),
        characters_out=sum(figures["characters"] for figures in kept),
        html_converted=sum(figures["html"] for figures in kept),
        mojibake_repaired=sum(figures["repaired"] for figures in kept),
        dropped_by_reason=dict(sorted(reasons.items())),
        by_source={
            source: {
                "documents_in": documents_in[source],
                "documents_out": documents_out[source],
                "dropped": dict(sorted(by_source[source].items())),
            }
            for source in sorted(documents_in)
        },
        by_script=dict(sorted(scripts.items())),
        dropped_samples={reason: _smallest(found) for reason, found in sorted(samples.items())},
    )
