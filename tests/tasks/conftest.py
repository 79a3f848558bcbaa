"""A small project that has been trained: real text, a tokenizer of it, a packed split, a Llama of 50 k weights."""

import pydoc_data.topics
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.kit.files import file_digest, write_json
from tasks.kit.paths import Paths
from tasks.model.token_files import PACKED_INDEX_SCHEMA, dtype_of, write_index

BLOCK_SIZE = 64
VOCABULARY_SIZE = 512
END = "<|endoftext|>"


@pytest.fixture(scope="session")
def trained_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a project whose stages up to train have run; copy it with `project_copy` to write into it."""
    paths = Paths(tmp_path_factory.mktemp("trained"))
    texts = [text[:3000] for _, text in sorted(pydoc_data.topics.topics.items())]
    tokenizer = _train_tokenizer(texts)
    _write_split(paths, tokenizer, texts)
    train_model(paths, steps=150)
    paths.tokenizer.mkdir(parents=True)
    for folder in (paths.tokenizer, paths.model):
        tokenizer.save(str(folder / "tokenizer.json"))
        write_json(
            folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
        )
    return paths.root


@pytest.fixture
def project_copy(trained_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A copy of the trained project of the test's own, with tracking in its own `.state`."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Paths(shutil.copytree(trained_project, tmp_path / "project"))


@pytest.fixture(scope="session")
def retrain() -> Callable[..., None]:
    """`train_model`, for tests that need another model in a project."""
    return train_model


def train_model(paths: Paths, steps: int, seed: int = 0, **shape: int) -> None:
    """Train a tiny Llama on the train side in this process and save it as the stage train would."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tasks.model.blocks import Blocks

    torch.set_num_threads(1)  # threads that wait for one another cost such small tensors ten times the work
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 128,
    } | shape
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY_SIZE,
                num_hidden_layers=1,
                tie_word_embeddings=True,
                max_position_embeddings=BLOCK_SIZE,
                bos_token_id=0,
                eos_token_id=0,
                **sizes,
            )
        )
        blocks = Blocks.open(paths.split, "train")
        random = np.random.default_rng(seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(steps):
            ids = torch.from_numpy(blocks.gather(random.integers(0, len(blocks), 16)))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(paths.model)


def _train_tokenizer(texts: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _write_split(paths: Paths, tokenizer: Any, texts: list[str]) -> None:
    """Every tenth document to validation, the next to test, the others to train, packed as the stage split does."""
    import pyarrow as pa

    sides: dict[str, Any] = {}
    for side in ("train", "validation", "test"):
        chosen = [n for n in range(len(texts)) if {0: "validation", 1: "test"}.get(n % 10, "train") == side]
        encoded = [[*encoding.ids, 0] for encoding in tokenizer.encode_batch([texts[n] for n in chosen])]
        flat = np.array([token for ids in encoded for token in ids])
        kept = len(flat) - len(flat) % BLOCK_SIZE
        folder = paths.split / side
        folder.mkdir(parents=True)
        flat[:kept].astype(dtype_of(VOCABULARY_SIZE)).tofile(folder / "00000.bin")
        ends = np.minimum(np.cumsum([len(ids) for ids in encoded]), kept)
        tokens = np.diff(ends, prepend=0)
        rows = [
            {
                "id": f"{n:032x}",
                "source": "topics",
                "group": None,
                "cluster": f"{n:016x}",
                "end": int(end),
                "characters": len(texts[n]),
                "side": side,
                "tokens": int(count),
            }
            for n, end, count in zip(chosen, ends, tokens, strict=True)
            if count
        ]
        write_index(folder / "00000.idx", pa.Table.from_pylist(rows, PACKED_INDEX_SCHEMA))
        shard = {"name": "00000", "documents": len(rows), "tokens": kept}
        shard["digest"] = file_digest(folder / "00000.bin")
        sides[side] = {
            "blocks": kept // BLOCK_SIZE,
            "documents": len(rows),
            "tokens": kept,
            "shards": [shard],
        }
    write_json(
        paths.split / "manifest.json",
        {
            "dtype": "uint16",
            "block_size": BLOCK_SIZE,
            "vocabulary_size": VOCABULARY_SIZE,
            "tokenizer_digest": "t" * 32,
            "end_of_document_id": 0,
            "sides": sides,
        },
    )
