"""Next-token losses of blocks: token-weighted, the same for every batch size and for every engine.

A model is a function of token ids (num_blocks, block_size) to logits (num_blocks, block_size, vocabulary_size),
so that a PyTorch model, a count table and a saved ONNX file are judged by the same code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Logits = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]

# Positions whose log-softmax is taken at once: bounds the float64 copy to 64 MB at a vocabulary of 8,192.
_POSITIONS_AT_ONCE = 1024


class BlockSource(Protocol):
    """What scoring needs of `tasks.model.blocks.Blocks`."""

    block_size: int

    def __len__(self) -> int: ...

    def gather(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...


@dataclass(frozen=True)
class BlockScores:
    """Per block: summed loss in nats (float64), targets (int64), and targets that were the likeliest token."""

    nats: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]
    correct: npt.NDArray[np.int64]

    @property
    def loss(self) -> float:
        """Nats a token over all blocks: a ratio of sums, never a mean of means."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss))

    @property
    def accuracy(self) -> float:
        """Share of targets that the model held for the likeliest."""
        return float(self.correct.sum() / self.tokens.sum())


def score_blocks(
    logits: Logits, blocks: BlockSource, indices: npt.NDArray[np.int64], batch_size: int
) -> BlockScores:
    """Score the targets (all tokens but the first) of the blocks at `indices`, `batch_size` blocks at once."""
    nats = np.zeros(len(indices), np.float64)
    correct = np.zeros(len(indices), np.int64)
    for start in range(0, len(indices), batch_size):
        rows = slice(start, min(start + batch_size, len(indices)))
        ids = blocks.gather(indices[rows])
        nats[rows], correct[rows] = score_ids(logits, ids)
    return BlockScores(nats, np.full(len(indices), blocks.block_size - 1, np.int64), correct)


def score_ids(
    logits: Logits, ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """(nats, correct) of each row of `ids`, summed in float64 over its targets."""
    losses, hits = target_losses(logits, ids)
    return losses.sum(axis=1), hits.sum(axis=1)


def target_losses(
    logits: Logits, ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Nats of each target, and whether it was the likeliest token: (num_blocks, block_size - 1) both."""
    values = logits(ids)[:, :-1]
    vocabulary_size = values.shape[-1]
    predictions = np.ascontiguousarray(values).reshape(-1, vocabulary_size)
    targets = ids[:, 1:].reshape(-1)
    losses = np.empty(len(targets), np.float64)
    hits = np.empty(len(targets), bool)
    for start in range(0, len(targets), _POSITIONS_AT_ONCE):
        part = slice(start, start + _POSITIONS_AT_ONCE)
        losses[part], hits[part] = _losses(predictions[part], targets[part])
    shape = (len(ids), ids.shape[1] - 1)
    return losses.reshape(shape), hits.reshape(shape)


def model_logits(model: Any) -> Logits:
    """The logits of a PyTorch causal language model, computed where it lies, returned in float32."""
    import torch

    device = next(model.parameters()).device

    @torch.inference_mode()
    def logits(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        output = model(input_ids=torch.from_numpy(ids).to(device), use_cache=False)
        values: npt.NDArray[np.float32] = output.logits.float().cpu().numpy()
        return values

    return logits


def text_bytes(tokenizer: Any, blocks: BlockSource, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """UTF-8 bytes of the text that each block's targets stand for; special tokens stand for none.

    `tokenizer` is a `tokenizers.Tokenizer` (transformers may rebuild a tokenizer by the model's class).
    Bits a byte compare models with different tokenizers. A character cut by the block's edge decodes to U+FFFD
    (3 bytes in place of 1 to 3): under 0.1 % of a block of 256 tokens.
    """
    rows = [blocks.gather(indices[start : start + 256]) for start in range(0, len(indices), 256)]
    texts: list[str] = []
    for ids in rows:
        texts += tokenizer.decode_batch(ids[:, 1:].tolist(), skip_special_tokens=True)
    return np.array([len(text.encode("utf-8", "replace")) for text in texts], np.int64)


def bits_per_byte(nats: npt.NDArray[np.float64], num_bytes: npt.NDArray[np.int64]) -> float:
    """Summed loss in bits over the bytes of the text."""
    return float(nats.sum() / np.log(2) / max(int(num_bytes.sum()), 1))


def _losses(
    predictions: npt.NDArray[np.float32], targets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    best = predictions.argmax(axis=1)
    rows = np.arange(len(targets))
    shifted = predictions.astype(np.float64) - predictions[rows, best].astype(np.float64)[:, None]
    chosen = shifted[rows, targets]
    np.exp(shifted, out=shifted)
    return np.log(shifted.sum(axis=1)) - chosen, best == targets
