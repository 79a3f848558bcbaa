"""Section `validate` of params.yaml."""

from pydantic import Field

from tasks.params.base import Section


class ValidateParams(Section):
    """What the data must look like before anything is spent on training."""

    min_documents: int = Field(default=100, gt=0)
    """Least number of survivors."""
    min_train_tokens: int = Field(default=50_000, gt=0)
    """Least number of tokens on the train side."""
    max_dropped_share: float = Field(default=0.5, ge=0, le=1)
    """Largest share of ingested documents that cleaning may drop."""
    max_duplicate_share: float = Field(default=0.6, ge=0, le=1)
    """Largest share of clean documents that deduplication may remove."""
    max_unknown_rate: float = Field(default=0.001, ge=0, le=1)
    """Largest share of unknown tokens."""
    min_characters_per_token: float = Field(default=1.5, gt=0)
    """A tokenizer worse than this does not fit the corpus."""
    split_tolerance: float = Field(default=0.05, gt=0, le=1)
    """How far a side's share of groups and clusters may lie from the one asked for, beside the luck of the draw."""
