"""Section `quantize` of params.yaml."""

from typing import Literal

from pydantic import Field

from tasks.params.base import Section


class QuantizeParams(Section):
    """Which small formats are made, and how much worse they may be."""

    formats: tuple[Literal["int8", "int4"], ...] = ("int8", "int4")
    """Formats to build (ONNX, weights only)."""
    max_perplexity_increase: float = Field(default=0.05, ge=0)
    """A format whose test perplexity grows by more than this share is refused."""
    max_blocks: int = Field(default=200, gt=0)
    """Test blocks that both models are judged on."""
