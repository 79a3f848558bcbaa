"""Reads every object of the snapshot into Parquet shards of documents.

Reads:  data/snapshot/manifest.json, and the objects that it lists
Writes: data/ingest/documents/*.parquet (id, text, source, group, meta), data/ingest/quarantine.jsonl
Drops:  objects and records that cannot be read, each with its reason, into the quarantine
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from tasks.kit.errors import InputError
from tasks.kit.files import atomic_path, read_json
from tasks.kit.object_store import StoreAddress, open_store
from tasks.kit.paths import Paths
from tasks.kit.shards import Shard, ShardResult, map_shards
from tasks.kit.sources import ObjectEntry, Source, open_object, parse_source
from tasks.params.ingest import IngestParams
from tasks.params.runtime import RuntimeParams

logger = logging.getLogger("train_llm")

_MAX_OBJECT_FAULTS = 10_000


@dataclass(frozen=True)
class IngestFigures:
    """What was read and what was refused.

    `refused_records` counts lines or rows lost inside readable objects, `refused_objects` whole objects;
    `by_source` holds documents, refused records and refused objects of each source; `quarantine_by_reason`
    counts both kinds. `missing_texts` are documents whose text is null or empty.
    """

    objects: int
    empty_objects: int
    documents: int
    missing_texts: int
    refused_records: int
    refused_objects: int
    by_source: dict[str, dict[str, int]]
    quarantine_by_reason: dict[str, int]


def ingest(params: IngestParams, runtime: RuntimeParams, paths: Paths) -> IngestFigures:
    """Turn the objects of the snapshot into documents.

    Raises:
        InputError: an object changed since the snapshot, more was refused than `max_refused_share`, or no
            document was found.
        EnvironmentProblem: the object store is out of reach, or an object could not be read whole.
    """
    manifest = read_json(paths.snapshot_manifest)
    source = parse_source(manifest["source"])
    entries = [ObjectEntry(**item) for item in manifest["objects"]]
    groups = group_objects(entries, params.objects_per_shard)
    results = _read_all(source, groups, params, runtime, paths)
    faults = sorted(
        (fault for result in results for fault in result.figures["faults"]),
        key=lambda fault: (fault["object"], fault["line"] or 0, fault["reason"]),
    )
    _write_quarantine(paths.ingest_quarantine, faults)
    figures = _sum_up(results, faults, len(entries))
    for key in sorted(key for result in results for key in result.figures["empty"]):
        logger.warning("%s holds no record", source.name(key))
    _check(figures, faults, source, params, paths)
    logger.info(
        "%d documents from %d objects; refused: %d records, %d objects",
        figures.documents,
        figures.objects,
        figures.refused_records,
        figures.refused_objects,
    )
    return figures


def group_objects(entries: Sequence[ObjectEntry], objects_per_shard: int) -> list[list[ObjectEntry]]:
    """Cut the objects, by key, into groups of about `objects_per_shard`.

    Where a group ends is told by the hash of its last key alone, so a new object changes one group only.
    """
    groups: list[list[ObjectEntry]] = [[]]
    for entry in sorted(entries, key=lambda entry: entry.key):
        groups[-1].append(entry)
        if xxhash.xxh3_64_intdigest(entry.key.encode()) % objects_per_shard == 0:
            groups.append([])
    return [group for group in groups if group]


def _read_all(
    source: Source,
    groups: list[list[ObjectEntry]],
    params: IngestParams,
    runtime: RuntimeParams,
    paths: Paths,
) -> list[ShardResult]:
    def run(address: StoreAddress | None) -> list[ShardResult]:
        return map_shards(
            _read_group,
            [_shard(source, group, params, paths.root.resolve(), address) for group in groups],
            stage="ingest",
            store=paths.shard_store("ingest"),
            output=paths.ingest_documents,
            runtime=runtime,
        )

    if source.bucket is None:
        return run(None)
    with open_store(runtime, paths) as store:
        return run(store.address)


def _shard(
    source: Source, group: list[ObjectEntry], params: IngestParams, root: Path, address: StoreAddress | None
) -> Shard:
    stem = xxhash.xxh3_64_hexdigest("\0".join(entry.key for entry in group).encode())
    objects = [(entry.key, entry.size, entry.etag, entry.version_id) for entry in group]
    rules = params.model_dump(mode="json", exclude={"max_refused_share", "objects_per_shard"})
    return Shard(
        f"{stem}.parquet", [source.url, rules, objects], (source, tuple(group), params, root, address)
    )


def _read_group(
    source: Source,
    group: Sequence[ObjectEntry],
    params: IngestParams,
    root: Path,
    address: StoreAddress | None,
    output: Path,
) -> dict[str, Any]:
    """Read the objects of one group into `output`. Returns counts, faults and the keys of empty objects."""
    from tasks.text.documents import DocumentSpool, DocumentWriter
    from tasks.text.records import ObjectFault

    faults: list[dict[str, Any]] = []
    empty: list[str] = []
    by_source: dict[str, Counter[str]] = {}
    with DocumentWriter(output) as writer:
        for entry in group:
            name = source_name(source.relative(entry.key))
            counts = by_source.setdefault(
                name, Counter(documents=0, missing_texts=0, refused_records=0, refused_objects=0)
            )
            reading = _Reading(entry, name, params, DocumentSpool())
            try:
                reading.read(source, root, address)
            except ObjectFault as fault:
                faults.append(_fault(entry.key, None, fault.reason, fault.detail))
                counts["refused_objects"] += 1
            else:
                writer.write(reading.spool)
                faults.extend(reading.faults)
                counts["documents"] += reading.spool.num_rows
                counts["missing_texts"] += reading.num_missing
                counts["refused_records"] += sum(fault["lost"] for fault in reading.faults)
                if not reading.spool.num_rows and not reading.faults:
                    empty.append(entry.key)
            finally:
                reading.spool.close()
    return {"faults": faults, "empty": empty, "by_source": by_source}


def source_name(relative_key: str) -> str:
    """Source of an object: the first folder of its key, or its own name where it lies at the top."""
    folder, separator, _ = relative_key.partition("/")
    return folder if separator else relative_key.split(".", 1)[0] or relative_key


def _fault(key: str, line: int | None, reason: str, text: str, lost: int = 1) -> dict[str, Any]:
    return {"object": key, "line": line, "reason": reason, "excerpt": text, "lost": lost}


@dataclass
class _Reading:
    """One object on its way into rows."""

    entry: ObjectEntry
    source_name: str
    params: IngestParams
    spool: Any
    faults: list[dict[str, Any]] = field(default_factory=list)
    num_missing: int = 0

    def read(self, source: Source, root: Path, address: StoreAddress | None) -> None:
        """Read all records. Raises ObjectFault when the object is to be refused as a whole."""
        from tasks.text.readers import Limits, format_of, read_records
        from tasks.text.records import ObjectFault, RecordFault
        from tasks.text.rows import RowMaker

        params, key = self.params, self.entry.key
        format_ = format_of(key)
        maker = RowMaker(key, self.source_name, format_.name, params)
        limits = Limits(params.max_document_bytes, params.max_object_bytes, params.text_fields)
        with open_object(source, self.entry, root, address) as content:
            for item in read_records(content, format_, limits):
                row = item if isinstance(item, RecordFault) else maker.row(item)
                if not isinstance(row, RecordFault):
                    self.num_missing += row.text is None
                    self.spool.add(row)
                else:
                    self.faults.append(_fault(key, row.line, row.reason, row.excerpt, row.lost))
                    if len(self.faults) > max(_MAX_OBJECT_FAULTS, self.spool.num_rows):
                        raise ObjectFault(
                            "mostly_unreadable",
                            f"more than {len(self.faults) - 1:,} faults; the last: {row}",
                        )


def _write_quarantine(path: Path, faults: Iterable[dict[str, Any]]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for fault in faults:
            file.write(json.dumps(fault, ensure_ascii=False) + "\n")


def _sum_up(
    results: Sequence[ShardResult], faults: Sequence[dict[str, Any]], num_objects: int
) -> IngestFigures:
    by_source: dict[str, Counter[str]] = {}
    for result in results:
        for name, counts in result.figures["by_source"].items():
            by_source.setdefault(name, Counter()).update(counts)
    total = sum(by_source.values(), Counter())
    reasons = Counter(fault["reason"] for fault in faults)
    return IngestFigures(
        objects=num_objects,
        empty_objects=sum(len(result.figures["empty"]) for result in results),
        documents=total["documents"],
        missing_texts=total["missing_texts"],
        refused_records=total["refused_records"],
        refused_objects=total["refused_objects"],
        by_source={name: dict(sorted(by_source[name].items())) for name in sorted(by_source)},
        quarantine_by_reason=dict(sorted(reasons.items())),
    )


def _check(
    figures: IngestFigures,
    faults: Sequence[dict[str, Any]],
    source: Source,
    params: IngestParams,
    paths: Paths,
) -> None:
    """Stop where too much was refused, or nothing is left."""
    num_records = figures.documents + figures.refused_records
    record_share = figures.refused_records / max(1, num_records)
    object_share = figures.refused_objects / max(1, figures.objects)
    if max(record_share, object_share) > params.max_refused_share:
        raise InputError(
            f"refused {figures.refused_records:,} of {num_records:,} records ({record_share:.1%}) and "
            f"{figures.refused_objects:,} of {figures.objects:,} objects ({object_share:.1%}); "
            f"ingest.max_refused_share allows {params.max_refused_share:.1%}. {_commonest(faults, source)} "
            f"All are in {paths.ingest_quarantine}: repair these objects, leave them out with "
            "snapshot.exclude, or raise the limit"
        )
    if not figures.documents - figures.missing_texts:
        raise InputError(
            f"no document with text in the {figures.objects:,} objects of {source.url} "
            f"({figures.empty_objects:,} are empty). {_commonest(faults, source)}"
            f"Check snapshot.source, and ingest.text_fields {list(params.text_fields)}"
        )


def _commonest(faults: Sequence[dict[str, Any]], source: Source) -> str:
    """The three commonest reasons, each with an example."""
    parts = []
    for reason, count in Counter(fault["reason"] for fault in faults).most_common(3):
        example = next(fault for fault in faults if fault["reason"] == reason)
        line = f":{example['line']}" if example["line"] else ""
        parts.append(
            f"{reason} {count:,} x, e.g. {source.name(example['object'])}{line} ({example['excerpt'][:100]})"
        )
    return f"Commonest: {'; '.join(parts)}." if parts else ""
