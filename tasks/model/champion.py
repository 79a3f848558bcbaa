"""The losses of another model, of whatever tokenizer, on the same bytes as the test blocks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.model.saved_model import load_model, load_tokenizer
from tasks.model.scoring import BlockSource, Logits, model_logits, score_blocks, target_losses


def score_same_ids(folder: Path, blocks: BlockSource, batch_size: int) -> npt.NDArray[np.float64]:
    """Nats of each block by the model in `folder`, whose tokenizer is that of the blocks."""
    indices = np.arange(len(blocks), dtype=np.int64)
    return score_blocks(model_logits(load_model(folder)), blocks, indices, batch_size).nats


def score_same_text(
    folder: Path, blocks: BlockSource, tokenizer: Any, end_of_document_id: int, own_end_of_document_id: int
) -> npt.NDArray[np.float64]:
    """Nats of each block's targets by a model with a tokenizer of its own.

    The block's first token stands as context, as it does for the blocks' own model; its other text is written in
    the other tokenizer's ids, with `own_end_of_document_id` between documents. A text longer than the model's
    context goes through it in windows that score each token once.
    """
    model, own = load_model(folder), load_tokenizer(folder)
    logits = model_logits(model)
    context = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    nats = []
    for block in range(len(blocks)):
        ids = blocks.gather(np.array([block]))[0].tolist()
        first, targets = (
            _translate(part, tokenizer, own, end_of_document_id, own_end_of_document_id)
            for part in (ids[:1], ids[1:])
        )
        first = first or [own_end_of_document_id]
        nats.append(_score(logits, first + targets, len(first), context))
    return np.array(nats)


def _translate(ids: list[int], tokenizer: Any, own: Any, end: int, own_end: int) -> list[int]:
    translated: list[int] = []
    for number, document in enumerate(_documents(ids, end)):
        translated += [own_end] if number else []
        translated += own.encode(tokenizer.decode(document), add_special_tokens=False).ids
    return translated


def _documents(ids: list[int], end: int) -> Iterator[list[int]]:
    while end in ids:
        place = ids.index(end)
        yield ids[:place]
        ids = ids[place + 1 :]
    yield ids


def _score(logits: Logits, ids: list[int], skip: int, context: int) -> float:
    """Nats of ids[skip:]; each window begins with the last token of the one before."""
    losses = [
        target_losses(logits, np.array([ids[start : start + context]], np.int64))[0][0]
        for start in range(0, len(ids) - 1, context - 1)
    ]
    return float(np.concatenate(losses)[skip - 1 :].sum())
