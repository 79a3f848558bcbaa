"""Section `dedupe` of params.yaml."""

from pydantic import Field

from tasks.params.base import Section


class DedupeParams(Section):
    """What counts as the same document."""

    near: bool = True
    """Also remove near duplicates; exact ones always go."""
    ngram: int = Field(default=5, gt=0)
    """Words (characters, in scripts without spaces) of one shingle; shorter texts are compared exactly only."""
    num_bands: int = Field(default=20, gt=0)
    """Bands of the MinHash signature: more find more pairs (20 of 7 rows 99.1 % at similarity 0.8, 14 of 8 92.4 %)."""
    rows_per_band: int = Field(default=7, gt=0)
    """Rows of one band: more let fewer unlike pairs through to the comparison."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """True Jaccard similarity of the shingle sets from which two documents are the same."""
    max_source_loss: float = Field(default=0.95, ge=0, le=1)
    """The stage stops when a source of at least 100 documents loses more than this share."""
    seed: int = 1
    """Seed of the hash functions."""
