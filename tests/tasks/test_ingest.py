"""Ingest: every object of the sample becomes documents or is named in the quarantine; limits hold."""

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.ingest import IngestFigures, group_objects, ingest, source_name
from tasks.kit.errors import EnvironmentProblem, InputError
from tasks.kit.object_store import SAMPLE_BYTES_VARIABLE, ObjectStore, open_store
from tasks.kit.paths import Paths
from tasks.kit.sources import ObjectEntry
from tasks.params.ingest import IngestParams
from tasks.params.runtime import RuntimeParams
from tasks.params.snapshot import SnapshotParams
from tasks.params.tokenize import TokenizeParams
from tasks.params.train import TrainParams
from tasks.snapshot import snapshot
from tasks.text.documents import DOCUMENT_SCHEMA
from tasks.text.records import document_id
from tasks.text.sample_corpus import TRUTH_KEY, read_truth

INLINE = RuntimeParams(num_workers=1)
RELAXED = IngestParams(max_refused_share=1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return Paths(tmp_path_factory.mktemp("ingest"))


@pytest.fixture(scope="module")
def store(project: Paths) -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SAMPLE_BYTES_VARIABLE, "200000")
        with open_store(INLINE, project) as opened:
            yield opened


def read_corpus(
    paths: Paths, source: str, params: IngestParams = RELAXED, runtime: RuntimeParams = INLINE
) -> IngestFigures:
    snapshot(SnapshotParams(source=source), TokenizeParams(), TrainParams(), runtime, paths)
    return ingest(params, runtime, paths)


def rows_of(paths: Paths) -> dict[str, dict[str, Any]]:
    files = sorted(paths.ingest_documents.glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
    return {row["id"]: row for row in rows}


def quarantine_of(paths: Paths) -> list[dict[str, Any]]:
    return [json.loads(line) for line in paths.ingest_quarantine.read_text(encoding="utf-8").splitlines()]


def folder_of(tmp_path: Path, files: dict[str, bytes]) -> Paths:
    for name, content in files.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Paths(tmp_path)


def test_the_sample_comes_out_as_its_maker_says(project: Paths, store: ObjectStore) -> None:
    figures = read_corpus(project, "s3://corpus/sample/", IngestParams())
    truth = read_truth(store.client.get_object(Bucket="corpus", Key=TRUTH_KEY)["Body"].read())
    rows, faults = rows_of(project), quarantine_of(project)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for item in truth["planted"]:
        kinds.setdefault(item["kind"], []).append(item)
    assert {document_id(*place) for place in truth["clean"]} <= rows.keys(), "a clean document is lost"
    for item in kinds["exact"]:
        copy, original = rows[document_id(item["key"], item["record"])], rows[document_id(*item["original"])]
        assert copy["text"] == original["text"]
    for kind in ("latin1", "utf16", "gbk", "utf8"):
        for item in kinds[kind]:
            assert rows[document_id(item["key"], item["record"])]["text"] == item["text"]
    for item in kinds["missing"]:
        assert rows[document_id(item["key"], item["record"])]["text"] is None
    found = {(fault["object"], fault["line"], fault["reason"]) for fault in faults}
    assert found == {
        *((item["key"], item["record"], "invalid_json") for item in kinds["broken_json"]),
        *((item["key"], item["line"], "open_quote") for item in kinds["open_quote"]),
        *((item["key"], None, "truncated") for item in kinds["truncated_object"]),
    }
    planted = sum(len(kinds[kind]) for kind in ("exact", "near", "missing"))
    assert figures.documents == len(rows) == len(truth["clean"]) + planted
    assert figures.empty_objects == len(kinds["empty_object"])
    assert set(figures.by_source) == {"packages", "python-docs", "stdlib"}


def test_two_workers_give_the_same_bytes_as_one(project: Paths, store: ObjectStore, tmp_path: Path) -> None:
    first = read_corpus(project, "s3://corpus/sample/")
    other = Paths(tmp_path)
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "s3").symlink_to(project.state / "s3")
    assert read_corpus(other, "s3://corpus/sample/", runtime=RuntimeParams(num_workers=2)) == first
    contents = [
        {f.name: f.read_bytes() for f in sorted(p.ingest_documents.glob("*"))} for p in (project, other)
    ]
    assert contents[0] == contents[1]
    assert project.ingest_quarantine.read_bytes() == other.ingest_quarantine.read_bytes()


