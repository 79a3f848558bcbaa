"""A Hugging Face model folder: loaded with its tokenizer, checked against the split, and its untrained twin."""

from pathlib import Path
from typing import Any

from tasks.kit.errors import InputError


def load_model(folder: Path) -> Any:
    """The causal language model of a folder in float32, ready to score, on the GPU where there is one.

    Raises:
        InputError: the folder holds no model that transformers can load.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} holds no model that can be loaded ({error}): run the stage train again"
        ) from None
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def untrained_twin(folder: Path, seed: int) -> Any:
    """A model of the same configuration with fresh random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def load_tokenizer(folder: Path) -> Any:
    """The `tokenizers.Tokenizer` of a folder, exactly as saved.

    `AutoTokenizer` may put the class of the model's architecture in place of the one that was trained.

    Raises:
        InputError: there is no whole tokenizer.json.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the Rust side raises bare Exception
        raise InputError(
            f"{folder / 'tokenizer.json'} cannot be read ({error}): run the stage train again"
        ) from None


def check_vocabulary(model: Any, vocabulary_size: int, split: Path) -> None:
    """Refuse token ids that lie outside the embedding: they would crash or, on a GPU, poison the device.

    Raises:
        InputError: names both sizes.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if rows < vocabulary_size:
        raise InputError(
            f"the model embeds {rows} tokens, but {split} was made with a vocabulary of {vocabulary_size}: "
            "model and split belong to different tokenizers; run the stages tokenize to train again"
        )
