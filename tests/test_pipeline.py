"""The whole DAG on a cut-down corpus: by DVC and by the flow, run again, one thing changed, killed, restored."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.__main__ import STAGES
from tasks.kit.files import file_digest
from tasks.kit.object_store import open_store
from tasks.kit.paths import Paths
from tasks.params.runtime import RuntimeParams
from tasks.text.records import document_id
from tasks.text.sample_corpus import TRUTH_KEY, read_truth
from tests.workspace import environment, make_workspace, run

SECRETS = {
    "HF_TOKEN": "hf_planted_0123456789abcdef",
    "WANDB_API_KEY": "planted-wandb-key-0123456789",
    "MY_DB_PASSWORD": "planted-password-0123456789",
    "AWS_SECRET_ACCESS_KEY": "plantedAwsSecret0123456789",
    "AWS_SESSION_TOKEN": "plantedAwsToken0123456789",
}
# What ADR 0006 lets differ between two runs: speeds, run ids, addresses, and the page that shows them.
MEASURED = {
    "data/validate/data_docs",
    "data/train/history.csv",
    "data/metrics/train.json",
    "data/metrics/register.json",
    "data/report/report.html",
    "data/report/report.md",
    "data/metrics/report.json",
}
WEIGHTS = "data/train/model/model.safetensors"


CLONES: list[str] = []


def clone_of(folder: Path, cache: Path) -> Path:
    """A clone that `no_process_is_left` looks after."""
    CLONES.append(str(folder))
    return make_workspace(folder, cache)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC cache as a team shares one."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A clone in which `dvc repro` ran everything once, from nothing."""
    workspace = clone_of(tmp_path_factory.mktemp("finished") / "a clone", cache)
    result = run(workspace, "dvc", "repro", **SECRETS)
    (workspace / "repro.log").write_text(result.stdout)
    assert result.returncode == 0, result.stdout[-4000:]
    return workspace