def test_a_document_has_its_schema_source_group_and_meta(tmp_path: Path) -> None:
    line = b'{"body": "Some text", "group": 7, "stars": 5, "tags": ["a"], "title": "T"}\n'
    paths = folder_of(tmp_path, {"web/2024/a.jsonl": b"\n" + line, "notes.txt": b"Top"})
    read_corpus(paths, "corpus")
    (file,) = {pq.read_schema(f) for f in paths.ingest_documents.glob("*.parquet")}
    assert file.equals(DOCUMENT_SCHEMA)
    row = rows_of(paths)[document_id("web/2024/a.jsonl", 2)]
    assert (row["text"], row["source"], row["group"]) == ("Some text", "web", "7")
    assert json.loads(row["meta"]) == {
        "object": "web/2024/a.jsonl",
        "record": 2,
        "line": 2,
        "format": "jsonl",
        "fields": {"stars": 5, "title": "T"},
    }
    assert rows_of(paths)[document_id("notes.txt", 1)]["source"] == source_name("notes.txt") == "notes"


def test_records_without_text_are_told_apart(tmp_path: Path) -> None:
    lines = [b'{"text": null}', b'{"text": ""}', b'{"title": "x"}', b'{"text": 5}', b'{"text": "fine"}']
    paths = folder_of(tmp_path, {"a.jsonl": b"\n".join(lines)})
    figures = read_corpus(paths, "corpus")
    assert (figures.documents, figures.missing_texts, figures.refused_records) == (3, 2, 2)
    assert [(f["line"], f["reason"]) for f in quarantine_of(paths)] == [
        (3, "no_text_field"),
        (4, "text_not_a_string"),
    ]
    assert "title" in quarantine_of(paths)[0]["excerpt"]


def test_too_many_refused_records_stop_the_stage_with_the_numbers(tmp_path: Path) -> None:
    paths = folder_of(tmp_path, {"a.jsonl": b'{"text": "good"}\n' * 9 + b'{"text": \n'})
    with pytest.raises(InputError, match=r"1 of 10 records \(10\.0%\).*5\.0%.*invalid_json 1 x.*a\.jsonl:10"):
        read_corpus(paths, "corpus", IngestParams())
    assert read_corpus(paths, "corpus", IngestParams(max_refused_share=0.1)).documents == 9


def test_too_many_refused_objects_stop_the_stage(tmp_path: Path) -> None:
    paths = folder_of(tmp_path, {"a.txt": b"Good text", "b.pdf": b"%PDF"})
    with pytest.raises(InputError, match=r"1 of 2 objects \(50\.0%\).*unknown_format.*b\.pdf"):
        read_corpus(paths, "corpus", IngestParams())


def test_no_document_at_all_is_an_error(tmp_path: Path) -> None:
    paths = folder_of(tmp_path, {"a.txt": b"", "b.jsonl": b'{"text": ""}\n'})
    with pytest.raises(InputError, match="no document with text in the 2 objects"):
        read_corpus(paths, "corpus", IngestParams())


def test_an_empty_object_is_warned_of_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = folder_of(tmp_path, {"a.txt": b"Text", "none.jsonl": b""})
    with caplog.at_level("WARNING", logger="train_llm"):
        assert read_corpus(paths, "corpus").empty_objects == 1
    assert "none.jsonl holds no record" in caplog.text


