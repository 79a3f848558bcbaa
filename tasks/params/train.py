"""Section `train` of params.yaml."""

from typing import Literal

from pydantic import Field

from tasks.params.base import Section


class ModelParams(Section):
    """The network, when it is made from nothing."""

    architecture: str = "llama"
    """A model type that `AutoConfig` knows (llama, qwen2, gpt2, mistral, ...)."""
    hidden_size: int = Field(default=128, gt=0)
    """Width of the residual stream."""
    num_layers: int = Field(default=4, gt=0)
    """Transformer blocks."""
    num_heads: int = Field(default=4, gt=0)
    """Attention heads."""
    num_kv_heads: int = Field(default=4, gt=0)
    """Key/value heads (grouped-query attention), where the architecture has them."""
    intermediate_size: int = Field(default=352, gt=0)
    """Width of the feed-forward part."""
    tie_embeddings: bool = True
    """Share the input and output embedding."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout, where the architecture has it; above 0, ranks and micro batch are part of the identity (other masks)."""
    initializer_range: float = Field(default=0.06, gt=0)
    """Standard deviation of the initial weights."""


class PretrainedModel(Section):
    """The part that snapshot looks at."""

    base_model: str | None = None
    """A Hugging Face folder or hub id to start from; none: `model` below, from random weights."""


class TrainParams(PretrainedModel):
    """The training run; everything here changes the weights."""

    model: ModelParams = ModelParams()
    """The network, when there is no base model."""
    global_batch_size: int = Field(default=4, gt=0)
    """Sequences of one optimizer step, over all ranks and accumulation."""
    max_steps: int | None = Field(default=900, gt=0)
    """Optimizer steps; none: as many as `epochs` needs."""
    epochs: float = Field(default=1.0, gt=0)
    """Passes over the train side, when `max_steps` is not set."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Peak learning rate."""
    min_learning_rate_share: float = Field(default=0.1, ge=0, le=1)
    """Last learning rate as a share of the peak."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay after the warm-up."""
    warmup_steps: int = Field(default=20, ge=0)
    """Steps of linear warm-up."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay (AdamW) of matrices; norms, biases and embeddings have none."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay of the square."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic; `auto` is bf16 where the device has it in hardware, else fp32."""
    evaluate_every: int = Field(default=300, gt=0)
    """Steps between two looks at the validation loss."""
    patience: int | None = Field(default=None, gt=0)
    """Stop after so many looks without a better validation loss; none: never early."""
    seed: int = 1234
    """Seed of the weights, of dropout and of the order of sequences."""
