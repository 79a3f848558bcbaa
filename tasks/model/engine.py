"""The DeepSpeed engine around a network: made without compiling anything, saved, loaded, and gathered whole."""

import math
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as distributed
from deepspeed.utils import safe_get_full_fp32_param

from tasks.kit.errors import StageError
from tasks.model.launch import Attempt
from tasks.model.network import parameter_groups

_TAG = "engine"


def initialise_ranks(device: str) -> torch.device:
    """Join the process group. Returns the device of this rank."""
    if device == "cpu":
        # The shared-memory operator would be compiled here (27 s), and without g++ the start crashes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        return torch.device("cpu")
    deepspeed.init_distributed(dist_backend="nccl", verbose=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device("cuda", torch.cuda.current_device())


def build_engine(network: Any, attempt: Attempt) -> Any:
    """The engine that trains `network`: AdamW of torch, fused, in DeepSpeed's ZeRO stage and precision."""
    train = attempt.train
    optimizer = torch.optim.AdamW(
        parameter_groups(network, train.weight_decay),
        lr=train.learning_rate,
        betas=(train.beta1, train.beta2),
        fused=not attempt.runtime.offload_optimizer or attempt.device == "cpu",
    )
    exact = {name: buffer.clone() for name, buffer in network.named_buffers() if buffer.is_floating_point()}
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=engine_config(attempt))
    # DeepSpeed casts buffers too: rotary frequencies rounded to bf16 are off by a whole turn at position 2,000.
    for name, value in exact.items():
        owner, _, leaf = name.rpartition(".")
        setattr(engine.module.get_submodule(owner), leaf, value.to(engine.device))
    return engine


def engine_config(attempt: Attempt) -> dict[str, Any]:
    """DeepSpeed's configuration. Clipping is ours where DeepSpeed would not tell the norm (plain fp32)."""
    zero: dict[str, Any] = {"stage": attempt.runtime.zero_stage}
    if attempt.runtime.offload_optimizer and attempt.device != "cpu":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_batch_size": attempt.train.global_batch_size,
        "train_micro_batch_size_per_gpu": attempt.runtime.micro_batch_size,
        "gradient_clipping": 0.0 if clips_itself(attempt) else attempt.train.max_gradient_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**12,
    }
    if attempt.precision != "fp32":
        config[attempt.precision] = {"enabled": True}
    return config


def clips_itself(attempt: Attempt) -> bool:
    """Whether the loop must clip: DeepSpeed clips plain fp32 too, but throws the norm away."""
    return attempt.precision == "fp32" and attempt.runtime.zero_stage == 0


def update(engine: Any, attempt: Attempt, learning_rate: float) -> float:
    """Clip and take the optimizer's step at the end of an accumulation. Returns the gradient norm before clipping."""
    norm: Any = None
    if clips_itself(attempt):
        norm = torch.nn.utils.clip_grad_norm_(engine.module.parameters(), attempt.train.max_gradient_norm)
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    engine.step()
    if norm is None:
        norm = engine.get_global_grad_norm()
    return math.inf if norm is None else float(norm)


def save_engine(engine: Any, folder: Path) -> None:
    """Every rank writes its part into `folder`; whoever seals it waits for all (a barrier ends the call)."""
    engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)
    distributed.barrier()


def load_engine(engine: Any, folder: Path) -> None:
    """Every rank reads its part.

    Raises:
        StageError: DeepSpeed found nothing to load (it says so by returning None).
    """
    path, _ = engine.load_checkpoint(str(folder), tag=_TAG)
    if path is None:
        raise StageError(f"DeepSpeed found no checkpoint in {folder}: remove that folder and run again")


def gather_weights(engine: Any) -> dict[str, torch.Tensor]:
    """All weights in fp32 (the masters, where the network computes in less) on rank 0; other ranks get none.

    Every rank must call it.
    """
    keep = distributed.get_rank() == 0
    weights = {}
    for name, parameter in engine.module.named_parameters():
        whole = safe_get_full_fp32_param(parameter)
        if whole is None:  # fp32 without partitions
            whole = parameter.detach()
        if keep:
            weights[name] = (
                whole.detach()
                .to("cpu", torch.float32)
                .reshape(getattr(parameter, "ds_shape", parameter.shape))
                .clone()
            )
    return weights
