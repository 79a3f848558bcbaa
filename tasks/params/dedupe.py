"""Section `dedupe` of params.yaml."""

from pydantic import Field

from tasks.params.base import Section


class DedupeParams(Section):
    """What counts as the same document."""

    near: bool = True
    """Also remove near duplicates; exact ones always go."""
    ngram: int = Field(default=5, gt=0)
    """Words (characters, in scripts without spaces) of one shingle."""
    num_bands: int = Field(default=14, gt=0)
    """Bands of the MinHash signature; with `rows_per_band` it sets which pairs are looked at."""
    rows_per_band: int = Field(default=8, gt=0)
    """Rows of one band."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """True Jaccard similarity of the shingle sets from which two documents are the same."""
    max_source_loss: float = Field(default=0.95, ge=0, le=1)
    """The stage stops when a source of at least 100 documents loses more than this share."""
    seed: int = 1
    """Seed of the hash functions."""
