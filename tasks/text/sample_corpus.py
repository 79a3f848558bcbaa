"""The sample corpus: real text laid out as a real bucket would be, with known dirt mixed in by a seeded maker.

`python -m tasks.text.sample_corpus BUCKET [BYTES]` puts it into the bucket of the S3 server that the environment
names: objects below `sample/`, and what was planted in `truth/sample.json`, so that results can be checked.
"""

import bz2
import csv
import gzip
import html
import io
import json
import lzma
import random
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tasks.text.sample_documents import SampleDocument, foreign_texts, jaccard, sample_documents

DEFAULT_TEXT_BYTES = 6_000_000
MIN_TEXT_BYTES = 30_000
PREFIX = "sample/"
TRUTH_KEY = "truth/sample.json"
_SEED = 20261130
_EXACT_SHARE = _NEAR_SHARE = 0.05
_MISSING_SHARE = 0.005
_MIN_NEAR_JACCARD = 0.87
_LIBRARY_FORMATS = (".jsonl", ".jsonl.gz", ".ndjson", ".jsonl.bz2", ".jsonl.xz")
_PACKAGE_FORMATS = (".csv", ".jsonl.zst", ".parquet", ".csv.gz", ".json")
_RECORDS_PER_OBJECT = 180
_NUM_MARKDOWN = 10


@dataclass
class _Record:
    """A record to be written: `kind` clean, exact, near, missing or broken; `original` is what it was copied from."""

    kind: str
    text: str | None
    group: str = ""
    name: str = ""
    original: "_Record | None" = None
    place: tuple[str, int] = ("", 0)


@dataclass
class _Corpus:
    objects: dict[str, bytes] = field(default_factory=dict)
    planted: list[dict[str, Any]] = field(default_factory=list)
    clean: list[_Record] = field(default_factory=list)

    def add_file(self, key: str, content: bytes, record: _Record, kind: str | None = None) -> None:
        """An object that is one document."""
        self.objects[key] = content
        record.place = (key, 1)
        self.clean.append(record)
        if kind:
            self.planted.append({"kind": kind, "key": key, "record": 1, "text": record.text})


def make_sample_corpus(max_text_bytes: int = DEFAULT_TEXT_BYTES) -> Iterator[tuple[str, bytes]]:
    """Yield (key, bytes) of every object by key, the truth last; the same bytes on every run of one environment.

    Raises:
        ValueError: fewer than `MIN_TEXT_BYTES` are asked for: not every format would be there.
    """
    if max_text_bytes < MIN_TEXT_BYTES:
        raise ValueError(f"a sample of {max_text_bytes:,} bytes is too small; at least {MIN_TEXT_BYTES:,}")
    chance = random.Random(_SEED)
    corpus = _Corpus()
    documents = list(sample_documents(max_text_bytes))
    _add_topics(corpus, [d for d in documents if d.source == "python-docs"])
    _add_foreign(corpus)
    packages = [d for d in documents if d.source == "packages"]
    step = max(1, len(packages) // _NUM_MARKDOWN)
    markdown = packages[::step][:_NUM_MARKDOWN]
    for number, document in enumerate(markdown):
        key = f"{PREFIX}packages/notes-{number:02}.md"
        corpus.add_file(key, document.text.encode(), _record(document))
    tables = _tables([d for d in documents if d.source == "stdlib"], "stdlib", _LIBRARY_FORMATS)
    tables |= _tables([d for d in packages if d not in markdown], "packages", _PACKAGE_FORMATS)
    _plant(tables, chance)
    for key, records in tables.items():
        chance.shuffle(records)
        corpus.objects[key] = _serialise(key, records)
        _note_places(corpus, key, records)
    _break_objects(corpus)
    yield from sorted(corpus.objects.items())
    yield TRUTH_KEY, _truth(corpus)


def read_truth(content: bytes) -> dict[str, Any]:
    """What the maker planted: {"clean": [[key, record]], "planted": [{"kind", "key", "record", "original"}]}.

    Records count from 1: the line of a JSON-lines object, the row of a table or array, 1 of a file that is one
    document. `original` is the [key, record] that an exact or near duplicate was made from.
    """
    truth: dict[str, Any] = json.loads(content)
    return truth


def _record(document: SampleDocument) -> _Record:
    return _Record("clean", document.text, document.group, document.name)


def _add_topics(corpus: _Corpus, topics: list[SampleDocument]) -> None:
    for number, topic in enumerate(topics):
        key = f"{PREFIX}python-docs/{topic.name.lower()}"
        if number % 2:
            corpus.add_file(f"{key}.txt", topic.text.encode(), _record(topic))
        else:
            corpus.add_file(f"{key}.html", _as_html(topic).encode(), _record(topic), "html")


def _as_html(document: SampleDocument) -> str:
    """A page as a documentation site serves it: menu, script, paragraphs, and indented blocks as <pre>."""
    title = html.escape(document.name)
    parts = []
    for block in re.split(r"\n\s*\n", document.text):
        tag = "pre" if block.startswith(" ") else "p"
        parts.append(f"<{tag}>{html.escape(block, quote=False)}</{tag}>")
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body { margin: 2em }</style><script>var page = 1 < 2;</script></head>\n"
        '<body><nav><ul><li><a href="/">Home</a></li><li><a href="/index">Index</a></li></ul></nav>\n'
        f"<main><h1>{title}</h1>\n{body}\n</main>\n<footer>Copyright</footer></body></html>\n"
    )


