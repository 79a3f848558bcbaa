"""One rank of a training: `python -m tasks.model.worker --config FILE`, started by torchrun or deepspeed."""

import argparse
import contextlib
import dataclasses
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tasks.kit.processes import die_with_parent, switch_telemetry_off
from tasks.model.launch import Attempt, end_with_stage, report_failure


def main(arguments: list[str]) -> int:
    """Run this rank to its end. Returns the exit code; a failure's words go to the stage through a file."""
    began = time.time()
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0)  # the deepspeed launcher adds it
    attempt = Attempt.read(parser.parse_args(arguments).config)
    end_with_stage(attempt)
    die_with_parent(signal.SIGKILL)
    switch_telemetry_off()
    sys.modules["mlflow"] = None  # type: ignore[assignment]  # deepspeed's autotuner would import it: 1.3 of its 1.6 s
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    try:
        _run(attempt, asked, began)
    except Exception as error:
        report_failure(attempt.folder, int(os.environ.get("RANK", "0")), error)
        raise
    return 0


def _run(attempt: Attempt, asked: list[int], began: float) -> None:
    import torch

    from tasks.model import checkpoints
    from tasks.model.blocks import Blocks
    from tasks.model.engine import build_engine, initialise_ranks, load_engine
    from tasks.model.loop import Loop, RunState
    from tasks.model.network import build_network, check_causal, config_of, load_network

    blocks = Blocks.open(attempt.split, "train")
    manifest = blocks.manifest
    if attempt.base_model:
        network = load_network(attempt.base_model)
    else:
        vocabulary, end = manifest["vocabulary_size"], manifest["end_of_document_id"]
        network = build_network(
            config_of(attempt.train.model, vocabulary, blocks.block_size, end), attempt.train.seed
        )
    check_causal(network)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    device = initialise_ranks(attempt.device)
    rank = torch.distributed.get_rank()
    if rank == 0:
        check_disk(attempt, parameters)
    engine = build_engine(network, attempt)
    state = RunState()
    if attempt.resume:
        load_engine(engine, attempt.resume)
        saved = checkpoints.state_of(attempt.resume)
        state = RunState(**{field.name: saved[field.name] for field in dataclasses.fields(RunState)})
    resumed_step = state.step
    shape = shape_of(attempt) | {"vocabulary_size": manifest["vocabulary_size"]}
    loop = Loop(engine, attempt, state, lambda: bool(asked), lambda: _memory(device), shape)
    started = time.time()
    if loop.run():
        outcome: dict[str, Any] = {
            **dataclasses.asdict(state),
            "parameters": parameters,
            "steps_of_attempt": state.step - resumed_step,
            "resumed_from": resumed_step or None,
            "startup_seconds": started - began,
            "seconds": time.time() - began,
            "tokens_per_second": loop.pace.tokens / loop.pace.seconds if loop.pace.seconds else None,
        }
        _finish(loop, attempt, outcome)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def shape_of(attempt: Attempt) -> dict[str, Any]:
    """What a checkpoint's form depends on beside the network: read back before a resume."""
    runtime = attempt.runtime
    return {
        "num_processes": runtime.num_processes,
        "zero_stage": runtime.zero_stage,
        "offload_optimizer": runtime.offload_optimizer,
        "precision": attempt.precision,
    }


def check_disk(attempt: Attempt, parameters: int) -> None:
    """Refuse before the first step when the checkpoints cannot fit.

    Raises:
        EnvironmentProblem: with the bytes needed and free.
    """
    import shutil

    from tasks.kit.errors import EnvironmentProblem

    # Weights and two moments in fp32, and the 16-bit copy; one more than is kept while a new one is written.
    one = parameters * (12 if attempt.precision == "fp32" else 14)
    needed = one * (attempt.runtime.keep_checkpoints + 1) + parameters * 4 * 2
    free = shutil.disk_usage(attempt.folder).free
    present = sum(path.stat().st_size for path in attempt.folder.rglob("*") if path.is_file())
    if needed > free + present:
        raise EnvironmentProblem(
            f"{attempt.folder} needs about {needed:,} bytes for {attempt.runtime.keep_checkpoints} checkpoints of "
            f"{parameters:,} parameters and the result, and {free:,} are free: make room, or lower "
            "runtime.keep_checkpoints"
        )


def _finish(loop: Any, attempt: Attempt, outcome: dict[str, Any]) -> None:
    """Lay the result down in `final`, sealed: the last weights, or the best ones where early stopping looks."""
    import shutil

    from tasks.model import checkpoints

    final = attempt.folder / "final"
    best = loop.state.best_step
    if best is None or best == loop.state.step:
        loop.export(final, {**outcome, "model_weights": "last" if best is None else "best"})
    elif loop.rank == 0:
        temporary = checkpoints.begin(final)
        shutil.copytree(checkpoints.best_folder(attempt.folder, best) / "model", temporary / "model")
        checkpoints.commit(final, {**outcome, "model_weights": "best"})


def _memory(device: Any) -> int:
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
