"""The identity of a training: everything that changes its weights, nothing that only changes where it runs."""

from pathlib import Path
from typing import Any

from tasks.kit.files import folder_digest, json_digest, read_json
from tasks.kit.shards import code_digest
from tasks.params.train import TrainParams


def training_fingerprint(
    params: TrainParams, split: Path, tokenizer: Path, base_model: Path | None, precision: str
) -> str:
    """xxh3-128 over parameters, data, tokenizer, base model, code, and the precision that `auto` became."""
    identity: dict[str, Any] = {
        "params": params.model_dump(mode="json", exclude={"base_model"}),
        "precision": precision,
        "split": read_json(split / "manifest.json"),
        "tokenizer": folder_digest(tokenizer),
        "base_model": folder_digest(base_model) if base_model else None,
        "code": code_digest("train"),
    }
    return json_digest(identity)