def _add_foreign(corpus: _Corpus) -> None:
    """Texts in old encodings: each must come out as it went in."""
    french, chinese = foreign_texts()["french"], foreign_texts()["chinese"]
    folder = f"{PREFIX}python-docs/translated"
    variants = [
        ("latin1", french[0], french[0].encode("latin-1")),
        ("utf16", french[1], french[1].encode("utf-16")),
        ("mojibake", french[2], french[2].encode().decode("latin-1").encode()),
        ("gbk", chinese[0], chinese[0].encode("gbk")),
        ("gbk", chinese[1], chinese[1].encode("gbk")),
        ("utf8", chinese[2], chinese[2].encode()),
    ]
    for number, (kind, text, content) in enumerate(variants):
        corpus.add_file(f"{folder}-{number}-{kind}.txt", content, _Record("clean", text), kind)


def _tables(
    documents: list[SampleDocument], folder: str, formats: tuple[str, ...]
) -> dict[str, list[_Record]]:
    """Spread documents over objects of many records."""
    size = max(1, min(_RECORDS_PER_OBJECT, len(documents) // len(formats)))
    return {
        f"{PREFIX}{folder}/part-{number:03}{formats[number % len(formats)]}": [
            _record(d) for d in documents[start : start + size]
        ]
        for number, start in enumerate(range(0, len(documents), size))
    }


def _plant(tables: dict[str, list[_Record]], chance: random.Random) -> None:
    """Insert duplicates, missing texts and broken lines, in other objects than their originals where it can."""
    keys = list(tables)
    originals = [record for records in tables.values() for record in records]
    exact = chance.sample(originals, round(_EXACT_SHARE * len(originals)))
    taken = {id(record) for record in exact}
    candidates = [r for r in originals if id(r) not in taken and len((r.text or "").split()) >= 90]
    near = chance.sample(candidates, min(len(candidates), round(_NEAR_SHARE * len(originals))))
    for record in exact:
        tables[chance.choice(keys)].append(_Record("exact", record.text, record.group, record.name, record))
    for record in near:
        edited = _edit_lightly(record.text or "", chance)
        if edited is not None:
            tables[chance.choice(keys)].append(_Record("near", edited, record.group, record.name, record))
    for _ in range(max(2, round(_MISSING_SHARE * len(originals)))):
        tables[chance.choice(keys)].append(_Record("missing", chance.choice([None, ""]), "none", "none"))
    for key in keys:
        if key.split(".", 1)[1].startswith(("jsonl", "ndjson")):
            tables[key].append(_Record("broken_json", chance.choice(originals).text))


def _edit_lightly(text: str, chance: random.Random) -> str | None:
    """Replace about one word in a hundred; None when the texts would differ too much to be near duplicates."""
    words = list(re.finditer(r"\b[a-z]{4,}\b", text))
    if len(words) < 10:
        return None
    edited = text
    for match in sorted(chance.sample(words, max(1, len(text.split()) // 120)), key=lambda m: -m.start()):
        edited = f"{edited[: match.start()]}{chance.choice(('sometimes', 'usually', 'perhaps'))}{edited[match.end() :]}"
    return edited if _MIN_NEAR_JACCARD <= jaccard(text, edited) < 1 else None


def _serialise(key: str, records: list[_Record]) -> bytes:
    rows = [{"text": r.text, "name": r.name, "group": r.group} for r in records]
    suffix = key.split(".", 1)[1]
    if suffix == "parquet":
        return _as_parquet(rows)
    if suffix.startswith("csv"):
        content = _as_csv(rows)
    elif suffix == "json":
        content = json.dumps(rows, ensure_ascii=False, indent=1).encode()
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        broken = [n for n, record in enumerate(records) if record.kind == "broken_json"]
        for number in broken:
            lines[number] = lines[number][: len(lines[number]) // 2]
        content = ("\n".join(lines) + "\n").encode()
    return _compress(content, suffix.rpartition(".")[2])


def _compress(content: bytes, suffix: str) -> bytes:
    import zstandard

    if suffix == "gz":
        return gzip.compress(content, mtime=0)
    if suffix == "bz2":
        return bz2.compress(content)
    if suffix == "xz":
        return lzma.compress(content, preset=1)
    if suffix == "zst":
        return zstandard.ZstdCompressor(level=3).compress(content)
    return content


def _as_csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ["text", "name", "group"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _as_parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.large_string()), ("name", pa.string()), ("group", pa.string())])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), out, compression="zstd", write_page_checksum=True)
    return out.getvalue()


def _note_places(corpus: _Corpus, key: str, records: list[_Record]) -> None:
    for number, record in enumerate(records, start=1):
        record.place = (key, number)
        if record.kind == "clean":
            corpus.clean.append(record)
        else:
            corpus.planted.append(
                {"kind": record.kind, "key": key, "record": number, "original": record.original}
            )


def _break_objects(corpus: _Corpus) -> None:
    """An archive that was cut off, an empty object, and a table whose last row opens a quote and never closes it."""
    whole = next(content for key, content in corpus.objects.items() if key.endswith(".jsonl.gz"))
    key = f"{PREFIX}stdlib/part-cut.jsonl.gz"
    corpus.objects[key] = whole[: len(whole) * 2 // 3]
    corpus.planted.append({"kind": "truncated_object", "key": key, "record": None})
    key = f"{PREFIX}stdlib/part-none.jsonl"
    corpus.objects[key] = b""
    corpus.planted.append({"kind": "empty_object", "key": key, "record": None})
    key = next(key for key in corpus.objects if key.endswith(".csv"))
    rows = corpus.objects[key].count(b"\n")
    corpus.objects[key] += b'"This row opens a quote and never closes it,name,group\nso this line,is,lost\n'
    corpus.planted.append({"kind": "open_quote", "key": key, "record": None, "line": rows + 1})


def _truth(corpus: _Corpus) -> bytes:
    planted = [
        {**item, "original": list(item["original"].place) if item.get("original") else None}
        for item in corpus.planted
    ]
    truth = {"clean": sorted(list(record.place) for record in corpus.clean), "planted": planted}
    return (json.dumps(truth, ensure_ascii=False, indent=0) + "\n").encode()


def fill_bucket(client: Any, bucket: str, max_text_bytes: int) -> tuple[int, int]:
    """Make the bucket hold exactly this sample below `sample/`, and the truth. Returns (objects, bytes)."""
    existing = {b["Name"] for b in client.list_buckets().get("Buckets", [])}
    if bucket not in existing:
        client.create_bucket(Bucket=bucket)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=PREFIX)
    stale = {item["Key"] for page in pages for item in page.get("Contents", [])}
    objects = dict(make_sample_corpus(max_text_bytes))
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda item: client.put_object(Bucket=bucket, Key=item[0], Body=item[1]), objects.items()
            )
        )
    for key in sorted(stale - objects.keys()):
        client.delete_object(Bucket=bucket, Key=key)
    return len(objects) - 1, sum(map(len, objects.values()))


def main(arguments: list[str]) -> int:
    """Fill the bucket named first with as many bytes of clean text as named second."""
    import boto3
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path"}, request_checksum_calculation="when_required", max_pool_connections=8
    )
    client = boto3.client("s3", config=config)
    num_objects, num_bytes = fill_bucket(
        client, arguments[0], int(arguments[1]) if arguments[1:] else DEFAULT_TEXT_BYTES
    )
    sys.stdout.write(f"{num_objects} objects, {num_bytes:,} bytes in s3://{arguments[0]}/{PREFIX}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
