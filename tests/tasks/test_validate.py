"""The gate passes sound data, and names what is wrong with any other before a step is trained."""

import dataclasses
import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tasks.kit.errors import GateError, InputError
from tasks.kit.files import read_json, write_json
from tasks.kit.paths import Paths
from tasks.model.token_files import map_index, read_manifest, write_index
from tasks.params.runtime import RuntimeParams
from tasks.params.split import SplitParams
from tasks.params.tokenize import TokenizeParams
from tasks.params.validate import ValidateParams
from tasks.split import split
from tasks.tokenization import tokenize
from tasks.validate import validate

SIDES = SplitParams(block_size=64)
SUITES = Path(__file__).resolve().parents[2] / "data" / "expectations"


def real_documents() -> list[dict[str, object]]:
    """Paragraphs of Python's language reference."""
    texts = {p for text in topics.topics.values() for p in re.split(r"\n\n+", text) if len(p) > 120}
    rows = []
    for number, text in enumerate(sorted(texts)):
        digest = xxhash.xxh3_128_hexdigest(text.encode())
        group = f"topic {number % 9}" if number % 10 == 0 else None
        rows.append({"id": digest, "text": text, "source": "topics", "group": group, "cluster": digest[:16]})
    return [{**row, "characters": len(str(row["text"]))} for row in rows]


def write_documents(paths: Paths, documents: list[dict[str, object]]) -> None:
    paths.dedupe_documents.mkdir(parents=True, exist_ok=True)
    strings = [(name, pa.string()) for name in ("id", "source", "group", "cluster")]
    schema = pa.schema([*strings, ("text", pa.large_string()), ("characters", pa.int32())])
    pq.write_table(pa.Table.from_pylist(documents, schema), paths.dedupe_documents / "0a.parquet")
    n = len(documents)
    write_json(paths.metrics("ingest"), {"documents": n + 30})
    clean = {
        "documents_in": n + 30,
        "documents_out": n + 10,
        "dropped_by_reason": {"short": 15, "missing_text": 5},
    }
    write_json(paths.metrics("clean"), clean)
    dedupe = {"documents_in": n + 10, "documents_out": n, "exact_removed": 4, "near_removed": 6}
    write_json(paths.metrics("dedupe"), dedupe)


def run_stages(paths: Paths) -> None:
    tokenized = tokenize(TokenizeParams(vocabulary_size=1000), SIDES, RuntimeParams(num_workers=1), paths)
    write_json(paths.metrics("tokenize"), dataclasses.asdict(tokenized))
    write_json(paths.metrics("split"), dataclasses.asdict(split(SIDES, paths)))


@pytest.fixture(scope="module")
def sound_project(tmp_path_factory):
    paths = Paths(tmp_path_factory.mktemp("sound"))
    write_documents(paths, real_documents())
    run_stages(paths)
    shutil.copytree(SUITES, paths.expectations)
    return paths


@pytest.fixture
def project(sound_project, tmp_path):
    """A copy of sound data, to be broken."""
    shutil.copytree(sound_project.root, tmp_path / "project")
    return Paths(tmp_path / "project")


