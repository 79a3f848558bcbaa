"""The sample corpus: real, the same every time, and true to what it says it planted."""

import io
from pathlib import PurePosixPath

import pytest

from tasks.text.readers import format_of, read_records
from tasks.text.records import Limits, Record
from tasks.text.sample_corpus import MIN_TEXT_BYTES, TRUTH_KEY, make_sample_corpus, read_truth
from tasks.text.sample_documents import is_prose_like, jaccard, sample_documents

SIZE = 120_000


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    return dict(make_sample_corpus(SIZE))


def text_of(objects: dict[str, bytes], key: str, number: int) -> str:
    """Text of one record, as the stage ingest reads it."""
    for item in read_records(io.BytesIO(objects[key]), format_of(key), Limits(1 << 24, 1 << 30, ("text",))):
        if isinstance(item, Record) and item.number == number:
            return str(item.fields["text"])
    raise AssertionError(f"{key} holds no record {number}")


def test_the_same_bytes_come_every_time(objects: dict[str, bytes]) -> None:
    assert dict(make_sample_corpus(SIZE)) == objects


def test_the_text_is_as_much_as_was_asked_for(objects: dict[str, bytes]) -> None:
    assert 0.9 * SIZE <= sum(len(d.text.encode()) for d in sample_documents(SIZE)) <= 1.3 * SIZE


def test_too_small_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        next(make_sample_corpus(MIN_TEXT_BYTES - 1))


def test_every_format_and_compression_is_there(objects: dict[str, bytes]) -> None:
    suffixes = {suffix for key in objects for suffix in PurePosixPath(key).suffixes}
    assert suffixes >= {
        ".html",
        ".txt",
        ".md",
        ".json",
        ".jsonl",
        ".ndjson",
        ".csv",
        ".parquet",
        ".gz",
        ".bz2",
        ".xz",
        ".zst",
    }


def test_planted_duplicates_are_what_they_are_said_to_be(objects: dict[str, bytes]) -> None:
    checked = {"exact": 0, "near": 0}
    for item in read_truth(objects[TRUTH_KEY])["planted"]:
        if item["kind"] in checked:
            copy, original = (
                text_of(objects, item["key"], item["record"]),
                text_of(objects, *item["original"]),
            )
            assert copy == original if item["kind"] == "exact" else 0.85 <= jaccard(copy, original) < 1
            checked[item["kind"]] += 1
    assert min(checked.values()) >= 5


def test_no_two_clean_documents_are_near_duplicates() -> None:
    documents = [d.text for d in sample_documents(60_000)]
    assert all(is_prose_like(text) for text in documents)
    worst = max(jaccard(a, b) for n, a in enumerate(documents) for b in documents[:n])
    assert worst < 0.8
