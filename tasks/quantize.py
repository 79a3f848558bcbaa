"""Build small formats of the trained model and judge each from the files that ship.

Reads:  data/train/model, data/split (test side).
Writes: data/quantize/FORMAT (ONNX with tokenizer) of each accepted format, data/quantize/verdicts.json.
Drops:  a format whose perplexity grew beyond the limit or that is not smaller; its figures stay.
"""

import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tasks.kit.errors import InputError
from tasks.kit.files import empty_folder, write_json
from tasks.kit.paths import Paths
from tasks.model.blocks import Blocks
from tasks.model.onnx_export import GENAI, decode_speed, export, session_logits
from tasks.model.saved_model import check_vocabulary, load_model
from tasks.model.scoring import BlockScores, model_logits, score_blocks
from tasks.params.quantize import QuantizeParams
from tasks.params.runtime import RuntimeParams

logger = logging.getLogger("train_llm")

ACCEPTED = "accepted"
REFUSED = "refused"


@dataclass(frozen=True)
class ReferenceFigures:
    """The trained model in fp32, on the blocks that all formats are judged on."""

    bytes: int
    perplexity: float


@dataclass(frozen=True)
class FormatFigures:
    """One format, measured from its saved files."""

    engine: str
    """`onnxruntime-genai`, or `onnxruntime` for a traced graph without a cache."""
    bytes: int
    """Of the whole folder, tokenizer included, like the reference's."""
    perplexity: float | None
    """None where a loss is not finite."""
    perplexity_increase: float | None
    """Share of the reference's perplexity; negative: it got better."""
    verdict: str
    """`accepted` or `refused`."""
    reason: str


@dataclass(frozen=True)
class QuantizeFigures:
    """Sizes, perplexities and verdicts; speeds are logged only, they differ from run to run."""

    blocks: int
    tokens: int
    reference: ReferenceFigures
    formats: dict[str, FormatFigures]


def quantize(params: QuantizeParams, runtime: RuntimeParams, paths: Paths) -> QuantizeFigures:
    """Build, measure and judge every format of `params.formats`.

    Raises:
        InputError: the test side is empty, or model and split do not belong together.
        StageError: the model's architecture cannot be exported.
    """
    blocks, indices = _judged_blocks(params, paths)
    reference_scores = _score_reference(blocks, indices, runtime, paths)
    reference = ReferenceFigures(folder_bytes(paths.model), _rounded(reference_scores.perplexity))
    empty_folder(paths.quantized)
    formats: dict[str, FormatFigures] = {}
    for name in params.formats:
        folder = paths.quantized / name
        engine = export(paths.model, folder, name, blocks.gather(indices[:1]))
        scores = score_blocks(session_logits(folder), blocks, indices, runtime.evaluation_batch_size)
        formats[name] = judge(engine, folder_bytes(folder), scores.perplexity, reference, params)
        _log(name, formats[name], folder, blocks)
        if formats[name].verdict == REFUSED:
            shutil.rmtree(folder)
    figures = QuantizeFigures(len(indices), int(reference_scores.tokens.sum()), reference, formats)
    write_json(paths.quantized / "verdicts.json", asdict(figures))
    return figures


def judge(
    engine: str, num_bytes: int, perplexity: float, reference: ReferenceFigures, params: QuantizeParams
) -> FormatFigures:
    """Accept a format that is smaller than the reference and whose perplexity grew within the limit."""
    increase = perplexity / reference.perplexity - 1
    limit = params.max_perplexity_increase
    verdict = REFUSED
    if not np.isfinite(perplexity):
        return FormatFigures(engine, num_bytes, None, None, REFUSED, "its losses are not finite")
    if increase > limit:
        reason = f"perplexity {increase:+.2%}, more than quantize.max_perplexity_increase {limit:+.2%}"
    elif num_bytes >= reference.bytes:
        reason = f"{num_bytes:,} bytes, not smaller than the reference's {reference.bytes:,}"
    else:
        verdict = ACCEPTED
        reason = (
            f"perplexity {increase:+.2%} within {limit:+.2%}, {reference.bytes / num_bytes:.1f} times smaller"
        )
    return FormatFigures(engine, num_bytes, _rounded(perplexity), _rounded(increase), verdict, reason)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _judged_blocks(params: QuantizeParams, paths: Paths) -> tuple[Blocks, np.ndarray]:
    blocks = Blocks.open(paths.split, "test")
    if not len(blocks):
        raise InputError(
            f"{paths.split / 'test'} holds no block of {blocks.block_size} tokens, so no format can be judged: "
            "add documents, raise split.test or lower split.block_size"
        )
    count = min(params.max_blocks, len(blocks))
    return blocks, np.linspace(0, len(blocks) - 1, count).round().astype(np.int64)


def _score_reference(
    blocks: Blocks, indices: np.ndarray, runtime: RuntimeParams, paths: Paths
) -> BlockScores:
    model = load_model(paths.model)
    check_vocabulary(model, blocks.manifest["vocabulary_size"], paths.split)
    return score_blocks(model_logits(model), blocks, indices, runtime.evaluation_batch_size)


def _log(name: str, figures: FormatFigures, folder: Path, blocks: Blocks) -> None:
    speed = ""
    if figures.engine == GENAI:
        half = blocks.block_size // 2
        speed = f", {decode_speed(folder, blocks[0][:half].tolist(), half):,.0f} tokens a second"
    logger.info("%s %s: %s%s", name, figures.verdict, figures.reason, speed)


def _rounded(value: float) -> float:
    """Eight significant digits: what lies below is the order of floating-point sums."""
    return float(f"{value:.8g}")
