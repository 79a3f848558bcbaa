"""The stage clean: every document is kept or dropped with a reason, and nothing depends on the run."""

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.clean import CleanFigures, clean
from tasks.kit.errors import InputError
from tasks.kit.files import folder_digest
from tasks.kit.paths import Paths
from tasks.params.clean import CleanParams
from tasks.params.runtime import RuntimeParams

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("group", pa.string()),
        pa.field("meta", pa.string(), nullable=False),
    ]
)
PROSE = "A document of plain English prose that is long enough to be kept by every rule there is, number {}."
HTML = (
    "<!DOCTYPE html><html><body><h1>Title</h1><p>4 is &lt;5, and this paragraph is long enough to be kept by every "
    "rule: {}</p><pre>if x:\n    y</pre></body></html>"
)


def document(number: int, text: str | None, source: str = "web", form: str = "jsonl") -> dict[str, Any]:
    meta = json.dumps({"object": "a", "format": form})
    return {"id": f"{number:032x}", "text": text, "source": source, "group": None, "meta": meta}


def lay_out(root: Path, *shards: list[dict[str, Any]]) -> Paths:
    paths = Paths(root)
    paths.ingest_documents.mkdir(parents=True)
    for number, documents in enumerate(shards):
        table = pa.Table.from_pylist(documents, schema=SCHEMA)
        pq.write_table(table, paths.ingest_documents / f"{number:016x}.parquet", compression="zstd")
    return paths


def run(paths: Paths, params: CleanParams | None = None, num_workers: int = 1) -> CleanFigures:
    return clean(params or CleanParams(), RuntimeParams(num_workers=num_workers), paths)


def kept(paths: Paths) -> list[dict[str, Any]]:
    return [
        row for path in sorted(paths.clean_documents.iterdir()) for row in pq.read_table(path).to_pylist()
    ]


def dropped(paths: Paths) -> list[dict[str, Any]]:
    return [row for path in sorted(paths.clean_dropped.iterdir()) for row in pq.read_table(path).to_pylist()]


def test_every_document_is_kept_or_dropped_with_a_reason(tmp_path):
    paths = lay_out(
        tmp_path,
        [
            document(1, PROSE.format(1)),
            document(2, None),
            document(3, "  \n", "books"),
            document(4, "short", "books"),
            document(5, HTML.format(5)),
            document(6, "<b a=1><p>" + "".join(f"<b a={n}><p>" for n in range(3000)), form="html"),
        ],
        [document(7, "\ufffd" * 9 + PROSE.format(7)), document(8, PROSE.format("â\x80\x94"))],
    )
    figures = run(paths)
    assert dropped(paths) == [
        {"id": f"{2:032x}", "source": "web", "reason": "missing_text"},
        {"id": f"{3:032x}", "source": "books", "reason": "missing_text"},
        {"id": f"{4:032x}", "source": "books", "reason": "too_short"},
        {"id": f"{6:032x}", "source": "web", "reason": "html_unclosed_tags"},
        {"id": f"{7:032x}", "source": "web", "reason": "broken_characters"},
    ]
    assert figures.dropped_by_reason == {
        "broken_characters": 1, "html_unclosed_tags": 1, "missing_text": 2, "too_short": 1,
    }  # fmt: skip
    assert figures.documents_in == 8 == figures.documents_out + sum(figures.dropped_by_reason.values())
    assert figures.by_source == {
        "books": {"documents_in": 2, "documents_out": 0, "dropped": {"missing_text": 1, "too_short": 1}},
        "web": {
            "documents_in": 6,
            "documents_out": 3,
            "dropped": {"broken_characters": 1, "html_unclosed_tags": 1, "missing_text": 1},
        },
    }
    assert (figures.html_converted, figures.mojibake_repaired) == (1, 1)
    texts = {row["id"][-1]: row["text"] for row in kept(paths)}
    assert (
        texts["5"]
        == "Title\n\n4 is <5, and this paragraph is long enough to be kept by every rule: 5\n\nif x:\n    y"
    )
    assert texts["8"] == PROSE.format("—")


def test_columns_are_those_of_ingest_with_characters_and_script(tmp_path):
    paths = lay_out(tmp_path, [document(1, PROSE.format(1)), document(2, "天地玄黄宇宙洪荒" * 20)])
    run(paths)
    table = pq.read_table(paths.clean_documents / f"{0:016x}.parquet")
    assert table.column_names == [*SCHEMA.names, "characters", "script"]
    assert table.schema.field("characters").type == pa.int32()
    assert table["characters"].to_pylist() == [len(text) for text in table["text"].to_pylist()]
    assert table["script"].to_pylist() == ["latin", "han"]


