"""Section `tokenize` of params.yaml."""

from typing import Literal

from pydantic import Field, model_validator

from tasks.params.base import Section


class PretrainedTokenizer(Section):
    """The part that snapshot looks at."""

    tokenizer: str | None = None
    """A folder or hub id (`owner/name@revision`) of a pretrained tokenizer; none: one is trained on train documents."""


class TokenizeParams(PretrainedTokenizer):
    """Which tokenizer, and how it is made."""

    model: Literal["bpe"] = "bpe"
    """Kind of the tokenizer trained here: byte-level BPE."""
    vocabulary_size: int = Field(default=1024, ge=300, le=2**20)
    """Entries of the vocabulary, special tokens included."""
    max_training_bytes: int = Field(default=200 * 2**20, gt=0)
    """Text that the trainer sees at most: whole documents, picked by the hash of their id."""
    end_of_document: str = Field(default="<|endoftext|>", min_length=1)
    """Token put after each document (a given tokenizer brings its own); the same string inside a text stays text."""
    special_tokens: tuple[str, ...] = ()
    """Further special tokens."""
    fast: bool = True
    """Encode with gigatoken, checked against `tokenizers` on a sample of every shard; differs: falls back."""

    @model_validator(mode="after")
    def _special_tokens_differ(self) -> "TokenizeParams":
        tokens = [self.end_of_document, "<|pad|>", *self.special_tokens]
        twice = sorted({token for token in tokens if tokens.count(token) > 1 or not token})
        if twice:
            raise ValueError(
                f"special tokens must differ and not be empty (<|pad|> is there already), found {twice} twice"
            )
        if self.vocabulary_size < 256 + len(tokens):
            raise ValueError(f"vocabulary_size must hold 256 bytes and {len(tokens)} special tokens")
        return self
