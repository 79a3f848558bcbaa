"""The identity of a training: everything that changes its weights, nothing that only changes where it runs."""

from pathlib import Path
from typing import Any

from tasks.kit.files import folder_digest, json_digest, read_json
from tasks.kit.shards import code_digest
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams


def training_fingerprint(
    params: TrainParams,
    runtime: RuntimeParams,
    split: Path,
    tokenizer: Path,
    base_model: Path | None,
    precision: str,
) -> str:
    """xxh3-128 over parameters, data, tokenizer, base model, code, and the precision that `auto` became.

    With dropout, also over how a batch is cut: a micro batch draws one mask for all its sequences, so another
    number of ranks or another micro batch draws others. Without it a cut changes rounding only.
    """
    identity: dict[str, Any] = {
        "params": params.model_dump(mode="json", exclude={"base_model"}),
        "precision": precision,
        "split": read_json(split / "manifest.json"),
        "tokenizer": folder_digest(tokenizer),
        "base_model": folder_digest(base_model) if base_model else None,
        "code": code_digest("train"),
    }
    if has_dropout(params, base_model):
        identity["cut"] = [runtime.num_processes, runtime.micro_batch_size]
    return json_digest(identity)


def has_dropout(params: TrainParams, base_model: Path | None) -> bool:
    """Whether the network drops anything while it trains; a base model says so in its own configuration."""
    if base_model is None:
        return params.model.dropout > 0
    return any(
        ("drop" in name) and isinstance(value, int | float) and value > 0
        for name, value in read_json(base_model / "config.json").items()
    )
