"""Judge the trained model on the test side of the split.

Reads:  data/train/model, data/split.
Writes: data/evaluate/samples.json (prompts, references, greedy continuations, free samples),
        data/evaluate/test_losses.parquet (block, nats, tokens, bytes: what the gate of register compares).
Drops:  nothing; test documents shorter than prompt and continuation are scored, but not continued.

Losses are sums over tokens, so no figure depends on the batch size. Generation and sampling have fixed batches
and a seed.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.kit.errors import InputError, ParamsError, StageError
from tasks.kit.files import atomic_path, write_json
from tasks.kit.paths import Paths
from tasks.model.blocks import Blocks
from tasks.model.bootstrap import interval, resampled_ratios
from tasks.model.generation import (
    bleu,
    bleu_tokenizer,
    document_openings,
    generate,
    rouge,
)
from tasks.model.ngrams import NgramModel
from tasks.model.saved_model import check_vocabulary, load_model, load_tokenizer, untrained_twin
from tasks.model.scoring import BlockScores, bits_per_byte, model_logits, score_blocks, text_bytes
from tasks.params.evaluate import EvaluateParams
from tasks.params.runtime import RuntimeParams

logger = logging.getLogger("train_llm")

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class BaselineFigures:
    """A model to beat, on the same test tokens."""

    test_loss: float
    perplexity: float
    bits_per_byte: float
    next_token_accuracy: float | None = None
    """Only where the whole distribution is at hand (untrained)."""


@dataclass(frozen=True)
class EvaluateFigures:
    """Figures of the test side; intervals hold 95 % of the bootstrap over blocks."""

    blocks: int
    tokens: int
    """Targets that were scored: all tokens of a block but the first."""
    bytes: int
    """UTF-8 bytes of the text of the targets."""
    test_loss: float
    """Nats a token."""
    perplexity: float
    perplexity_interval: tuple[float, float]
    next_token_accuracy: float
    bits_per_byte: float
    bits_per_byte_interval: tuple[float, float]
    continuations: int
    """Test documents that were continued greedily, and compared with what really follows."""
    bleu: float | None
    """0 to 100; none where no test document is long enough."""
    bleu_tokenizer: str | None
    rouge1: float | None
    """Mean F1, 0 to 1."""
    rougeL: float | None
    baselines: dict[str, BaselineFigures]
    bigram_concentration: float
    """Weight of the unigram in the bigram baseline, fitted on the validation side."""


def evaluate(params: EvaluateParams, runtime: RuntimeParams, paths: Paths) -> EvaluateFigures:
    """Score the test side, continue test documents, and do the same with an untrained twin and count models.

    Raises:
        InputError: the test side is empty, or model and split do not belong together.
        StageError: a loss is not finite.
    """
    blocks = _open_test_side(paths)
    tokenizer = load_tokenizer(paths.model)
    model = load_model(paths.model)
    check_vocabulary(model, blocks.manifest["vocabulary_size"], paths.split)
    indices = np.arange(len(blocks), dtype=np.int64)
    num_bytes = text_bytes(tokenizer, blocks, indices)

    scores = score_blocks(model_logits(model), blocks, indices, runtime.evaluation_batch_size)
    _refuse_infinite(scores.nats)
    _write_losses(paths, scores, num_bytes)
    text_figures = _continue_documents(params, paths, model, tokenizer, blocks)
    baselines, concentration = _score_baselines(params, runtime, paths, blocks, num_bytes)
    figures = EvaluateFigures(
        blocks=len(blocks),
        tokens=int(scores.tokens.sum()),
        bytes=int(num_bytes.sum()),
        **_loss_figures(params, scores, num_bytes),
        **text_figures,
        baselines=baselines,
        bigram_concentration=concentration,
    )
    _log(figures)
    return figures


def _open_test_side(paths: Paths) -> Blocks:
    blocks = Blocks.open(paths.split, "test")
    if not len(blocks):
        dropped = blocks.manifest["sides"]["test"].get("dropped_tail_tokens", 0)
        raise InputError(
            f"{paths.split / 'test'} holds no block of {blocks.block_size} tokens ({dropped} tokens were too few): "
            "nothing can be judged. Add documents, raise split.test or lower split.block_size"
        )
    return blocks


def _refuse_infinite(nats: npt.NDArray[np.float64]) -> None:
    broken = np.flatnonzero(~np.isfinite(nats))
    if len(broken):
        raise StageError(
            f"the loss of {len(broken)} of {len(nats)} test blocks is not finite (first: block {broken[0]}): "
            "the weights are broken; lower train.learning_rate or train.max_gradient_norm and train again"
        )


def _loss_figures(
    params: EvaluateParams, scores: BlockScores, num_bytes: npt.NDArray[np.int64]
) -> dict[str, Any]:
    losses = resampled_ratios(scores.nats, scores.tokens, params.bootstrap_resamples, params.seed)
    bits = resampled_ratios(scores.nats / np.log(2), num_bytes, params.bootstrap_resamples, params.seed)
    return {
        "test_loss": _rounded(scores.loss),
        "perplexity": _rounded(scores.perplexity),
        "perplexity_interval": _rounded_pair(interval(np.exp(losses), _CONFIDENCE)),
        "next_token_accuracy": _rounded(scores.accuracy),
        "bits_per_byte": _rounded(bits_per_byte(scores.nats, num_bytes)),
        "bits_per_byte_interval": _rounded_pair(interval(bits, _CONFIDENCE)),
    }


def _continue_documents(
    params: EvaluateParams, paths: Paths, model: Any, tokenizer: Any, blocks: Blocks
) -> dict[str, Any]:
    _check_lengths(params, model)
    end = blocks.manifest["end_of_document_id"]
    openings = document_openings(
        blocks, params.num_continuations, params.prompt_tokens, params.continuation_tokens
    )
    continuations: list[dict[str, str]] = []
    if openings:
        prompts = np.stack([opening.prompt for opening in openings])
        greedy = generate(model, prompts, params.continuation_tokens, end)
        continuations = [
            {
                "id": opening.id,
                "prompt": tokenizer.decode(opening.prompt.tolist()),
                "reference": tokenizer.decode(opening.reference.tolist()),
                "greedy": tokenizer.decode(ids),
            }
            for opening, ids in zip(openings, greedy, strict=True)
        ]
    elif params.num_continuations:
        logger.warning(
            "no test document has more than evaluate.prompt_tokens + evaluate.continuation_tokens = %d tokens: "
            "no continuation, BLEU or ROUGE",
            params.prompt_tokens + params.continuation_tokens,
        )
    starts = np.full((params.num_samples, 1), end, np.int64)
    free = generate(
        model, starts, params.continuation_tokens * 2, end, temperature=params.temperature, seed=params.seed
    )
    write_json(
        paths.evaluate_samples,
        {
            "continuations": continuations,
            "samples": [tokenizer.decode(ids) for ids in free],
            "temperature": params.temperature,
        },
    )
    return _compare_texts(continuations)


def _check_lengths(params: EvaluateParams, model: Any) -> None:
    context = getattr(model.config, "max_position_embeddings", None)
    needed = max(params.prompt_tokens + params.continuation_tokens, 2 * params.continuation_tokens + 1)
    if context is not None and needed > context:
        raise ParamsError(
            f"evaluate.prompt_tokens {params.prompt_tokens} and evaluate.continuation_tokens "
            f"{params.continuation_tokens} need {needed} positions, the model has {context}: lower them"
        )


def _compare_texts(continuations: list[dict[str, str]]) -> dict[str, Any]:
    """BLEU and ROUGE of the greedy continuations against what really follows."""
    if not continuations:
        return {"continuations": 0, "bleu": None, "bleu_tokenizer": None, "rouge1": None, "rougeL": None}
    texts = [entry["greedy"] for entry in continuations]
    references = [entry["reference"] for entry in continuations]
    name = bleu_tokenizer(references)
    scores = rouge(texts, references)
    return {
        "continuations": len(continuations),
        "bleu": _rounded(bleu(texts, references, name)),
        "bleu_tokenizer": name,
        "rouge1": _rounded(scores["rouge1"]),
        "rougeL": _rounded(scores["rougeL"]),
    }


def _score_baselines(
    params: EvaluateParams,
    runtime: RuntimeParams,
    paths: Paths,
    blocks: Blocks,
    num_bytes: npt.NDArray[np.int64],
) -> tuple[dict[str, BaselineFigures], float]:
    twin = model_logits(untrained_twin(paths.model, params.seed))
    indices = np.arange(len(blocks), dtype=np.int64)
    untrained = score_blocks(twin, blocks, indices, runtime.evaluation_batch_size)
    train, validation = Blocks.open(paths.split, "train"), Blocks.open(paths.split, "validation")
    counts = NgramModel(train, [validation, blocks], blocks.manifest["vocabulary_size"])
    concentration = counts.fit_concentration(validation) if len(validation) else 1.0
    tokens, accuracy = int(untrained.tokens.sum()), _rounded(untrained.accuracy)
    figures = {
        "untrained": _baseline(untrained.nats, tokens, num_bytes, accuracy),
        "unigram": _baseline(counts.unigram_nats(blocks), tokens, num_bytes),
        "bigram": _baseline(counts.bigram_nats(blocks, concentration), tokens, num_bytes),
    }
    return figures, concentration


def _baseline(
    nats: npt.NDArray[np.float64],
    tokens: int,
    num_bytes: npt.NDArray[np.int64],
    accuracy: float | None = None,
) -> BaselineFigures:
    loss = float(nats.sum() / tokens)
    bits = bits_per_byte(nats, num_bytes)
    return BaselineFigures(_rounded(loss), _rounded(float(np.exp(loss))), _rounded(bits), accuracy)


def _write_losses(paths: Paths, scores: BlockScores, num_bytes: npt.NDArray[np.int64]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {"block": np.arange(len(num_bytes)), "nats": scores.nats, "tokens": scores.tokens, "bytes": num_bytes}
    )
    with atomic_path(paths.test_losses) as temporary:
        parquet.write_table(table, temporary, compression="zstd")


def _log(figures: EvaluateFigures) -> None:
    logger.info(
        "test perplexity %.2f [%.2f, %.2f] over %d tokens; untrained %.1f, unigram %.1f, bigram %.1f",
        figures.perplexity,
        *figures.perplexity_interval,
        figures.tokens,
        *(figures.baselines[name].perplexity for name in ("untrained", "unigram", "bigram")),
    )


def _rounded(value: float) -> float:
    """Eight significant digits: what lies below is the order of floating-point sums."""
    return float(f"{value:.8g}")


def _rounded_pair(values: tuple[float, float]) -> tuple[float, float]:
    return _rounded(values[0]), _rounded(values[1])
