"""Trains the network with DeepSpeed; killed and run again, it ends with the same weights.

Reads: data/split, data/tokenize/tokenizer, and `train.base_model` where one is named.
Writes: data/train/model (a Hugging Face folder with its tokenizer) and data/train/history.csv.
Drops: nothing. Checkpoints lie in .state/train/FINGERPRINT, where a repeated run of the same training finds them;
of a finished one only the result stays, and of others the newest three and what may still be gone on with.
"""

import logging
import math
import os
import shutil
import time
from dataclasses import asdict, dataclass

from tasks.kit import tracking
from tasks.kit.console import Progress
from tasks.kit.errors import ParamsError, StageError
from tasks.kit.files import empty_folder, read_json, write_json
from tasks.kit.hardware import find_hardware
from tasks.kit.paths import Paths
from tasks.model import checkpoints
from tasks.model.blocks import Blocks
from tasks.model.fingerprint import training_fingerprint
from tasks.model.history import HistoryTail, Row, read_history, write_csv
from tasks.model.launch import Attempt, Ranks, ranks, stage_created
from tasks.model.precision import resolve_precision
from tasks.model.readiness import (
    accumulation_of,
    base_model_folder,
    check_base_model,
    check_blocks,
    check_heads,
    check_shape,
)
from tasks.model.schedule import total_steps
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams

logger = logging.getLogger("train_llm")

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_SENDS = 5.0


@dataclass(frozen=True)
class TrainFigures:
    """What the training came to; seconds and speeds are those of the attempt that finished it."""

    parameters: int
    steps: int
    tokens: int
    """Tokens read, over all steps."""
    first_loss: float
    """Nats a token of the first batch, before any update."""
    final_train_loss: float
    """Nats a token of the last batch."""
    validation_losses: list[tuple[int, float]]
    """(step, nats a token) of each look at the validation side."""
    best_validation_loss: float | None
    final_validation_loss: float | None
    stopped_early: bool
    model_weights: str
    """`last`, or `best`: those of the best validation loss, kept when `train.patience` is set."""
    model_step: int
    """Step whose weights the model has."""
    precision: str
    device: str
    num_processes: int
    zero_stage: int
    global_batch_size: int
    micro_batch_size: int
    accumulation: int
    resumed_from: int | None
    """Step of the checkpoint that the finishing attempt went on from."""
    startup_seconds: float
    """From the start of the ranks to their first step."""
    seconds: float
    tokens_per_second: float | None
    peak_memory_bytes: int
    """Largest memory of all ranks together."""
    fingerprint: str
    model_digest: str
    """xxh3-128 of model.safetensors."""
    mlflow_run_id: str


def train(params: TrainParams, runtime: RuntimeParams, paths: Paths) -> TrainFigures:
    """Train, or take up again, or only deliver what is already trained.

    Raises:
        ParamsError, InputError: what was asked for cannot be trained on these data; found before any work.
        StageError: the loss or a gradient became infinite or no number, or a rank died.
    """
    attempt, fingerprint = _prepare(params, runtime, paths)
    figures = attempt.folder / "figures.json"
    if figures.exists() and checkpoints.problem_of(attempt.folder / "final") is None:
        logger.info("this training was finished before (%s): its model is delivered again", attempt.folder)
    else:
        figures.unlink(missing_ok=True)
        run_id = _run(attempt, fingerprint, paths)
        write_json(figures, asdict(_figures(attempt, fingerprint, run_id)))
    _deliver(attempt, paths)
    checkpoints.clear_finished(attempt.folder)
    checkpoints.prune_trainings(paths.checkpoints, fingerprint)
    result = TrainFigures(**read_json(figures))
    logger.info(
        "%d steps, loss %.3f -> %.3f, validation %s, %s tokens/s",
        result.steps,
        result.first_loss,
        result.final_train_loss,
        _words(result.final_validation_loss),
        f"{result.tokens_per_second:,.0f}" if result.tokens_per_second else "no",
    )
    return result


def _prepare(params: TrainParams, runtime: RuntimeParams, paths: Paths) -> tuple[Attempt, str]:
    """Check everything that can be checked without torch, and find what there is to go on from."""
    hardware = find_hardware()
    precision = resolve_precision(params.precision, hardware)
    accumulation = accumulation_of(params, runtime)
    if hardware.device == "cuda" and runtime.num_processes > hardware.count:
        raise ParamsError(
            f"runtime.num_processes is {runtime.num_processes}, and there are {hardware.count} GPUs"
        )
    blocks = Blocks.open(paths.split, "train")
    check_blocks(blocks, Blocks.open(paths.split, "validation"), params, paths)
    base_model = base_model_folder(params.base_model)
    if base_model:
        check_base_model(base_model, blocks, paths)
    else:
        check_heads(params)
    steps = total_steps(params, len(blocks))
    if params.warmup_steps >= steps:
        logger.warning(
            "train.warmup_steps is %d and the run has %d steps: the rate never peaks",
            params.warmup_steps,
            steps,
        )
    fingerprint = training_fingerprint(params, runtime, paths.split, paths.tokenizer, base_model, precision)
    folder = paths.checkpoints / fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    newest = checkpoints.newest_whole(folder)
    attempt = Attempt(
        train=params,
        runtime=runtime,
        folder=folder,
        split=paths.split,
        tokenizer=paths.tokenizer,
        base_model=base_model,
        device=hardware.device,
        precision=precision,
        total_steps=steps,
        accumulation=accumulation,
        resume=newest.path if newest else None,
        stage_process=os.getpid(),
        stage_created=stage_created(),
    )
    if newest:
        check_shape(newest, attempt)
    return attempt, fingerprint


