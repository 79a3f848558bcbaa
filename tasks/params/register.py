"""Section `register` of params.yaml."""

from pydantic import Field

from tasks.params.base import Section


class RegisterParams(Section):
    """Under which name a model is registered, and when it becomes champion."""

    name: str = "train-llm"
    """Name of the registered model."""
    min_improvement_over_untrained: float = Field(default=0.2, ge=0, lt=1)
    """A model must beat its untrained twin by this share of the loss to be registered at all."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the paired bootstrap against the champion: the interval must lie on the better side."""
    resamples: int = Field(default=2000, gt=0)
    """Resamples of that bootstrap."""
    seed: int = 11
    """Its seed."""
