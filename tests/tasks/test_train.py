"""The stage train: refusals before work, exact resume after kills, stops that keep or refuse the weights."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tasks.kit.errors import EnvironmentProblem, InputError, ParamsError, StageError, TrainLLMError
from tasks.kit.files import file_digest, read_json, write_json
from tasks.kit.paths import Paths
from tasks.kit.processes import hold_stage_lock
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams
from tasks.train import TrainFigures, train

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 64}
# Twenty blocks and batches of eight: step 3 crosses into the second epoch, step 6 into the third.
TRAIN: dict[str, Any] = {
    "model": MODEL | {"dropout": 0.1},
    "global_batch_size": 8,
    "max_steps": 8,
    "warmup_steps": 2,
    "evaluate_every": 4,
    "learning_rate": 1e-2,
    "precision": "fp32",
}
RUNTIME: dict[str, Any] = {"num_processes": 1, "micro_batch_size": 4, "checkpoint_every": 3}
# A stage of its own that a test may kill; the same call as `python -m tasks train` makes.
STAGE = """
import json, sys
from pathlib import Path
from tasks.kit.paths import Paths
from tasks.kit.processes import hold_stage_lock, stop_on_sigterm
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams
from tasks.train import train
stop_on_sigterm()
paths = Paths(Path(sys.argv[1]))
with hold_stage_lock("train", paths.state / "locks"):
    train(TrainParams(**json.loads(sys.argv[2])), RuntimeParams(**json.loads(sys.argv[3])), paths)
