"""The snapshot: all pages, the right keys, and messages where there is nothing."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.kit.errors import EnvironmentProblem, InputError, ParamsError
from tasks.kit.object_store import SAMPLE_BYTES_VARIABLE, ObjectStore, open_store
from tasks.kit.paths import Paths
from tasks.params.runtime import RuntimeParams
from tasks.params.snapshot import SnapshotParams
from tasks.params.tokenize import TokenizeParams
from tasks.params.train import TrainParams
from tasks.snapshot import SnapshotFigures, snapshot

EMBEDDED = RuntimeParams()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return Paths(tmp_path_factory.mktemp("snapshot"))


@pytest.fixture(scope="module")
def store(paths: Paths) -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SAMPLE_BYTES_VARIABLE, "40000")
        with open_store(EMBEDDED, paths) as opened:
            yield opened


def put(store: ObjectStore, keys: list[str], bucket: str = "corpus", body: bytes = b"x") -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: store.client.put_object(Bucket=bucket, Key=key, Body=body), keys))


def take(
    paths: Paths, source: str, **patterns: tuple[str, ...]
) -> tuple[SnapshotFigures, list[dict[str, object]]]:
    figures = snapshot(
        SnapshotParams(source=source, **patterns), TokenizeParams(), TrainParams(), EMBEDDED, paths
    )
    return figures, json.loads(paths.snapshot_manifest.read_text())["objects"]


def test_the_sample_is_listed_and_twice_the_same(paths: Paths, store: ObjectStore) -> None:
    first, objects = take(paths, "s3://corpus/sample/")
    content = paths.snapshot_manifest.read_bytes()
    assert first.objects == len(objects) > 20
    assert first.bytes == sum(int(str(o["size"])) for o in objects)
    assert all(str(o["key"]).startswith("sample/") for o in objects)
    assert take(paths, "s3://corpus/sample/")[0] == first
    assert paths.snapshot_manifest.read_bytes() == content


def test_more_than_a_page_of_keys_is_listed_in_order(paths: Paths, store: ObjectStore) -> None:
    keys = [f"many/{number:05}.txt" for number in range(1203)]
    put(store, keys)
    figures, objects = take(paths, "s3://corpus/many/")
    assert figures.objects == 1203
    assert [o["key"] for o in objects] == keys


def test_folder_placeholders_and_namesakes_are_left_out(paths: Paths, store: ObjectStore) -> None:
    put(store, ["books/a.txt", "books2/b.txt"])
    store.client.put_object(Bucket="corpus", Key="books/", Body=b"")
    for source in ("s3://corpus/books/", "s3://corpus/books"):
        assert [o["key"] for o in take(paths, source)[1]] == ["books/a.txt"]


def test_patterns_choose_keys_below_the_source(paths: Paths, store: ObjectStore) -> None:
    put(store, ["chosen/en/a.txt", "chosen/en/a.pdf", "chosen/de/b.txt"])
    figures, objects = take(paths, "s3://corpus/chosen/", include=("*.txt",), exclude=("de/*",))
    assert [o["key"] for o in objects] == ["chosen/en/a.txt"]
    with pytest.raises(InputError, match=r"none of the 3 objects.*snapshot\.include"):
        take(paths, "s3://corpus/chosen/", include=("*.jsonl",))


def test_other_bytes_under_the_same_name_and_size_are_noticed(paths: Paths, store: ObjectStore) -> None:
    put(store, ["change/a.txt"], body=b"1")
    before = take(paths, "s3://corpus/change/")[0]
    put(store, ["change/a.txt"], body=b"2")
    after = take(paths, "s3://corpus/change/")[0]
    assert (before.objects, before.bytes) == (after.objects, after.bytes)
    assert before.digest != after.digest


def test_versions_are_recorded_where_the_bucket_keeps_them(paths: Paths, store: ObjectStore) -> None:
    store.client.create_bucket(Bucket="versioned")
    store.client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    put(store, ["a.txt"], "versioned", b"old")
    put(store, ["a.txt", "b.txt"], "versioned", b"new")
    store.client.delete_object(Bucket="versioned", Key="b.txt")
    objects = take(paths, "s3://versioned/")[1]
    latest = store.client.head_object(Bucket="versioned", Key="a.txt")
    assert [(o["key"], o["version_id"]) for o in objects] == [("a.txt", latest["VersionId"])]


def test_nothing_found_names_the_source(paths: Paths, store: ObjectStore) -> None:
    with pytest.raises(InputError, match=r"s3://corpus/absent/ holds no object"):
        take(paths, "s3://corpus/absent/")


def test_a_missing_bucket_is_told(paths: Paths, store: ObjectStore) -> None:
    with pytest.raises(EnvironmentProblem, match=r"s3://absent/.*does not exist"):
        take(paths, "s3://absent/")


def test_a_folder_is_listed_with_digests(tmp_path: Path) -> None:
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("b")
    (tmp_path / "texts" / "deep" / "a.txt").write_text("a")
    figures, objects = take(Paths(tmp_path), "texts")
    assert [(o["key"], o["size"]) for o in objects] == [("b.txt", 1), ("deep/a.txt", 1)]
    (tmp_path / "texts" / "b.txt").write_text("c")
    assert take(Paths(tmp_path), "texts")[0].digest != figures.digest


def test_a_missing_folder_and_a_strange_url_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'absent' is no folder"):
        take(Paths(tmp_path), "absent")
    with pytest.raises(ParamsError, match="expected s3://bucket/prefix/"):
        take(Paths(tmp_path), "ftp://host/corpus")


def test_a_changed_tokenizer_folder_of_the_same_name_shows(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("text")
    (tmp_path / "tokenizer").mkdir()
    paths = Paths(tmp_path)
    seen = []
    for content in ("one", "one", "two"):
        (tmp_path / "tokenizer" / "tokenizer.json").write_text(content)
        tokenizing = TokenizeParams(tokenizer=str(tmp_path / "tokenizer"))
        snapshot(SnapshotParams(source="corpus"), tokenizing, TrainParams(), EMBEDDED, paths)
        seen.append(paths.pretrained_tokenizer.read_text())
    assert seen[0] == seen[1] != seen[2]
    assert paths.pretrained_model.read_text() == "{}\n"


def test_a_name_that_is_neither_folder_nor_hub_id_is_refused_by_its_key(tmp_path: Path) -> None:
    training = TrainParams(base_model="no/such/folder")
    with pytest.raises(ParamsError, match=r"train\.base_model: 'no/such/folder'"):
        snapshot(SnapshotParams(source="corpus"), TokenizeParams(), training, EMBEDDED, Paths(tmp_path))


def test_a_file_name_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "corpus") + b"/bad\xff.txt")).write_text("text")
    with pytest.raises(InputError, match=r"bad.*not UTF-8; rename"):
        snapshot(SnapshotParams(source="corpus"), TokenizeParams(), TrainParams(), EMBEDDED, Paths(tmp_path))
