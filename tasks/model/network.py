"""The network: a causal language model of Hugging Face, from random weights or from a pretrained folder."""

import difflib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tasks.kit.errors import InputError, ParamsError
from tasks.params.train import ModelParams

# What our words are called in the configurations of Hugging Face; `attribute_map` there covers most of the rest.
_NAMES = {
    "hidden_size": ("hidden_size", "d_model"),
    "num_layers": ("num_hidden_layers",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "initializer_range": ("initializer_range", "init_std"),
    "tie_embeddings": ("tie_word_embeddings",),
    "positions": ("max_position_embeddings", "n_positions"),
}
_DROPOUTS = (
    "attention_dropout",
    "attn_pdrop",
    "dropout",
    "embd_pdrop",
    "embedding_dropout",
    "hidden_dropout",
    "resid_dropout",
    "resid_pdrop",
)


def config_of(params: ModelParams, vocabulary_size: int, block_size: int, end_of_document_id: int) -> Any:
    """The Hugging Face configuration of a network made from nothing.

    Raises:
        ParamsError: an architecture that is no causal language model here, or a setting that it does not have.
    """
    valid = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(CONFIG_MAPPING_NAMES))
    if params.architecture not in valid:
        near = difflib.get_close_matches(params.architecture, valid, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"valid are {', '.join(valid)}"
        raise ParamsError(
            f"train.model.architecture: {params.architecture!r} is no causal language model; {hint}"
        )
    known = AutoConfig.for_model(params.architecture)
    settings: dict[str, Any] = {
        "vocab_size": vocabulary_size,
        "bos_token_id": end_of_document_id,
        "eos_token_id": end_of_document_id,
        "pad_token_id": None,
        "use_cache": True,
    }
    values = {**params.model_dump(exclude={"architecture", "dropout"}), "positions": block_size}
    for word, value in values.items():
        name = next((candidate for candidate in _NAMES[word] if hasattr(known, candidate)), None)
        if name is not None:
            settings[name] = value
        elif word == "num_kv_heads" and params.num_kv_heads == params.num_heads:
            continue  # as many as heads is what an architecture without the field has
        elif word != "positions":  # none: the architecture has no limit
            raise ParamsError(
                f"train.model.{word}: {params.architecture} has no such setting{_settings_of(known)}"
            )
    if hasattr(known, "head_dim"):
        settings["head_dim"] = params.hidden_size // params.num_heads
    dropouts = [name for name in _DROPOUTS if hasattr(known, name)]
    if params.dropout and not dropouts:
        raise ParamsError(f"train.model.dropout: {params.architecture} has no dropout; set it to 0")
    settings |= dict.fromkeys(dropouts, params.dropout)
    return AutoConfig.for_model(params.architecture, **settings)


def build_network(config: Any, seed: int) -> Any:
    """A network of `config` with random weights, fp32, the same for the same seed."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def load_network(folder: Path) -> Any:
    """The pretrained network of a folder, fp32.

    Raises:
        InputError: the folder holds no such network, or lacks weights that would silently be random.
    """
    try:
        network, report = AutoModelForCausalLM.from_pretrained(
            folder,
            attn_implementation="sdpa",
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"train.base_model: {folder} cannot be loaded: {error}") from None
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise InputError(
            f"train.base_model: {folder} lacks the weights of {len(missing)} tensors ({', '.join(missing[:5])}): "
            "they would start from random numbers"
        )
    return network


def check_causal(network: Any) -> None:
    """The logits of a position may not depend on the tokens after it: those are what it has to predict.

    BERT and its kin count as causal language models, and look both ways unless their configuration says otherwise:
    their loss would be that of copying.

    Raises:
        ParamsError: they do depend on them.
    """
    training = network.training
    network.eval()
    ids = torch.arange(2, 10).unsqueeze(0)
    other = ids.clone()
    other[0, -1] = 1
    with torch.no_grad():
        difference = network(input_ids=ids).logits[:, :-1] - network(input_ids=other).logits[:, :-1]
    network.train(training)
    if float(difference.abs().max()) > 1e-4:
        raise ParamsError(
            f"train.model.architecture: a {network.config.model_type} network sees the tokens that it has to predict; "
            "name a decoder (llama, qwen2, gpt2, ...)"
        )


def parameter_groups(network: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Optimizer groups: decay for matrices, none for norms, biases and embeddings (also a tied output)."""
    embeddings = {id(m.weight) for m in network.modules() if isinstance(m, torch.nn.Embedding)}
    decayed: list[torch.nn.Parameter] = []
    plain: list[torch.nn.Parameter] = []
    for parameter in network.parameters():
        if parameter.requires_grad:
            (decayed if parameter.ndim >= 2 and id(parameter) not in embeddings else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def save_network(config: Any, weights: dict[str, torch.Tensor], folder: Path, generation: Any = None) -> None:
    """Write a Hugging Face folder with one model.safetensors: the same weights give the same bytes."""
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    network.load_state_dict(weights, strict=False, assign=True)
    network.tie_weights()
    if generation is not None:
        network.generation_config = generation
    left = [name for name, parameter in network.named_parameters() if parameter.is_meta]
    assert not left, f"weights not gathered: {left}"
    network.save_pretrained(folder, max_shard_size="100TB")


def _settings_of(config: Any) -> str:
    return f"; it has {', '.join(sorted(name for name in config.to_dict() if not name.startswith('_')))}"
