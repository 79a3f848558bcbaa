"""Networks from params: which settings an architecture has, what decays, and what is written."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.kit.errors import InputError, ParamsError
from tasks.kit.files import file_digest
from tasks.model.network import (
    build_network,
    check_causal,
    config_of,
    load_network,
    parameter_groups,
    save_network,
)
from tasks.params.train import ModelParams

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 4,
    "intermediate_size": 48,
}


def tiny_config(**changes: Any) -> Any:
    return config_of(ModelParams(**TINY | changes), vocabulary_size=100, block_size=16, end_of_document_id=7)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2", "qwen3", "mistral", "gpt_neox", "opt"])
def test_common_architectures_take_the_same_words(architecture: str) -> None:
    network = build_network(tiny_config(architecture=architecture, dropout=0.1), seed=1)
    logits = network(input_ids=torch.zeros(1, 16, dtype=torch.long), use_cache=False).logits
    assert logits.shape == (1, 16, 100)
    assert network.config.hidden_size == 32
    assert network.config.num_hidden_layers == 2
    assert network.config.eos_token_id == 7


def test_dropout_is_honoured_in_training_and_off_in_evaluation() -> None:
    ids = torch.arange(16).reshape(1, 16)
    network = build_network(tiny_config(dropout=0.5), seed=1)
    network.train()
    assert not torch.equal(network(input_ids=ids).logits, network(input_ids=ids).logits)
    network.eval()
    assert torch.equal(network(input_ids=ids).logits, network(input_ids=ids).logits)


def test_an_unknown_architecture_is_refused_with_the_near_names() -> None:
    with pytest.raises(ParamsError, match=r"train\.model\.architecture: 'lama'.*did you mean.*llama"):
        tiny_config(architecture="lama")


def test_a_setting_that_the_architecture_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(
        ParamsError, match=r"train\.model\.num_kv_heads: gpt2 has no such setting; it has .*n_head"
    ):
        tiny_config(architecture="gpt2", num_kv_heads=2)


def test_the_seed_alone_decides_the_weights() -> None:
    first, second, other = (build_network(tiny_config(), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_norms_biases_and_embeddings_do_not_decay() -> None:
    network = build_network(tiny_config(architecture="gpt2"), seed=1)
    decayed, plain = parameter_groups(network, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    assert {names[id(p)].split(".")[-2] for p in decayed["params"]} == {"c_attn", "c_proj", "c_fc"}
    assert all(names[id(p)].endswith("weight") for p in decayed["params"])
    assert {"transformer.wte.weight", "transformer.wpe.weight"} <= {names[id(p)] for p in plain["params"]}
    assert plain["weight_decay"] == 0
    assert len(decayed["params"]) + len(plain["params"]) == len(names)


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_network_loads_with_the_same_weights_and_the_same_bytes(tied: bool, tmp_path: Path) -> None:
    network = build_network(tiny_config(tie_embeddings=tied), seed=1)
    weights = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for name in ("a", "b"):
        save_network(network.config, weights, tmp_path / name)
    assert file_digest(tmp_path / "a" / "model.safetensors") == file_digest(
        tmp_path / "b" / "model.safetensors"
    )
    loaded = load_network(tmp_path / "a")
    assert all(torch.equal(parameter, weights[name]) for name, parameter in loaded.named_parameters())
    assert (loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight) == tied


def test_a_folder_that_lacks_weights_is_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    network = build_network(tiny_config(), seed=1)
    save_network(network.config, dict(network.named_parameters()), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        InputError, match=r"lacks the weights of 1 tensors \(model\.layers\.1\.mlp\.up_proj\.weight\)"
    ):
        load_network(tmp_path)


def test_a_network_that_looks_both_ways_is_refused() -> None:
    seeing = build_network(tiny_config(architecture="bert"), 1)
    with pytest.raises(ParamsError, match="sees the tokens that it has to predict"):
        check_causal(seeing)
    for architecture in ("llama", "gpt2", "qwen3", "opt"):
        network = build_network(tiny_config(architecture=architecture, dropout=0.1), 1).train()
        check_causal(network)
        assert network.training
