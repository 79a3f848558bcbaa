"""Section `split` of params.yaml."""

from typing import Self

from pydantic import Field, model_validator

from tasks.params.base import Section


class SidesParams(Section):
    """Which document goes to which side: all of the section that tokenize needs, so that a block's length is not."""

    train: float = Field(default=0.85, gt=0, lt=1)
    """Share of clusters on the train side."""
    validation: float = Field(default=0.10, gt=0, lt=1)
    """Share on the validation side (early stopping looks at it)."""
    test: float = Field(default=0.05, gt=0, lt=1)
    """Share on the test side (only evaluate looks at it)."""
    seed: int = 17
    """Seed of the hash that chooses the side."""

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"train + validation + test must be 1, found {total:.6g}")
        return self


class SplitParams(SidesParams):
    """Which document goes to which side, and how long a block is."""

    block_size: int = Field(default=256, ge=8)
    """Tokens of one packed block: the length of a training sequence."""
