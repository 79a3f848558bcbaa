"""A training's identity: what changes weights is in it, what does not is not."""

from pathlib import Path
from typing import Any

import pytest

from tasks.kit.files import write_json
from tasks.model.fingerprint import training_fingerprint
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams


def fingerprint(root: Path, runtime: dict[str, Any], base_model: Path | None = None, **train: Any) -> str:
    write_json(root / "split" / "manifest.json", {})
    (root / "tokenizer").mkdir(exist_ok=True)
    return training_fingerprint(
        TrainParams(**train),
        RuntimeParams(**runtime),
        root / "split",
        root / "tokenizer",
        base_model,
        "fp32",
    )


@pytest.mark.parametrize(
    "cut", [{"num_processes": 4}, {"micro_batch_size": 16}, {"num_processes": 1, "micro_batch_size": 8}]
)
def test_how_a_batch_is_cut_belongs_to_it_only_with_dropout(cut: dict[str, int], tmp_path: Path) -> None:
    assert fingerprint(tmp_path, cut) == fingerprint(tmp_path, {})
    dropout: dict[str, Any] = {"model": {"dropout": 0.1}}
    assert fingerprint(tmp_path, cut, **dropout) != fingerprint(tmp_path, {}, **dropout)


def test_the_dropout_of_a_base_model_counts(tmp_path: Path) -> None:
    cut = {"num_processes": 4}
    for name, rate, differs in (("none", 0.0, False), ("some", 0.1, True)):
        write_json(tmp_path / name / "config.json", {"model_type": "gpt2", "resid_pdrop": rate, "use": True})
        same = fingerprint(tmp_path, cut, tmp_path / name) == fingerprint(tmp_path, {}, tmp_path / name)
        assert same != differs


def test_other_runtime_settings_never_belong_to_it(tmp_path: Path) -> None:
    dropout: dict[str, Any] = {"model": {"dropout": 0.1}}
    other = {"num_workers": 7, "zero_stage": 3, "checkpoint_every": 9, "launcher": "deepspeed"}
    assert fingerprint(tmp_path, other, **dropout) == fingerprint(tmp_path, {}, **dropout)
