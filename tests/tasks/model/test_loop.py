"""The loop on one rank inside this process: losses and gradients go by token, however a batch is cut."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.kit.files import write_json
from tasks.kit.ports import free_port
from tasks.model.engine import build_engine, gather_weights, initialise_ranks, update
from tasks.model.launch import Attempt
from tasks.model.loop import Loop, RunState, next_token_nats
from tasks.model.network import build_network, config_of
from tasks.params.runtime import RuntimeParams
from tasks.params.train import ModelParams, TrainParams

MODEL = ModelParams(
    hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=4, intermediate_size=48, dropout=0.2
)
NO_DROPOUT = MODEL.model_copy(update={"dropout": 0.0})


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    settings = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    before = dict(os.environ)
    os.environ.update(
        settings | {"MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    )
    initialise_ranks("cpu")
    yield
    torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


def make_loop(
    root: Path, micro_batch_size: int, model: ModelParams = NO_DROPOUT, zero_stage: int = 0
) -> Loop:
    """A loop of batches of 8 over 20 blocks of 16 random tokens, 5 for validation."""
    ids = np.random.default_rng(5).integers(0, 60, (25, 16)).astype("<u2")
    sides: dict[str, Any] = {}
    for side, blocks in (("train", ids[:20]), ("validation", ids[20:]), ("test", ids[:0])):
        (root / side).mkdir(parents=True, exist_ok=True)
        blocks.tofile(root / side / "0.bin")
        sides[side] = {"shards": [{"name": "0", "documents": 1, "tokens": blocks.size}]}
    manifest = {
        "dtype": "uint16",
        "block_size": 16,
        "vocabulary_size": 60,
        "end_of_document_id": 0,
        "sides": sides,
    }
    write_json(root / "manifest.json", manifest | {"tokenizer_digest": ""})
    attempt = Attempt(
        train=TrainParams(model=model, global_batch_size=8, precision="fp32", max_gradient_norm=0.05),
        runtime=RuntimeParams(micro_batch_size=micro_batch_size, num_processes=1, zero_stage=zero_stage),
        folder=root,
        split=root,
        tokenizer=root,
        base_model=None,
        device="cpu",
        precision="fp32",
        total_steps=10,
        accumulation=8 // micro_batch_size,
        resume=None,
        stage_process=0,
        stage_created=0.0,
    )
    engine = build_engine(build_network(config_of(model, 60, 16, 0), seed=1), attempt)
    engine.train()
    return Loop(engine, attempt, RunState(), lambda: False, lambda: 0, {"vocabulary_size": 60})


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    network = build_network(config_of(NO_DROPOUT, 60, 16, 0), seed=1)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 60, (3, 16)))
    nats, tokens = next_token_nats(network, ids)
    assert tokens == 45
    assert nats.item() / tokens == pytest.approx(network(input_ids=ids, labels=ids).loss.item(), rel=1e-6)


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_accumulation_gives_the_loss_the_norm_and_the_weights_of_one_whole_batch(
    zero_stage: int, tmp_path: Path
) -> None:
    results = []
    for micro_batch_size in (8, 2):
        loop = make_loop(tmp_path, micro_batch_size, zero_stage=zero_stage)
        loss = float(loop.forward_backward(loop.batch(0)))
        norm = update(loop.engine, loop.attempt, 1e-2)
        results.append((loss, norm, gather_weights(loop.engine)))
    (loss, norm, weights), (other_loss, other_norm, other_weights) = results
    assert other_loss == pytest.approx(loss, rel=1e-6)
    assert other_norm == pytest.approx(norm, rel=1e-4)
    assert norm > 0.05  # so that clipping was at work
    for name, value in weights.items():
        torch.testing.assert_close(other_weights[name], value, atol=2e-5, rtol=1e-4)


def test_the_norm_and_the_step_are_those_of_plain_torch(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, 4)
    network = build_network(config_of(NO_DROPOUT, 60, 16, 0), seed=1)
    ids = torch.from_numpy(loop.train_blocks.gather(loop.batch(0).reshape(-1)))
    loss = network(input_ids=ids, labels=ids).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 0.05)
    expected = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer.step()

    assert float(loop.forward_backward(loop.batch(0))) == pytest.approx(loss.item(), rel=1e-6)
    assert update(loop.engine, loop.attempt, 1e-2) == pytest.approx(float(norm), rel=1e-5)
    after = gather_weights(loop.engine)
    for name, parameter in network.named_parameters():
        decay = 0.1 * 1e-2 if parameter.ndim >= 2 and "embed" not in name else 0.0
        torch.testing.assert_close(
            after[name], parameter.detach() - decay * expected[name], atol=3e-5, rtol=1e-4
        )


def test_validation_loss_is_by_token_whatever_the_batch(tmp_path: Path) -> None:
    losses = [make_loop(tmp_path, size, MODEL).validation_loss() for size in (1, 2, 8)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_dropout_of_a_step_needs_no_history(tmp_path: Path) -> None:
    first, second = make_loop(tmp_path, 4, MODEL), make_loop(tmp_path, 4, MODEL)
    for step in (0, 1, 3):
        first.state.step = step
        loss = float(first.forward_backward(first.batch(3)))
        update(first.engine, first.attempt, 0.0)  # a step that moves no weight
    second.state.step = 3
    assert float(second.forward_backward(second.batch(3))) == loss
    update(second.engine, second.attempt, 0.0)
    second.state.step = 4
    assert float(second.forward_backward(second.batch(3))) != loss


def test_batches_follow_one_global_order_for_any_number_of_ranks(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, 2)
    alone = [loop.batch(step) for step in range(5)]
    assert sorted(np.concatenate(alone).reshape(-1).tolist()) == sorted([*range(20), *range(20)])
    loop.world = 2
    loop.attempt = Attempt(**{**vars(loop.attempt), "accumulation": 2})
    for step in range(5):
        assert loop.batch(step).shape == (2, 2, 2)
        assert loop.batch(step).reshape(-1).tolist() == alone[step].reshape(-1).tolist()


def test_rotary_frequencies_keep_their_digits_in_bf16(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, 4)
    attempt = Attempt(**{**vars(loop.attempt), "precision": "bf16"})
    network = build_network(config_of(NO_DROPOUT, 60, 16, 0), seed=1)
    exact = network.model.rotary_emb.inv_freq.clone()
    engine = build_engine(network, attempt)
    assert engine.module.model.embed_tokens.weight.dtype == torch.bfloat16
    assert torch.equal(engine.module.model.rotary_emb.inv_freq, exact)