def rewrite_index(path: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    """Change the rows of an index, and the digest of the manifest with it: a fault of ours, not of the disk."""
    from tasks.kit.files import file_digest

    table = map_index(path)
    write_index(path, pa.Table.from_pylist(change(table.to_pylist()), table.schema))
    manifest = read_manifest(path.parents[1])
    for shard in manifest["sides"][path.parent.name]["shards"]:
        if shard["name"] == path.stem:
            shard["index_digest"] = file_digest(path)
    write_json(path.parents[1] / "manifest.json", manifest)


def failures(project: Paths, params: ValidateParams | None = None) -> list[str]:
    """Names of the expectations that the gate's error names."""
    with pytest.raises(GateError) as error:
        validate(params or ValidateParams(), SIDES, project)
    return re.findall(r"^  (\w+\.\w+): observed", str(error.value), re.M)


def test_sound_data_pass_and_every_expectation_is_told(project):
    figures = validate(ValidateParams(), SIDES, project)
    reviewed = [
        e["name"]
        for suite in ("survivors", "placements", "figures")
        for e in read_json(SUITES / f"{suite}.json")["expectations"]
    ]
    assert figures.success and all(e.success for e in figures.expectations)
    assert [e.name for e in figures.expectations] == reviewed and len(reviewed) > 30
    by_name = {e.name: e for e in figures.expectations}
    assert by_name["enough_documents"].observed == figures.documents == len(real_documents())
    assert by_name["enough_documents"].expected == {"min_value": 100}
    assert by_name["token_ids_are_in_the_vocabulary"].observed <= 999
    json.dumps(dataclasses.asdict(figures), allow_nan=False)


def test_the_verdict_is_the_same_twice(project):
    assert validate(ValidateParams(), SIDES, project) == validate(ValidateParams(), SIDES, project)


def test_the_pages_open_offline_call_nobody_and_hold_no_path_of_this_machine(project):
    validate(ValidateParams(), SIDES, project)
    pages = sorted(project.data_docs.rglob("*.html"))
    assert len(pages) == 7  # index, and for each suite what was asked and what came
    for page in pages:
        text = page.read_text()
        assert not re.search(
            r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)\s*=\s*[\"'](?:https?:)?//", text, re.S
        )
        assert "dataContextId" not in text and str(project.root) not in text and str(Path.cwd()) not in text
        for link in re.findall(r"<(?:a|link)\b[^>]*href=\"([^\"#]+)", text):
            assert (page.parent / link).exists(), f"{page} links to {link}"
    results = [page.read_text() for page in pages if "validations" in page.parts]
    assert any("characters_per_token" in text for text in results)


def test_the_gate_calls_nobody(project, monkeypatch):
    calls = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: calls.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **_: calls.append(arguments))
    validate(ValidateParams(), SIDES, project)
    assert calls == []


def test_too_few_documents_name_both_numbers_and_the_pages_are_there(project):
    with pytest.raises(
        GateError, match=r"survivors\.enough_documents: observed \d+, expected \{'min_value': 100000\}"
    ) as e:
        validate(ValidateParams(min_documents=100_000), SIDES, project)
    assert (project.data_docs / "index.html").is_file() and str(project.data_docs / "index.html") in str(
        e.value
    )
    assert "failed" in (project.data_docs / "index.html").read_text()


def test_too_few_train_tokens_and_a_bad_tokenizer_are_named(project):
    params = ValidateParams(min_train_tokens=10**9, min_characters_per_token=50)
    assert failures(project, params) == ["figures.characters_per_token", "figures.enough_train_tokens"]


def test_a_duplicate_text_that_was_left_is_found_by_hashing_anew(project):
    path = project.dedupe_documents / "0a.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[7].update(text=rows[8]["text"], characters=rows[8]["characters"])
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(path)), path)
    assert failures(project) == ["survivors.content_is_unique"]


def test_two_survivors_of_one_cluster_are_found(project):
    path = project.dedupe_documents / "0a.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[7]["cluster"] = rows[8]["cluster"]
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(path)), path)
    assert failures(project) == ["survivors.cluster_is_unique"]


def test_leakage_names_the_group(project):
    def leak(rows: list[dict]) -> list[dict]:
        train = map_index(project.split / "train" / "00000.idx").to_pylist()
        rows[0]["group"] = next(row["group"] for row in train if row["group"])
        return rows

    rewrite_index(project.split / "test" / "00000.idx", leak)
    with pytest.raises(GateError, match=r"no_cluster_or_group_on_two_sides: observed .* topic \d"):
        validate(ValidateParams(), SIDES, project)


def test_a_document_on_two_sides_and_one_that_never_survived_are_found(project):
    def plant(rows: list[dict]) -> list[dict]:
        train = map_index(project.split / "train" / "00000.idx").to_pylist()
        rows[0].update({name: train[0][name] for name in ("id", "group", "cluster")})
        rows[1]["id"] = "0" * 32
        return rows

    rewrite_index(project.split / "test" / "00000.idx", plant)
    found = failures(project)
    assert {"placements.document_is_placed_once", "placements.document_is_a_survivor"} <= set(found)
    assert "placements.no_cluster_or_group_on_two_sides" in found