def test_ten_samples_of_the_smallest_ids_are_kept_a_reason(tmp_path):
    numbers = [*range(40, 20, -1), *range(20)]
    paths = lay_out(
        tmp_path, [document(n, "x" * 50 + "y" * n) for n in numbers], [document(100, PROSE.format(1))]
    )
    samples = run(paths).dropped_samples["too_short"]
    assert [sample["id"] for sample in samples] == [f"{n:032x}" for n in range(10)]
    assert samples[3] == {"id": f"{3:032x}", "source": "web", "excerpt": "x" * 50 + "yyy"}


def test_an_excerpt_has_at_most_200_characters(tmp_path):
    paths = lay_out(tmp_path, [document(1, "1 " * 5000), document(2, PROSE.format(2))])
    assert [len(sample["excerpt"]) for sample in run(paths).dropped_samples["few_letters"]] == [200]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c"])
def test_separators_of_other_worlds_split_no_document(tmp_path, separator):
    text = PROSE.format(1) + separator + PROSE.format(2)
    paths = lay_out(tmp_path, [document(1, text)])
    run(paths)
    assert [row["text"] for row in kept(paths)] == [text]


def test_results_are_the_same_bytes_for_one_and_two_workers(tmp_path):
    shards = [
        [document(10 * s + n, PROSE.format(n) if n % 3 else "no") for n in range(1, 9)] for s in range(3)
    ]
    digests, figures = [], []
    for workers in (1, 2):
        paths = lay_out(tmp_path / str(workers), *shards)
        figures.append(json.dumps(dataclasses.asdict(run(paths, num_workers=workers))))
        digests.append(folder_digest(paths.data / "clean"))
    assert digests[0] == digests[1]
    assert figures[0] == figures[1]


def test_a_repeated_run_computes_only_the_new_shard(tmp_path, caplog):
    paths = lay_out(tmp_path, [document(1, PROSE.format(1))])
    run(paths)
    pq.write_table(
        pa.Table.from_pylist([document(2, PROSE.format(2))], schema=SCHEMA),
        paths.ingest_documents / "f.parquet",
    )
    with caplog.at_level("INFO", logger="train_llm"):
        figures = run(paths)
    assert figures.documents_out == 2
    assert caplog.messages.count("2 shards, 1 of them computed now") == 2


def test_nothing_kept_stops_with_the_reasons(tmp_path):
    with pytest.raises(
        InputError, match=r"none of 2 documents .* was kept.*'missing_text': 1, 'too_short': 1"
    ):
        run(lay_out(tmp_path, [document(1, None), document(2, "no")]))


def test_no_shards_stop_with_the_command_to_run(tmp_path):
    with pytest.raises(InputError, match="dvc repro ingest"):
        run(Paths(tmp_path))


def test_switches_leave_markup_and_mojibake_alone(tmp_path):
    texts = [HTML.format(1), PROSE.format("â\x80\x94")]
    paths = lay_out(tmp_path, [document(n, text) for n, text in enumerate(texts)])
    figures = run(paths, CleanParams(strip_html=False, fix_mojibake=False))
    assert (figures.html_converted, figures.mojibake_repaired) == (0, 0)
    assert kept(paths)[0]["text"] == HTML.format(1)


def test_no_real_document_is_lost(tmp_path, shared_data):
    """Chinese novels, books full of code, speeches, word problems: the rules drop none of them."""
    documents = []
    for folder in ("text/zh/rust-book-cn", "text/en/rust-book-en"):
        for file in sorted(shared_data(folder).rglob("*.md")):
            documents.append(document(len(documents), file.read_text(encoding="utf-8"), folder, "md"))
    for file in sorted(shared_data("text/zh").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            longest = max((value for value in json.loads(line).values() if isinstance(value, str)), key=len)
            documents.append(document(len(documents), longest, "novels"))
    with zipfile.ZipFile(shared_data("text/en/nltk_inaugural.zip")) as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith(".txt")):
            text = archive.read(name).decode("latin-1")  # three of them are UTF-8: mojibake as it happens
            documents.append(document(len(documents), text, "inaugural", "txt"))
    for line in shared_data("eval/gsm8k_test.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n"):
        documents.append(document(len(documents), "\n".join(json.loads(line).values()), "gsm8k"))
    paths = lay_out(tmp_path, documents)
    figures = run(paths)
    assert figures.dropped_by_reason == {}
    assert figures.by_script == {"han": 171, "latin": len(documents) - 171}
    assert not any("â\x80" in row["text"] or "\r" in row["text"] for row in kept(paths))
