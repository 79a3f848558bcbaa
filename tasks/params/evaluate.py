"""Section `evaluate` of params.yaml."""

from pydantic import Field

from tasks.params.base import Section


class EvaluateParams(Section):
    """How the trained model is judged."""

    num_continuations: int = Field(default=24, ge=0)
    """Test documents whose continuation is generated and compared (BLEU, ROUGE)."""
    prompt_tokens: int = Field(default=48, gt=0)
    """Tokens of the prompt of a continuation."""
    continuation_tokens: int = Field(default=48, gt=0)
    """Tokens generated and compared."""
    num_samples: int = Field(default=4, ge=0)
    """Free samples kept for reading."""
    temperature: float = Field(default=0.8, gt=0)
    """Temperature of the free samples; continuations are greedy."""
    bootstrap_resamples: int = Field(default=1000, gt=0)
    """Resamples of test blocks behind the confidence intervals."""
    seed: int = 7
    """Seed of sampling and of the bootstrap."""