def _run(attempt: Attempt, fingerprint: str, paths: Paths) -> str:
    """Start the ranks and follow them to the end, on the console and in MLflow. Returns the run's id there."""
    if attempt.resume:
        logger.info("going on from %s", attempt.resume)
    names = {
        "stage": "train",
        "fingerprint": fingerprint,
        "device": attempt.device,
        "precision": attempt.precision,
    }
    logger.info(
        "%d steps of %d sequences (%d ranks x %d x %d accumulated), %s on %s, ZeRO-%d",
        attempt.total_steps,
        attempt.train.global_batch_size,
        attempt.runtime.num_processes,
        attempt.runtime.micro_batch_size,
        attempt.accumulation,
        attempt.precision,
        attempt.device,
        attempt.runtime.zero_stage,
    )
    with (
        ranks(attempt) as running,
        tracking.open_run(paths, "train", fingerprint, names, attempt.train.model_dump(mode="json")) as run,
    ):
        _follow(running, run, attempt)
        running.check()
        if (problem := checkpoints.problem_of(attempt.folder / "final")) is not None:
            newest = checkpoints.newest_whole(attempt.folder)
            raise StageError(
                f"the training was asked to stop (result: {problem}) and saved step {newest.step if newest else 0} of "
                f"{attempt.total_steps}: run it again to go on from there"
            )
        return run.run_id


def _follow(running: Ranks, run: tracking.Run, attempt: Attempt) -> None:
    """Show and log what the ranks write, until they end."""
    tail = HistoryTail(attempt.folder / "history.jsonl")
    first = checkpoints.state_of(attempt.resume)["step"] if attempt.resume else 0
    progress = Progress(attempt.total_steps, "steps", first)
    waiting: list[tuple[int, dict[str, float]]] = []
    sent = time.monotonic()
    alive = True
    while alive:
        alive = running.alive(_SECONDS_BETWEEN_LOOKS)
        rows = tail.new_rows()
        waiting.extend((row["step"], _metrics(row)) for row in rows)
        if rows and rows[-1]["step"] > first:
            speed, loss = rows[-1]["tokens_per_second"], rows[-1]["train_loss"]
            progress.update(rows[-1]["step"], f"loss {loss:.3f}, {speed:,.0f} tokens/s")
        if waiting and (not alive or time.monotonic() - sent > _SECONDS_BETWEEN_SENDS):
            run.log_metrics(waiting)
            waiting, sent = [], time.monotonic()


def _metrics(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "step" and value is not None}


def _figures(attempt: Attempt, fingerprint: str, run_id: str) -> TrainFigures:
    outcome = checkpoints.state_of(attempt.folder / "final")
    rows = read_history(attempt.folder / "history.jsonl")
    looks = [(row["step"], row["validation_loss"]) for row in rows if row["validation_loss"] is not None]
    manifest = read_json(attempt.folder / "final" / "manifest.json")
    return TrainFigures(
        parameters=outcome["parameters"],
        steps=outcome["step"],
        tokens=rows[-1]["tokens"],
        first_loss=outcome["first_loss"],
        final_train_loss=outcome["last_loss"],
        validation_losses=looks,
        best_validation_loss=outcome["best_validation_loss"],
        final_validation_loss=outcome["validation_loss"],
        stopped_early=outcome["stopped_early"],
        model_weights=outcome["model_weights"],
        model_step=outcome["best_step"] or outcome["step"],
        precision=attempt.precision,
        device=attempt.device,
        num_processes=attempt.runtime.num_processes,
        zero_stage=attempt.runtime.zero_stage,
        global_batch_size=attempt.train.global_batch_size,
        micro_batch_size=attempt.runtime.micro_batch_size,
        accumulation=attempt.accumulation,
        resumed_from=outcome["resumed_from"],
        startup_seconds=outcome["startup_seconds"],
        seconds=outcome["seconds"],
        tokens_per_second=outcome["tokens_per_second"],
        peak_memory_bytes=outcome["peak_memory_bytes"],
        fingerprint=fingerprint,
        model_digest=manifest["files"]["model/model.safetensors"]["digest"],
        mlflow_run_id=run_id,
    )


def _deliver(attempt: Attempt, paths: Paths) -> None:
    """Copy the model with its tokenizer, and the history, to where the next stages read them."""
    beside = empty_folder(paths.model.with_name(f".{paths.model.name}.tmp"))
    shutil.copytree(attempt.folder / "final" / "model", beside, dirs_exist_ok=True)
    for file in sorted(paths.tokenizer.iterdir()):
        if file.is_file():
            shutil.copyfile(file, beside / file.name)
    if paths.model.exists():
        shutil.rmtree(paths.model)
    beside.rename(paths.model)
    write_csv(read_history(attempt.folder / "history.jsonl"), paths.history)


def _words(loss: float | None) -> str:
    return "not measured" if loss is None else f"{loss:.3f} (perplexity {math.exp(min(loss, 700)):,.1f})"