def test_nothing_of_an_object_cut_off_is_used(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'{"text": "line %d"}\n' % n for n in range(20_000)))
    paths = folder_of(tmp_path, {"a.txt": b"Text", "b.jsonl.gz": whole[: len(whole) // 2]})
    figures = read_corpus(paths, "corpus")
    assert (figures.documents, figures.refused_objects) == (1, 1)
    assert [(f["object"], f["line"], f["reason"]) for f in quarantine_of(paths)] == [
        ("b.jsonl.gz", None, "truncated")
    ]


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    paths = folder_of(tmp_path, {"a.txt": b"Text", "b.txt.gz": gzip.compress(b"\0" * 5_000_000)})
    read_corpus(
        paths,
        "corpus",
        IngestParams(max_refused_share=1, max_object_bytes=1_000_000, max_document_bytes=10**8),
    )
    assert [f["reason"] for f in quarantine_of(paths)] == ["unpacks_too_large"]


def test_an_object_changed_since_the_snapshot_is_named(
    project: Paths, store: ObjectStore, tmp_path: Path
) -> None:
    store.client.put_object(Bucket="corpus", Key="changing/a.txt", Body=b"First text")
    snapshot(SnapshotParams(source="s3://corpus/changing/"), TokenizeParams(), TrainParams(), INLINE, project)
    store.client.put_object(Bucket="corpus", Key="changing/a.txt", Body=b"Other text")
    with pytest.raises(
        InputError, match=r"s3://corpus/changing/a\.txt was changed or removed since the snapshot"
    ):
        ingest(RELAXED, INLINE, project)
    paths = folder_of(tmp_path, {"a.txt": b"First text"})
    snapshot(SnapshotParams(source="corpus"), TokenizeParams(), TrainParams(), INLINE, paths)
    (tmp_path / "corpus" / "a.txt").write_bytes(b"Other text")
    with pytest.raises(InputError, match=r"corpus/a\.txt was changed"):
        ingest(RELAXED, INLINE, paths)


def test_a_version_that_the_snapshot_saw_is_read_although_a_newer_one_came(
    project: Paths, store: ObjectStore
) -> None:
    store.client.create_bucket(Bucket="kept")
    store.client.put_bucket_versioning(Bucket="kept", VersioningConfiguration={"Status": "Enabled"})
    store.client.put_object(Bucket="kept", Key="a.txt", Body=b"First text")
    snapshot(SnapshotParams(source="s3://kept/"), TokenizeParams(), TrainParams(), INLINE, project)
    store.client.put_object(Bucket="kept", Key="a.txt", Body=b"Newer text")
    ingest(RELAXED, INLINE, project)
    assert [row["text"] for row in rows_of(project).values()] == ["First text"]


def test_an_added_object_changes_one_group_only() -> None:
    entries = [ObjectEntry(f"part-{n:03}", 1, "e") for n in range(200)]
    before = {tuple(e.key for e in group) for group in group_objects(entries, 16)}
    after = {
        tuple(e.key for e in group)
        for group in group_objects([*entries, ObjectEntry("part-100a", 1, "e")], 16)
    }
    assert len(before) > 5
    assert len(before - after) <= 1
    assert group_objects(entries[::-1], 16) == group_objects(entries, 16)


class HalfServer(threading.Thread):
    """A loopback proxy in front of the store that cuts the first answers to GETs of an object off in the middle."""

    def __init__(self, target: int, cuts: int) -> None:
        super().__init__(daemon=True)
        self.target, self.cuts, self.requests = target, cuts, []  # type: ignore[var-annotated]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            request = b""
            while b"\r\n\r\n" not in request and (part := client.recv(65536)):
                request += part
            server.sendall(request.replace(b"Connection: keep-alive", b"Connection: close"))
            is_object = request.startswith(b"GET /corpus/large/")
            self.requests.append(request)
            cut, sent = is_object and self.cuts > 0, 0
            self.cuts -= cut
            server.settimeout(2)
            try:
                while part := server.recv(65536):
                    client.sendall(part)
                    sent += len(part)
                    if cut and sent > 300_000:
                        return
            except TimeoutError:
                return


@pytest.fixture
def broken_line(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], tuple[HalfServer, RuntimeParams]]]:
    """A store behind a line that breaks off so many times."""
    servers: list[HalfServer] = []
    for name, value in store.environment().items():
        if name != "AWS_ENDPOINT_URL_S3":
            monkeypatch.setenv(name, value)
    monkeypatch.setattr("tasks.kit.sources.time.sleep", lambda seconds: None)

    def start(cuts: int) -> tuple[HalfServer, RuntimeParams]:
        servers.append(HalfServer(int(store.endpoint.rpartition(":")[2]), cuts))
        servers[-1].start()
        return servers[-1], RuntimeParams(num_workers=1, object_store=f"http://127.0.0.1:{servers[-1].port}")

    yield start
    for server in servers:
        server.listener.close()


TEXT = "".join(f"{number:07} of a long text\n" for number in range(60_000))


def test_a_download_that_breaks_off_goes_on_where_it_was(
    store: ObjectStore, tmp_path: Path, broken_line: Callable[[int], tuple[HalfServer, RuntimeParams]]
) -> None:
    store.client.put_object(Bucket="corpus", Key="large/a.txt", Body=TEXT.encode())
    server, runtime = broken_line(2)
    read_corpus(Paths(tmp_path), "s3://corpus/large/", runtime=runtime)
    assert [row["text"] for row in rows_of(Paths(tmp_path)).values()] == [TEXT]
    assert any(b"Range: bytes=" in request or b"range: bytes=" in request for request in server.requests)


def test_a_download_that_always_breaks_off_is_refused_and_leaves_nothing(
    store: ObjectStore, tmp_path: Path, broken_line: Callable[[int], tuple[HalfServer, RuntimeParams]]
) -> None:
    store.client.put_object(Bucket="corpus", Key="large/a.txt", Body=(TEXT * 3).encode())
    _, runtime = broken_line(100)
    paths = Paths(tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"s3://corpus/large/a\.txt could not be read whole"):
        read_corpus(paths, "s3://corpus/large/", runtime=runtime)
    assert not paths.ingest_documents.exists()
    assert not list(paths.shard_store("ingest").glob("*.json"))