@pytest.fixture(scope="module")
def flowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another clone, with a cache of its own, in which the flow ran everything once, from nothing."""
    folder = tmp_path_factory.mktemp("flowed")
    workspace = clone_of(folder / "clone", folder / "cache")
    result = run(workspace, "train-llm", "demo", **SECRETS)
    (workspace / "demo.log").write_text(result.stdout)
    assert result.returncode == 0, result.stdout[-4000:]
    return workspace


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left() -> Iterator[None]:
    """When all is done no process works in any of these clones: no server, no rank, no supervisor."""
    yield
    deadline = time.monotonic() + 60
    while (left := [p for p in psutil.process_iter() if works_in_a_clone(p)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [(process, process.cmdline()) for process in left]


def works_in_a_clone(process: psutil.Process) -> bool:
    """Whether a process stands in a clone of this module or names a file there."""
    try:
        words = [process.cwd(), *process.cmdline()]
    except psutil.Error:
        return False
    return any(clone in word for clone in CLONES for word in words)


def stages_run(output: str) -> list[str]:
    """Stages whose command DVC started."""
    return re.findall(r"Running stage '(\w+)'", output)


def timed(workspace: Path) -> dict[str, str]:
    """When each stage last started in this workspace."""
    folder = workspace / ".state" / "timings"
    return {path.stem: json.loads(path.read_text())["started_at"] for path in folder.glob("*.json")}


def figures(workspace: Path, stage: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((workspace / "data" / "metrics" / f"{stage}.json").read_text())
    return loaded


def hashes(workspace: Path) -> dict[str, str]:
    """What dvc.lock says of every input and output, apart from those that hold measurements."""
    stages = yaml.safe_load((workspace / "dvc.lock").read_text())["stages"]
    entries = (
        entry for stage in stages.values() for kind in ("deps", "outs") for entry in stage.get(kind, [])
    )
    return {entry["path"]: entry["md5"] for entry in entries if entry["path"] not in MEASURED}


def ids(folder: Path) -> set[str]:
    """Ids of the documents in a folder of shards."""
    return {
        i for path in folder.glob("*.parquet") for i in pq.read_table(path, columns=["id"])["id"].to_pylist()
    }


def test_every_stage_ran_and_wrote_what_it_declares(finished: Path) -> None:
    assert set(stages_run((finished / "repro.log").read_text())) == set(STAGES)
    declared = yaml.safe_load((finished / "dvc.yaml").read_text())["stages"]
    for stage in STAGES:
        for out in [*declared[stage].get("outs", []), f"data/metrics/{stage}.json"]:
            assert (finished / out).exists(), f"{stage} did not write {out}"


def test_the_funnel_adds_up(finished: Path) -> None:
    ingest, clean, dedupe, split = (figures(finished, s) for s in ("ingest", "clean", "dedupe", "split"))
    assert clean["documents_in"] == ingest["documents"]
    assert clean["documents_in"] == clean["documents_out"] + sum(clean["dropped_by_reason"].values())
    assert dedupe["documents_in"] == clean["documents_out"]
    assert (
        dedupe["documents_in"] == dedupe["documents_out"] + dedupe["exact_removed"] + dedupe["near_removed"]
    )
    assert sum(side["documents"] for side in split["sides"].values()) == dedupe["documents_out"]


def test_planted_duplicates_and_dirt_are_found_and_no_clean_document_is_lost(finished: Path) -> None:
    with open_store(RuntimeParams(), Paths(finished)) as store:
        truth = read_truth(store.client.get_object(Bucket="corpus", Key=TRUTH_KEY)["Body"].read())
    removed = pq.read_table(finished / "data/dedupe/removed.parquet").to_pylist()
    kept_for = {row["id"]: row["kept_id"] for row in removed}
    kind_of = {row["id"]: row["kind"] for row in removed}
    survivors = ids(finished / "data/dedupe/documents")
    originals = {document_id(*place) for place in truth["clean"]}
    planted = dict.fromkeys(("exact", "near", "missing"), 0)
    copies = set()
    for item in truth["planted"]:
        if item["kind"] in ("exact", "near"):
            copy, original = document_id(item["key"], item["record"]), document_id(*item["original"])
            copies.add(copy)
            pair = {copy, original}
            assert len(pair & survivors) == 1, f"of {item} and its original exactly one must stay"
            gone = (pair - survivors).pop()
            assert kept_for[gone] in pair
            planted[kind_of[gone]] += 1
        elif item["kind"] == "missing":
            planted["missing"] += 1
    assert min(planted.values()) > 0, "the corpus must hold some of each"
    assert figures(finished, "clean")["dropped_by_reason"]["missing_text"] == planted["missing"]
    lost = originals - survivors - {gone for gone, kept in kept_for.items() if kept in copies}
    assert not lost, "a clean document is neither kept nor represented by its own copy"
    assert survivors <= originals | copies


def test_the_model_learnt_and_was_registered(finished: Path) -> None:
    evaluate, register = figures(finished, "evaluate"), figures(finished, "register")
    assert evaluate["perplexity"] < evaluate["baselines"]["untrained"]["perplexity"]
    assert register["version"] == "1"
    assert set(register["aliases"]) == {"candidate", "champion"}


def test_a_second_run_runs_nothing_but_the_listing(finished: Path) -> None:
    result = run(finished, "dvc", "repro")
    assert result.returncode == 0, result.stdout[-4000:]
    assert stages_run(result.stdout) == ["snapshot"]


def test_with_nothing_to_do_the_flow_starts_no_server(finished: Path) -> None:
    lock = (finished / "dvc.lock").read_bytes()
    result = run(finished, "train-llm", "run")
    assert result.returncode == 0, result.stdout[-4000:]
    assert not (finished / ".state" / "prefect").exists()
    assert (finished / "dvc.lock").read_bytes() == lock


def test_a_change_of_the_registration_alone_is_planned(finished: Path) -> None:
    """Its figures are in no run cache (ADR 7); a change of train leaves what comes before it fresh."""
    for override, work in (
        ("register.confidence=0.9", {"register", "report"}),
        ("train.learning_rate=0.004", {"train", "evaluate", "quantize", "register", "report"}),
    ):
        result = run(finished, "train-llm", "plan", "-S", override, "--json")
        assert result.returncode == 10, result.stdout[-4000:]
        stages = json.loads(result.stdout)["stages"]
        assert {s["stage"] for s in stages if s["verdict"] not in ("fresh", "always")} == work


def test_the_flow_and_repro_give_the_same_lock_each_from_nothing(finished: Path, flowed: Path) -> None:
    assert hashes(flowed) == hashes(finished)
    assert file_digest(flowed / WEIGHTS) == file_digest(finished / WEIGHTS)


def test_the_demo_says_what_came_out(flowed: Path) -> None:
    said = (flowed / "demo.log").read_text()
    for stage in STAGES:
        assert re.search(rf"^{stage}\b", said, re.M), f"{stage} is not in the summary"
    for words in ("untrained", "bigram", "A completion:", "report.html", "Next, "):
        assert words in said


def test_a_changed_parameter_runs_only_what_follows_from_it(flowed: Path) -> None:
    before = timed(flowed)
    result = run(flowed, "train-llm", "run", "-S", "quantize.max_blocks=16")
    assert result.returncode == 0, result.stdout[-4000:]
    after = timed(flowed)
    assert {stage for stage in after if after[stage] != before[stage]} == {
        "snapshot",
        "quantize",
        "register",
        "report",
    }


def test_no_planted_secret_is_in_any_file(finished: Path, flowed: Path) -> None:
    """Logs, records, databases of Prefect and MLflow, locks, reports, the object store: all of both clones."""
    found = []
    for workspace in (finished, flowed):
        for path in workspace.rglob("*"):
            if path.is_file() and path.relative_to(workspace).parts[0] not in (".git", "tests"):
                content = path.read_bytes()
                found += [f"{name} in {path}" for name, value in SECRETS.items() if value.encode() in content]
    assert not found


def test_a_clone_over_a_shared_cache_restores_all_but_the_registration(
    finished: Path, cache: Path, tmp_path: Path
) -> None:
    clone = clone_of(tmp_path / "clone", cache)
    result = run(clone, "dvc", "repro")
    assert result.returncode == 0, result.stdout[-4000:]
    assert stages_run(result.stdout) == ["snapshot", "register", "report"]
    assert hashes(clone) == hashes(finished)


def test_killed_in_the_middle_of_training_the_weights_are_those_of_the_unbroken_run(
    finished: Path, tmp_path: Path, cache: Path
) -> None:
    own_cache = tmp_path / "cache"
    subprocess.run(["cp", "-al", str(cache), str(own_cache)], check=True)
    forget_stage(own_cache, "train")
    clone = clone_of(tmp_path / "clone", own_cache)
    before = run(clone, "dvc", "repro", "validate")
    assert before.returncode == 0, before.stdout[-4000:]
    process = subprocess.Popen(
        ["dvc", "repro", "train"], cwd=clone, env=environment(), start_new_session=True
    )
    try:
        wait_for_checkpoint(clone, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (clone / "data/train/model").exists()
    resumed = run(clone, "dvc", "repro", "train")
    assert resumed.returncode == 0, resumed.stdout[-4000:]
    assert figures(clone, "train")["resumed_from"] > 0
    assert file_digest(clone / WEIGHTS) == file_digest(finished / WEIGHTS)


def forget_stage(cache: Path, stage: str) -> None:
    """Take a stage's runs out of a run cache."""
    for entry in (cache / "runs").glob("*/*"):
        if any(f"python -m tasks {stage}" in path.read_text() for path in entry.iterdir()):
            shutil.rmtree(entry)


def wait_for_checkpoint(workspace: Path, process: subprocess.Popen[bytes], max_seconds: float = 300) -> None:
    """Until a whole checkpoint lies there and the training still runs."""
    deadline = time.monotonic() + max_seconds
    while time.monotonic() < deadline:
        if list((workspace / ".state" / "train").glob("*/step-*/manifest.json")):
            return
        assert process.poll() is None, "the training ended before its first checkpoint"
        time.sleep(0.02)
    raise AssertionError("no checkpoint came")
