"""Readers: every format gives its records, and what cannot be read is named with its line."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.text.readers import Format, Limits, format_of, read_records
from tasks.text.records import ObjectFault, Record, RecordFault

LIMITS = Limits(1 << 20, 1 << 24, ("text", "content"))


def read(key: str, content: bytes, limits: Limits = LIMITS) -> list[Record | RecordFault]:
    return list(read_records(io.BytesIO(content), format_of(key), limits))


def texts(key: str, content: bytes) -> list[object]:
    return [item.fields["text"] if isinstance(item, Record) else item.reason for item in read(key, content)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a/b.jsonl.gz", Format("jsonl", "gz")),
        ("a.b/2024.01.03.CSV", Format("csv", None)),
        ("page.HTM", Format("htm", None)),
        ("x.parquet.zst", Format("parquet", "zst")),
    ],
)
def test_the_format_is_told_by_the_suffixes(key: str, expected: Format) -> None:
    assert format_of(key) == expected


@pytest.mark.parametrize("key", ["a/README", "a/b.pdf", "a/b.gz", "a.jsonl/part-1"])
def test_an_unknown_format_is_refused_with_the_known_ones(key: str) -> None:
    with pytest.raises(ObjectFault, match=r"unknown_format.*\.jsonl"):
        format_of(key)


def test_a_wrong_suffix_is_refused() -> None:
    with pytest.raises(ObjectFault, match="damaged"):
        read("a.jsonl.gz", b'{"text": "not packed at all"}\n')
    with pytest.raises(ObjectFault, match="damaged"):
        read("a.parquet", b'{"text": "no parquet"}\n' * 10)


def test_a_text_file_is_one_document() -> None:
    assert texts("a.md", "# Title\n\n  code\n".encode("utf-8-sig")) == ["# Title\n\n  code\n"]


def test_lines_end_at_line_feeds_only() -> None:
    rows = ["a\u2028b", "c\u0085d", "e\x0cf", "g\x1dh"]
    content = "\n".join(json.dumps({"text": row}, ensure_ascii=False) for row in rows[:2]).encode()
    assert texts("a.jsonl", content) == rows[:2]
    table = "text,n\n" + "".join(f"{row},1\n" for row in rows)
    assert texts("a.csv", table.encode()) == rows


def test_broken_lines_are_named_and_the_others_read() -> None:
    content = b'{"text": "one"}\n\n{"text": "tw\n[1]\n{"text": "\xff"}\n{"text": NaN}\n{"text": "end"}'
    items = read("a.jsonl", content)
    assert [(i.line, i.reason) for i in items if isinstance(i, RecordFault)] == [
        (3, "invalid_json"),
        (4, "not_an_object"),
        (5, "invalid_encoding"),
        (6, "invalid_json"),
    ]
    assert [(i.number, i.fields["text"]) for i in items if isinstance(i, Record)] == [(1, "one"), (7, "end")]


def test_a_lone_surrogate_is_refused() -> None:
    assert texts("a.jsonl", b'{"text": "\\ud800"}\n{"text": "\\ud83d\\ude00"}') == [
        "invalid_json",
        "\U0001f600",
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le-bom"])
def test_marks_are_understood_and_gone(encoding: str) -> None:
    text = '{"text": "first \u4e2d"}\n{"text": "second"}\n'
    content = b"\xff\xfe" + text.encode("utf-16-le") if encoding == "utf-16-le-bom" else text.encode(encoding)
    assert texts("a.jsonl", content) == ["first 中", "second"]


def test_a_line_over_the_limit_is_refused_by_its_number_and_the_next_one_read() -> None:
    content = b'{"text": "a"}\n{"text": "' + b"x" * 3_000_000 + b'"}\n{"text": "b"}\n'
    items = read("a.jsonl", content)
    assert [i.fields["text"] if isinstance(i, Record) else (i.line, i.reason) for i in items] == [
        "a",
        (2, "line_too_long"),
        "b",
    ]
    assert read("a.jsonl", content, Limits(4_000_000, 1 << 24, ("text",)))[1].line == 2


def test_json_comes_as_an_array_an_object_or_a_list_inside() -> None:
    rows = [{"text": "a"}, {"text": "b"}]
    for value in (rows, {"version": 1, "data": rows}):
        assert texts("a.json", json.dumps(value).encode()) == ["a", "b"]
    assert texts("a.json", b'{"text": "one", "data": [{"text": "x"}]}') == ["one"]
    assert texts("a.json", b'[{"text": "a"}, 3]') == ["a", "not_an_object"]


def test_json_test_suite(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("messy/json/JSONTestSuite")
    good, bad = sorted(folder.rglob("y_*.json")), sorted(folder.rglob("n_*.json"))
    assert (len(good), len(bad)) == (95, 186)
    for path in good:
        list(read_records(io.BytesIO(path.read_bytes()), Format("json", None), LIMITS))
    accepted = []
    for path in bad:
        if not path.read_bytes().removeprefix(b"\xef\xbb\xbf").strip():
            continue  # an empty file holds no record, and is warned of by name
        try:
            read("a.json", path.read_bytes())
        except ObjectFault:
            continue
        accepted.append(path.name)
    assert accepted == []


def test_csv_spectrum(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("messy/csv/csv-spectrum")
    compared = 0
    for path in sorted((folder / "csvs").glob("*.csv")):
        truth = json.loads((folder / "json" / f"{path.stem}.json").read_text(encoding="utf-8"))
        content = path.read_bytes()
        if path.stem.endswith("_crlf") and b"\r" not in content:
            continue  # this copy has lost its carriage returns: it cannot give the truth
        header = next(csv.reader([content.decode().split("\n")[0]]))
        rows = read("a.csv", content, Limits(1 << 20, 1 << 24, (header[0],)))
        assert [dict(row.fields) for row in rows if isinstance(row, Record)] == truth, path.name
        compared += 1
    assert compared >= 7


def test_an_open_quote_costs_counted_lines_and_not_the_rest() -> None:
    content = b'text,n\nfirst,1\n"opens,2\nlost,3\n"also lost",4\nkept,5\n'
    items = read("a.csv", content)
    assert [i.fields["text"] if isinstance(i, Record) else (i.line, i.reason, i.lost) for i in items] == [
        "first",
        (3, "open_quote", 3),
        "kept",
    ]


def test_an_open_quote_up_to_the_end_is_named() -> None:
    content = b'text,n\nfirst,1\n"opens,2\n' + b"lost,3\n" * 50
    fault = read("a.csv", content)[-1]
    assert isinstance(fault, RecordFault)
    assert (fault.line, fault.reason, fault.lost) == (3, "open_quote", 51)


def test_an_open_quote_in_a_large_table_is_stopped_at_the_limit() -> None:
    content = b'text,n\n"opens,2\n' + b"row,3\n" * 40_000
    items = read("a.csv", content, Limits(100_000, 1 << 24, ("text",)))
    fault = items[0]
    assert isinstance(fault, RecordFault)
    assert (fault.line, fault.reason) == (2, "open_quote")
    assert fault.lost + sum(isinstance(i, Record) for i in items) == 40_001


def test_rows_of_another_width_are_named() -> None:
    assert texts("a.tsv", b"text\tn\na\t1\nb\nc\t1\t2\nd\t4\n") == ["a", "field_count", "field_count", "d"]


def test_quoted_line_breaks_stay_and_lines_are_counted() -> None:
    items = read("a.csv", b'text,n\n"a\r\nb",1\nc,2\n')
    assert [(i.line, dict(i.fields)) for i in items if isinstance(i, Record)] == [
        (2, {"text": "a\r\nb", "n": "1"}),
        (4, {"text": "c", "n": "2"}),
    ]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"text,text\na,b\n", "invalid_header"), (b"title,n\na,1\n", "no_text_field")]
)
def test_a_header_that_cannot_serve_refuses_the_table(content: bytes, reason: str) -> None:
    with pytest.raises(ObjectFault, match=reason):
        read("a.csv", content)


def test_parquet_rows_come_with_nulls_and_scalars() -> None:
    out = io.BytesIO()
    pq.write_table(
        pa.table({"text": ["a", None, "c"], "n": [1, 2, 3], "list": [[1], [2], [3]]}), out, row_group_size=2
    )
    rows = read("a.parquet.gz", gzip.compress(out.getvalue()))
    assert [dict(row.fields) for row in rows if isinstance(row, Record)] == [
        {"text": "a", "n": 1},
        {"text": None, "n": 2},
        {"text": "c", "n": 3},
    ]


def test_a_parquet_string_that_is_no_utf8_is_named() -> None:
    column = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x02\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    out = io.BytesIO()
    pq.write_table(pa.table({"text": column}), out)
    assert texts("a.parquet", out.getvalue()) == ["a", "invalid_encoding"]


def test_a_parquet_page_with_a_wrong_checksum_is_refused(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("messy/parquet/data")
    limits = Limits(1 << 20, 1 << 24, ("a",))
    sound = (folder / "datapage_v1-uncompressed-checksum.parquet").read_bytes()
    assert len(read("a.parquet", sound, limits)) == 5120
    with pytest.raises(ObjectFault, match="damaged"):
        read("a.parquet", (folder / "datapage_v1-corrupt-checksum.parquet").read_bytes(), limits)


def test_empty_objects_hold_no_record() -> None:
    for key in ("a.txt", "a.jsonl", "a.json", "a.csv", "a.parquet", "a.jsonl.gz"):
        assert read(key, b"") == []
