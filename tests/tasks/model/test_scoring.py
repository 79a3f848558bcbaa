"""Losses by token: one result for every batch size and engine, and the one that transformers computes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.model.saved_model import load_model, load_tokenizer
from tasks.model.scoring import bits_per_byte, model_logits, score_blocks, text_bytes


class ArrayBlocks:
    """Blocks that lie in memory."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.block_size = rows.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        return self.rows[indices]


def test_a_pretrained_model_has_its_known_loss_at_every_batch_size(
    shared_data: Callable[[str], Path],
) -> None:
    import json

    folder = shared_data("models/stories260K/hf")
    lines = shared_data("models/stories260K/samples_T1.jsonl").read_text().splitlines()[120:160]
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    stories = [json.loads(line) for line in lines]
    texts = [story if isinstance(story, str) else story["text"] for story in stories]
    ids = [
        [1, *(token for token in encoding.ids if token != 1)] for encoding in tokenizer.encode_batch(texts)
    ]
    blocks = ArrayBlocks(np.array([row[:128] for row in ids if len(row) >= 128], np.int64))
    indices = np.arange(len(blocks), dtype=np.int64)
    scores = [score_blocks(model_logits(model), blocks, indices, size) for size in (1, 2, 8)]
    assert 1.1 < scores[0].loss < 1.5  # the README measured 1.28 on longer windows
    for other in scores[1:]:
        np.testing.assert_allclose(other.nats, scores[0].nats, rtol=1e-5)
        assert other.loss == pytest.approx(scores[0].loss, abs=1e-5)
        assert other.accuracy == pytest.approx(scores[0].accuracy, abs=1e-3)


def test_the_loss_is_the_one_of_transformers(shared_data: Callable[[str], Path]) -> None:
    import torch

    model = load_model(shared_data("models/stories260K/hf"))
    rows = np.random.default_rng(0).integers(0, 512, (3, 40))
    scores = score_blocks(model_logits(model), ArrayBlocks(rows), np.arange(3), 2)
    ids = torch.from_numpy(rows).to(model.device)
    with torch.inference_mode():
        assert scores.loss == pytest.approx(float(model(input_ids=ids, labels=ids).loss), abs=1e-5)


def test_any_function_of_ids_is_scored_and_every_target_counts_once() -> None:
    def certain(ids: np.ndarray) -> np.ndarray:
        logits = np.zeros((*ids.shape, 4), np.float32)
        logits[:, :, 2] = np.log(5)
        return logits

    rows = np.array([[0, 2, 2, 1], [3, 3, 3, 2]])
    scores = score_blocks(certain, ArrayBlocks(rows), np.array([0, 1]), 8)
    hit, miss = np.log(8 / 5), np.log(8)
    np.testing.assert_allclose(scores.nats, [2 * hit + miss, 2 * miss + hit])
    assert scores.tokens.tolist() == [3, 3]
    assert scores.correct.tolist() == [2, 1]


def test_bytes_are_those_of_the_text_and_special_tokens_have_none(trained_project: Path) -> None:
    tokenizer = load_tokenizer(trained_project / "data" / "train" / "model")
    ids = tokenizer.encode("Über das Haus, 你好").ids
    rows = np.array([[0, *ids, 0]])
    count = text_bytes(tokenizer, ArrayBlocks(rows), np.array([0]))
    assert count.tolist() == [len("Über das Haus, 你好".encode())]
    assert bits_per_byte(np.array([np.log(2) * 11]), count) == pytest.approx(11 / count[0])