def test_one_flipped_byte_names_the_shard(project):
    path = project.split / "validation" / "00000.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.unlink()  # it may share its bytes with another name
    path.write_bytes(content)
    with pytest.raises(GateError, match=r"figures\.shards_are_as_written: observed .*validation/00000\.bin"):
        validate(ValidateParams(), SIDES, project)


def test_an_id_beyond_the_vocabulary_is_found_in_the_files_themselves(project):
    path = project.split / "train" / "00000.bin"
    ids = np.fromfile(path, "<u2")
    ids[5] = 1000
    path.unlink()
    ids.tofile(path)
    assert failures(project) == ["figures.token_ids_are_in_the_vocabulary", "figures.shards_are_as_written"]


def test_another_tokenizer_than_that_of_the_split_is_found(project):
    config = project.tokenizer / "tokenizer_config.json"
    config.write_text(config.read_text() + "\n")
    assert failures(project) == ["figures.tokenizer_is_the_one_of_the_split"]


@pytest.mark.parametrize(
    ("stage", "change", "expected"),
    [
        ("ingest", {"documents": 10**6}, "ingest_adds_up"),
        ("clean", {"dropped_by_reason": {"short": 19}}, "clean_adds_up"),
        ("dedupe", {"near_removed": 5}, "dedupe_adds_up"),
        ("tokenize", {"unknown_rate": 0.2}, "unknown_rate"),
    ],
)
def test_a_document_lost_between_two_stages_is_found(project, stage, change, expected):
    write_json(project.metrics(stage), {**read_json(project.metrics(stage)), **change})
    assert failures(project) == [f"figures.{expected}"]


def test_most_documents_dropped_stops(project):
    assert failures(project, ValidateParams(max_dropped_share=0.001, max_duplicate_share=0.001)) == [
        "figures.dropped_share",
        "figures.duplicate_share",
    ]


def test_shares_far_from_those_asked_for_stop_and_small_sets_may_stray(project):
    metrics = read_json(project.metrics("split"))
    sides = metrics["sides"]
    sides["train"]["share_of_clusters"], sides["test"]["share_of_clusters"] = 0.6, 0.3
    write_json(project.metrics("split"), metrics)
    assert failures(project) == ["figures.train_share", "figures.test_share"]
    for figures in sides.values():
        figures["clusters"] = 4  # of 12 clusters, 0.6 on the train side is no sign of a fault
    write_json(project.metrics("split"), metrics)
    assert validate(ValidateParams(), SIDES, project).success


def test_no_document_at_all_never_passes(project):
    path = project.dedupe_documents / "0a.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    for side in ("train", "validation", "test"):
        rewrite_index(project.split / side / "00000.idx", lambda rows: [])
    found = failures(project)
    assert "survivors.enough_documents" in found and "placements.enough_rows" in found


def test_an_expectation_that_cannot_be_computed_is_a_failure(project):
    suite = read_json(project.expectations / "survivors.json")
    suite["expectations"][1]["kwargs"]["column"] = "no_such_column"
    write_json(project.expectations / "survivors.json", suite)
    with pytest.raises(
        GateError, match=r"survivors\.id_is_present: observed could not be computed: .*no_such_column"
    ):
        validate(ValidateParams(), SIDES, project)


def test_a_suite_that_asks_for_an_unknown_parameter_is_named(project):
    suite = read_json(project.expectations / "figures.json")
    suite["expectations"][0]["kwargs"]["max_value"] = {"$PARAMETER": "max_dropped"}
    write_json(project.expectations / "figures.json", suite)
    with pytest.raises(
        InputError, match=r"figures\.json: no parameter 'max_dropped'; there are .*max_dropped_share"
    ):
        validate(ValidateParams(), SIDES, project)


def test_missing_figures_say_which_stage_to_run(project):
    project.metrics("dedupe").unlink()
    with pytest.raises(InputError, match="run the stage dedupe first"):
        validate(ValidateParams(), SIDES, project)