"""


STARTED: list["subprocess.Popen[bytes]"] = []


@pytest.fixture(autouse=True)
def _no_stage_outlives_its_test() -> Iterator[None]:
    yield
    while STARTED:
        stage = STARTED.pop()
        stage.kill()
        stage.wait()  # not communicate: a test may have read the pipes to their end and closed them


def write_split(paths: Paths, sides: dict[str, np.ndarray], vocabulary_size: int) -> None:
    """Packed blocks (rows of an array) as the stage split writes them, without the index that train does not read."""
    manifest: dict[str, Any] = {
        "dtype": "uint16",
        "block_size": sides["train"].shape[1],
        "vocabulary_size": vocabulary_size,
        "tokenizer_digest": "",
        "end_of_document_id": 0,
        "sides": {},
    }
    for side, blocks in sides.items():
        (paths.split / side).mkdir(parents=True)
        blocks.astype("<u2").tofile(paths.split / side / "00000.bin")
        shard = {"name": "00000", "documents": 1, "tokens": blocks.size, "digest": str(blocks.tolist())}
        manifest["sides"][side] = {"blocks": len(blocks), "shards": [shard] if len(blocks) else []}
    write_json(paths.split / "manifest.json", manifest)


def make_project(
    root: Path, num_train: int = 20, num_validation: int = 5, vocabulary_size: int = 64
) -> Paths:
    """A project whose texts repeat every token once, so that a tiny network learns something in a few steps."""
    paths = Paths(root)
    blocks = np.random.default_rng(0).integers(0, vocabulary_size, (num_train + num_validation, 32))
    blocks[:, 1::2] = blocks[:, 0::2]
    sides = {"train": blocks[:num_train], "validation": blocks[num_train:], "test": blocks[:0]}
    write_split(paths, sides, vocabulary_size)
    write_json(
        paths.tokenizer / "tokenizer.json", {"model": {"vocab": {str(i): i for i in range(vocabulary_size)}}}
    )
    return paths


def run(paths: Paths, runtime: dict[str, Any] | None = None, **changes: Any) -> TrainFigures:
    return train(TrainParams(**TRAIN | changes), RuntimeParams(**RUNTIME | (runtime or {})), paths)


def folder_of(paths: Paths) -> Path:
    (folder,) = paths.checkpoints.iterdir()
    return folder


def start_stage(paths: Paths, runtime: dict[str, Any], **changes: Any) -> "subprocess.Popen[bytes]":
    arguments = [str(paths.root), json.dumps(TRAIN | changes), json.dumps(RUNTIME | runtime)]
    stage = subprocess.Popen(
        [sys.executable, "-c", STAGE, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    STARTED.append(stage)
    return stage


def wait_for(stage: "subprocess.Popen[bytes]", ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not ready():
        assert stage.poll() is None, stage.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def rows_written(paths: Paths) -> int:
    return sum(file.read_bytes().count(b"\n") for file in paths.checkpoints.glob("*/history.jsonl"))


def ranks_of(paths: Paths) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(paths.checkpoints) in part for part in process.info["cmdline"] or [])
    ]


def wait_for_no_ranks(paths: Paths, max_seconds: float) -> None:
    deadline = time.monotonic() + max_seconds
    while left := ranks_of(paths):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_killed_in_epoch_2_and_its_newest_checkpoint_damaged_it_ends_with_the_weights_of_the_unbroken_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_ranks = {"num_processes": 2, "micro_batch_size": 2, "zero_stage": 2}
    unbroken, broken = make_project(tmp_path / "unbroken"), make_project(tmp_path / "broken")
    expected = run(unbroken, two_ranks)
    # A store that is set up: this is about weights, not about a kill in the migrations of an empty one.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{unbroken.state / 'mlflow' / 'mlflow.db'}")

    # A checkpoint at every step: a save takes longer than a step here, so most kills fall into one.
    stage = start_stage(broken, two_ranks | {"checkpoint_every": 1})
    wait_for(stage, lambda: rows_written(broken) >= 4)
    orphans = ranks_of(broken)
    for orphan in orphans:  # at a standstill they are still there after the stage, and hold its lock
        orphan.suspend()
    stage.kill()
    stage.communicate()
    assert not broken.model.exists()
    locks = broken.state / "locks"
    with pytest.raises(EnvironmentProblem, match="still running"), hold_stage_lock("train", locks, 0.1):
        pass
    for orphan in orphans:
        orphan.resume()
    wait_for_no_ranks(broken, max_seconds=240)
    with hold_stage_lock("train", locks, max_seconds=240):
        pass
    before, newest = sorted(folder_of(broken).glob("step-????????"))[-2:]
    part = min(newest.rglob("*.pt"))
    part.write_bytes(part.read_bytes()[:-100])
    with caplog.at_level(logging.INFO):
        figures = run(broken, two_ranks)

    assert f"{newest} cannot be used ({part.relative_to(newest)} has" in caplog.text
    assert figures.resumed_from == int(before.name.removeprefix("step-"))
    assert figures.model_digest == expected.model_digest
    assert file_digest(broken.model / "model.safetensors") == file_digest(
        unbroken.model / "model.safetensors"
    )
    losses = [
        [row.split(",")[2:6] for row in paths.history.read_text().split()] for paths in (broken, unbroken)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 1 + 8

    # Finished: other checkpoints and a deleted output train nothing again.
    assert not list(folder_of(broken).glob("step-*"))
    (broken.model / "model.safetensors").unlink()
    log = (folder_of(broken) / "ranks.log").stat()
    assert run(broken, two_ranks | {"zero_stage": 1, "checkpoint_every": 1}) == figures
    assert (folder_of(broken) / "ranks.log").stat() == log
    assert file_digest(broken.model / "model.safetensors") == expected.model_digest


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("deepspeed", marks=pytest.mark.slow)])
def test_sigterm_saves_where_it_is_and_another_number_of_ranks_is_refused_before_work(
    launcher: str, tmp_path: Path
) -> None:
    paths = make_project(tmp_path)
    two_ranks: dict[str, Any] = {
        "num_processes": 2,
        "micro_batch_size": 2,
        "zero_stage": 1,
        "checkpoint_every": 100_000,
    }
    two_ranks["launcher"] = launcher
    train_for_long: dict[str, Any] = {"max_steps": 100_000, "model": MODEL}
    stage = start_stage(paths, two_ranks, **train_for_long)
    wait_for(stage, lambda: rows_written(paths) > 4)
    # Whoever stops a run's group sends one, DVC's death another: a moment later, or in the middle of the saving.
    for seconds in (0.001, *[0.05] * 60):
        stage.terminate()
        time.sleep(seconds)
    _, errors = stage.communicate(timeout=240)
    assert b"KeyboardInterrupt" in errors
    assert not ranks_of(paths)
    (saved,) = folder_of(paths).glob("step-*")
    assert read_json(saved / "manifest.json")["state"]["step"] == rows_written(paths) >= 4

    with pytest.raises(
        ParamsError, match=r"written by 2 ranks with ZeRO-1.*set runtime\.num_processes=2, runtime"
    ):
        run(paths, **train_for_long)
    with pytest.raises(ParamsError, match=r"2 with ZeRO-3 cannot read it"):
        run(paths, two_ranks | {"zero_stage": 3}, **train_for_long)


def test_a_stop_before_there_is_a_rank_ends_it_at_once(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    stage = start_stage(paths, {}, max_steps=100_000)
    wait_for(stage, lambda: bool(ranks_of(paths)))
    stage.terminate()
    _, errors = stage.communicate(timeout=240)
    assert b"KeyboardInterrupt" in errors
    wait_for_no_ranks(paths, max_seconds=240)
    assert not list(folder_of(paths).glob("step-*"))


@pytest.mark.slow
def test_plain_fp32_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    plain = {"zero_stage": 0, "num_processes": 1}
    unbroken, broken = make_project(tmp_path / "unbroken"), make_project(tmp_path / "broken")
    expected = run(unbroken, plain, model=MODEL)
    stage = start_stage(broken, plain, model=MODEL)
    wait_for(stage, lambda: bool(list(broken.checkpoints.glob("*/step-????????"))))
    stage.kill()
    stage.communicate()
    wait_for_no_ranks(broken, max_seconds=240)
    figures = run(broken, plain | {"num_processes": 2}, model=MODEL)
    assert figures.resumed_from is not None
    assert figures.num_processes == 2
    assert figures.final_train_loss == pytest.approx(expected.final_train_loss, rel=1e-5)
    assert figures.final_validation_loss == pytest.approx(expected.final_validation_loss, rel=1e-5)


def test_a_loss_that_is_no_number_stops_with_step_and_blocks_and_writes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_TOKEN", "so the weights are lost")  # what a library could say of the environment
    paths = make_project(tmp_path)
    with pytest.raises(
        StageError,
        match=r"step 2: the loss is .*(nan|inf).*Blocks of the train side in this step: (\d+, ){7}\d+\.",
    ):
        run(paths, learning_rate=1e30, warmup_steps=0)
    assert not paths.model.exists()
    assert not list(folder_of(paths).glob("step-*"))
    log = (folder_of(paths) / "ranks.log").read_text()
    assert "********" in log
    assert "weights are lost" not in log


def test_patience_ends_the_run_and_the_model_has_the_weights_of_the_best_look(tmp_path: Path) -> None:
    paths = make_project(tmp_path, num_train=8)
    figures = run(paths, patience=2, evaluate_every=1, learning_rate=0.1, max_steps=60)
    looks = dict(figures.validation_losses)
    assert figures.stopped_early
    assert figures.steps == figures.model_step + 2 < 60
    assert figures.model_weights == "best"
    assert looks[figures.model_step] == figures.best_validation_loss == min(looks.values())
    assert measured_loss(paths) == pytest.approx(figures.best_validation_loss, abs=1e-4)


def measured_loss(paths: Paths) -> float:
    """Validation loss of the delivered model, by transformers' own loss over all blocks at once."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.from_numpy(
        np.fromfile(paths.split / "validation" / "00000.bin", "<u2").astype(np.int64)
    ).reshape(-1, 32)
    network = AutoModelForCausalLM.from_pretrained(paths.model).eval()
    with torch.no_grad():
        return float(network(input_ids=ids, labels=ids).loss)


