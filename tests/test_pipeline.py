"""The whole DAG on a cut-down corpus: run, run again, change one thing, kill it, drive it by the flow."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.__main__ import STAGES
from tasks.kit.files import file_digest
from tests.workspace import environment, make_workspace, run

SECRETS = {
    "HF_TOKEN": "hf_planted_0123456789abcdef",
    "WANDB_API_KEY": "planted-wandb-key-0123456789",
    "MY_DB_PASSWORD": "planted-password-0123456789",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DVC cache that all clones of this module share, as a team shares one."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A clone in which `dvc repro` ran everything once, with secrets in its environment."""
    workspace = make_workspace(tmp_path_factory.mktemp("finished") / "a clone", cache)
    result = run(workspace, "dvc", "repro", **SECRETS)
    (workspace / "repro.log").write_text(result.stdout)
    assert result.returncode == 0, result.stdout[-4000:]
    return workspace


def lock_of(workspace: Path) -> Any:
    """dvc.lock as values: DVC writes the stages in the order in which they ended."""
    return yaml.safe_load((workspace / "dvc.lock").read_text())


def stages_run(output: str) -> list[str]:
    """Stages whose command DVC started."""
    return re.findall(r"Running stage '(\w+)'", output)


def figures(workspace: Path, stage: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((workspace / "data" / "metrics" / f"{stage}.json").read_text())
    return loaded


def test_every_stage_ran_and_wrote_what_it_declares(finished: Path) -> None:
    assert set(stages_run((finished / "repro.log").read_text())) == set(STAGES)
    declared = yaml.safe_load((finished / "dvc.yaml").read_text())["stages"]
    for stage in STAGES:
        for out in [*declared[stage].get("outs", []), *declared[stage]["metrics"]]:
            assert (finished / out).exists(), f"{stage} did not write {out}"


def test_the_funnel_adds_up(finished: Path) -> None:
    ingest, clean, dedupe, split = (
        figures(finished, stage) for stage in ("ingest", "clean", "dedupe", "split")
    )
    assert clean["documents_in"] == ingest["documents"]
    assert clean["documents_in"] == clean["documents_out"] + sum(clean["dropped_by_reason"].values())
    assert dedupe["documents_in"] == clean["documents_out"]
    assert (
        dedupe["documents_in"] == dedupe["documents_out"] + dedupe["exact_removed"] + dedupe["near_removed"]
    )
    assert split["block_size"] == 64


def test_the_model_learnt_and_was_registered(finished: Path) -> None:
    evaluate, register = figures(finished, "evaluate"), figures(finished, "register")
    assert evaluate["perplexity"] < evaluate["baselines"]["untrained"]["perplexity"]
    assert register["version"] == "1"
    assert set(register["aliases"]) == {"candidate", "champion"}


def test_a_second_run_runs_nothing_but_the_listing(finished: Path) -> None:
    result = run(finished, "dvc", "repro")
    assert result.returncode == 0, result.stdout[-4000:]
    assert stages_run(result.stdout) == ["snapshot"]


def test_the_flow_has_nothing_to_do_and_starts_no_server(finished: Path) -> None:
    lock = (finished / "dvc.lock").read_bytes()
    result = run(finished, "train-llm", "run")
    assert result.returncode == 0, result.stdout[-4000:]
    assert not (finished / ".state" / "prefect").exists()
    assert (finished / "dvc.lock").read_bytes() == lock


def test_the_flow_and_repro_give_the_same_lock_and_a_clone_restores_all(
    finished: Path, cache: Path, tmp_path: Path
) -> None:
    """A clone over the shared cache: the flow restores every stage; then a changed parameter re-runs what follows."""
    clone = make_workspace(tmp_path / "clone", cache)
    restored = run(clone, "train-llm", "run")
    assert restored.returncode == 0, restored.stdout[-4000:]
    assert lock_of(clone) == lock_of(finished)
    assert file_digest(clone / "data/train/model/model.safetensors") == file_digest(
        finished / "data/train/model/model.safetensors"
    )
    timings = {path.stem for path in (clone / ".state" / "timings").glob("*.json")}
    assert timings == {"snapshot"}, "only the listing may run in a clone whose results the cache holds"

    changed = run(clone, "train-llm", "run", "-S", "quantize.max_blocks=16")
    assert changed.returncode == 0, changed.stdout[-4000:]
    timings = {path.stem for path in (clone / ".state" / "timings").glob("*.json")}
    assert timings == {"snapshot", "quantize", "register", "report"}

    again = make_workspace(tmp_path / "again", cache)
    (again / "params.yaml").write_text((clone / "params.yaml").read_text())
    repro = run(again, "dvc", "repro")
    assert repro.returncode == 0, repro.stdout[-4000:]
    assert lock_of(again) == lock_of(clone)


def test_killed_in_the_middle_of_training_the_weights_are_those_of_the_unbroken_run(
    finished: Path, tmp_path: Path, cache: Path
) -> None:
    own_cache = tmp_path / "cache"
    subprocess.run(["cp", "-al", str(cache), str(own_cache)], check=True)
    forget_stage(own_cache, "train")
    clone = make_workspace(tmp_path / "clone", own_cache)
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
    assert file_digest(clone / "data/train/model/model.safetensors") == file_digest(
        finished / "data/train/model/model.safetensors"
    )


def test_no_planted_secret_is_in_any_file(finished: Path) -> None:
    found = []
    for path in finished.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            content = path.read_bytes()
            found += [f"{name} in {path}" for name, value in SECRETS.items() if value.encode() in content]
    assert not found


def forget_stage(cache: Path, stage: str) -> None:
    """Take a stage's runs out of a run cache."""
    for path in (cache / "runs").rglob("*"):
        if path.is_file() and f"python -m tasks {stage}" in path.read_text():
            path.unlink()


def wait_for_checkpoint(workspace: Path, process: subprocess.Popen[bytes], max_seconds: float = 300) -> None:
    """Until a whole checkpoint lies there and the training still runs."""
    deadline = time.monotonic() + max_seconds
    while time.monotonic() < deadline:
        if list((workspace / ".state" / "train").glob("*/step-*/manifest.json")):
            return
        assert process.poll() is None, "the training ended before its first checkpoint"
        time.sleep(0.02)
    raise AssertionError("no checkpoint came")


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left() -> Iterator[None]:
    """Whatever ran in this module, no server or rank is left behind."""
    import psutil

    yield
    marks = ("weed", "tasks.model.worker", "object_store_server", "prefect server")
    left = [
        p for p in psutil.Process().children(recursive=True) if any(m in " ".join(p.cmdline()) for m in marks)
    ]
    assert not left
