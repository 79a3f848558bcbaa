"""What must hold before a training starts: checked with numbers and without torch, before any rank runs.

Every function raises ParamsError for params that do not fit one another, InputError for data or a base model that
do not fit them, and EnvironmentProblem when a base model cannot be fetched.
"""

import json
import logging
from pathlib import Path
from typing import Any

from tasks.kit.errors import EnvironmentProblem, InputError, ParamsError
from tasks.kit.files import read_json
from tasks.kit.paths import Paths
from tasks.model.blocks import Blocks
from tasks.model.checkpoints import Checkpoint
from tasks.model.launch import Attempt
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams

logger = logging.getLogger("train_llm")


def accumulation_of(params: TrainParams, runtime: RuntimeParams) -> int:
    """Micro batches of one optimizer step on each rank."""
    batch, at_once = params.global_batch_size, runtime.micro_batch_size * runtime.num_processes
    if batch % at_once:
        below, above = batch // at_once * at_once, -(-batch // at_once) * at_once
        batches = " or ".join(str(size) for size in (below, above) if size)
        per_rank, left = divmod(batch, runtime.num_processes)
        micro = [size for size in range(1, per_rank + 1) if per_rank % size == 0] if not left else []
        nearest = sorted(micro, key=lambda size: abs(size - runtime.micro_batch_size))[:2]
        others = f", or runtime.micro_batch_size to {' or '.join(map(str, nearest))}" if nearest else ""
        raise ParamsError(
            f"train.global_batch_size {batch} is no multiple of runtime.micro_batch_size {runtime.micro_batch_size} x "
            f"runtime.num_processes {runtime.num_processes} = {at_once}: set it to {batches}{others}"
        )
    return batch // at_once


def check_blocks(train: Blocks, validation: Blocks, params: TrainParams, paths: Paths) -> None:
    """Enough blocks for one batch, text to validate on where it is needed, and no id beyond the vocabulary."""
    if len(train) < params.global_batch_size:
        raise InputError(
            f"the train side of {paths.split} has {len(train)} blocks of {train.block_size} tokens and one batch takes "
            f"{params.global_batch_size} (train.global_batch_size): add text, or lower it or split.block_size"
        )
    if not len(validation):
        if params.patience:
            raise InputError(
                f"train.patience is {params.patience}, and the validation side of {paths.split} has no block: raise "
                "split.validation, add text, or set train.patience to null"
            )
        logger.warning(
            "the validation side of %s has no block: no validation loss will be measured", paths.split
        )
    vocabulary = train.manifest["vocabulary_size"]
    for name, side in (("train", train), ("validation", validation)):
        largest = max((int(shard.max()) for shard in side.shards if shard.size), default=0)
        if largest >= vocabulary:
            raise InputError(
                f"{paths.split / name} holds the token id {largest}, and the vocabulary has {vocabulary} entries: "
                "it belongs to another tokenizer; run the stages tokenize and split again"
            )
    if not (paths.tokenizer / "tokenizer.json").is_file():
        raise InputError(f"{paths.tokenizer / 'tokenizer.json'} is missing: run the stage tokenize")


def check_heads(params: TrainParams) -> None:
    """Widths and heads divide one another."""
    model = params.model
    if model.hidden_size % model.num_heads:
        raise ParamsError(
            f"train.model.hidden_size {model.hidden_size} is no multiple of train.model.num_heads {model.num_heads}"
        )
    if model.num_heads % model.num_kv_heads:
        raise ParamsError(
            f"train.model.num_heads {model.num_heads} is no multiple of train.model.num_kv_heads {model.num_kv_heads}"
        )


def base_model_folder(name: str | None) -> Path | None:
    """The folder of the pretrained model: the one named, or the hub's, downloaded once."""
    if name is None:
        return None
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"]))
    except HFValidationError:
        raise ParamsError(
            f"train.base_model: {name!r} is neither a folder here nor a hub id (owner/name)"
        ) from None
    except Exception as error:
        raise EnvironmentProblem(
            f"train.base_model: {name!r} is no folder here, and the hub did not give it ({type(error).__name__}): "
            "check the name, the network and HF_TOKEN, or name a local folder"
        ) from None


def check_base_model(folder: Path, blocks: Blocks, paths: Paths) -> None:
    """Its positions and embedding hold these blocks, and its tokenizer gave these ids."""
    try:
        config = read_json(folder / "config.json")
    except FileNotFoundError:
        raise InputError(
            f"train.base_model: {folder} has no config.json: it is no Hugging Face model folder"
        ) from None
    except ValueError:
        raise InputError(f"train.base_model: {folder / 'config.json'} is not valid JSON") from None
    positions = next(
        (config[key] for key in ("max_position_embeddings", "n_positions") if key in config), None
    )
    if positions is not None and blocks.block_size > positions:
        raise InputError(
            f"split.block_size is {blocks.block_size}, and {folder} has {positions} positions: lower it to {positions}"
        )
    vocabulary, rows = blocks.manifest["vocabulary_size"], config.get("vocab_size")
    if rows is not None and vocabulary > rows:
        raise InputError(
            f"the tokenizer in {paths.tokenizer} has {vocabulary} entries, and the embedding of {folder} {rows}: set "
            "tokenize.tokenizer to the base model's own"
        )
    own = folder / "tokenizer.json"
    if own.is_file() and _vocabulary(own) != _vocabulary(paths.tokenizer / "tokenizer.json"):
        raise InputError(
            f"the tokenizer in {paths.tokenizer} is not the one of {folder}, so its ids mean other tokens: set "
            "tokenize.tokenizer to the base model's folder"
        )


def _vocabulary(tokenizer: Path) -> Any:
    """What gives the ids their meaning: the entries, whatever form newer versions write around them."""
    entries = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    return (
        entries if isinstance(entries, dict) else {entry[0]: number for number, entry in enumerate(entries)}
    )


def check_shape(checkpoint: Checkpoint, attempt: Attempt) -> None:
    """A checkpoint's parts fit the ranks that wrote them; only plain fp32 has none."""
    saved, runtime = checkpoint.state, attempt.runtime
    before = (saved["num_processes"], saved["zero_stage"], saved["offload_optimizer"])
    now = (runtime.num_processes, runtime.zero_stage, runtime.offload_optimizer)
    whole = attempt.precision == "fp32" and saved["zero_stage"] == runtime.zero_stage == 0
    if before != now and not whole and not (attempt.folder / "final" / "manifest.json").exists():
        raise ParamsError(
            f"{checkpoint.path} was written by {before[0]} ranks with ZeRO-{before[1]}{' and offload' * before[2]}, "
            f"and {now[0]} with ZeRO-{now[1]}{' and offload' * now[2]} cannot read it: set runtime.num_processes="
            f"{before[0]}, runtime.zero_stage={before[1]}, runtime.offload_optimizer={str(before[2]).lower()} to go "
            f"on, or remove {attempt.folder} to start this training again"
        )