@pytest.fixture
def alice(tmp_path: Path, shared_data: Callable[[str], Path]) -> tuple[Paths, Path]:
    """Alice in blocks of 128 tokens of stories260K's own tokenizer, and that model's folder."""
    from tokenizers import Tokenizer

    base = shared_data("models/stories260K/hf")
    (book,) = shared_data("text/en").glob("*[Aa]lice*.txt")
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    ids = tokenizer.encode(book.read_text(encoding="utf-8-sig"), add_special_tokens=False).ids
    blocks = np.array(ids[: len(ids) // 128 * 128]).reshape(-1, 128)
    paths = Paths(tmp_path)
    write_split(paths, {"train": blocks[20:], "validation": blocks[:20], "test": blocks[:0]}, 512)
    paths.tokenizer.mkdir(parents=True)
    (paths.tokenizer / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    return paths, base


def test_a_pretrained_model_starts_from_its_weights_and_learns(alice: tuple[Paths, Path]) -> None:
    paths, base = alice
    figures = run(paths, base_model=str(base), max_steps=6, learning_rate=1e-3)
    assert figures.first_loss == pytest.approx(
        4.27, abs=0.25
    )  # measured 4.27; from random weights ln 512 = 6.24
    assert figures.parameters == 260_032
    assert figures.final_validation_loss is not None
    assert figures.final_validation_loss < 3.9
    assert (paths.model / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_a_base_model_of_another_tokenizer_is_refused(alice: tuple[Paths, Path]) -> None:
    paths, base = alice
    vocabulary = read_json(paths.tokenizer / "tokenizer.json")
    entries = list(vocabulary["model"]["vocab"].items())
    vocabulary["model"]["vocab"] = dict([*entries[:-1], ("other", entries[-1][1])])
    write_json(paths.tokenizer / "tokenizer.json", vocabulary)
    with pytest.raises(InputError, match=r"its ids mean other tokens: set tokenize\.tokenizer"):
        run(paths, base_model=str(base))


def test_a_base_model_with_too_few_positions_is_refused(alice: tuple[Paths, Path]) -> None:
    paths, base = alice
    blocks = np.zeros((40, 1024), np.int64)
    for side in ("train", "validation", "test"):
        (paths.split / side / "00000.bin").unlink()
        (paths.split / side).rmdir()
    write_split(paths, {"train": blocks, "validation": blocks, "test": blocks[:0]}, 512)
    with pytest.raises(InputError, match=r"block_size is 1024, and .* has 512 positions"):
        run(paths, base_model=str(base))


@pytest.mark.parametrize(
    ("changes", "runtime", "words"),
    [
        (
            {"global_batch_size": 10},
            {},
            r"10 is no multiple of .* 4 x .* 1 = 4: set it to 8 or 12.*to 5 or 2",
        ),
        ({"global_batch_size": 3}, {"num_processes": 2}, r"3 is no multiple .* = 8: set it to 8$"),
        ({"global_batch_size": 24}, {}, r"has 20 blocks of 32 tokens and one batch takes 24"),
        (
            {"model": MODEL | {"hidden_size": 30}},
            {},
            r"hidden_size 30 is no multiple of train\.model\.num_heads 4",
        ),
        (
            {"model": MODEL | {"num_kv_heads": 3}},
            {},
            r"num_heads 4 is no multiple of train\.model\.num_kv_heads 3",
        ),
        ({"base_model": "no such name"}, {}, r"'no such name' is neither a folder here nor a hub id"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_numbers_before_work(
    changes: dict[str, Any], runtime: dict[str, Any], words: str, tmp_path: Path
) -> None:
    paths = make_project(tmp_path)
    with pytest.raises(TrainLLMError, match=words):
        run(paths, runtime, **changes)
    assert not paths.checkpoints.exists()


def test_fp16_on_a_cpu_is_refused(tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ParamsError, match=r"fp16, which needs a GPU"):
        run(make_project(tmp_path), precision="fp16")


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    ids = np.fromfile(paths.split / "train" / "00000.bin", "<u2")
    ids[77] = 64
    ids.tofile(paths.split / "train" / "00000.bin")
    with pytest.raises(InputError, match=r"token id 64, and the vocabulary has 64 entries"):
        run(paths)


def test_patience_without_validation_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.patience is 2, and the validation side .* has no block"):
        run(make_project(tmp_path, num_validation=0), patience=2)


@pytest.mark.slow
def test_the_deepspeed_launcher_gives_the_same_weights_as_torchrun(tmp_path: Path) -> None:
    two_ranks = {"num_processes": 2, "micro_batch_size": 2}
    digests = {
        launcher: run(make_project(tmp_path / launcher), two_ranks | {"launcher": launcher}).model_digest
        for launcher in ("torchrun", "deepspeed")
    }
    assert digests["torchrun"] == digests["deepspeed"]


@pytest.mark.chaos
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("num_processes", [1, 2])
def test_kills_at_random_moments_change_no_weight(
    num_processes: int, zero_stage: int, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = {"num_processes": num_processes, "micro_batch_size": 2, "zero_stage": zero_stage}
    expected = run(make_project(tmp_path / "unbroken"), runtime, precision=precision)
    broken = make_project(tmp_path / "broken")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/unbroken/.state/mlflow/mlflow.db")
    moments = np.random.default_rng(int.from_bytes(os.urandom(4)))
    for _ in range(3):
        stage = start_stage(broken, runtime, precision=precision)
        rows, wait = int(moments.integers(1, 8)), float(moments.uniform(0, 0.3))
        while stage.poll() is None and rows_written(broken) < rows:
            time.sleep(0.001)
        time.sleep(wait)
        stage.kill()
        stage.communicate()
    wait_for_no_ranks(broken, max_seconds=240)
    figures = run(broken, runtime, precision=precision)
    assert figures.model_digest == expected.model_digest, asdict(figures)
