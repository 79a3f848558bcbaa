"""The training loop: batches in a fixed order, losses by token, looks at the validation side, checkpoints.

Everything that a step depends on is the engine's state and the step's number: the sequences (tasks.model.order),
the learning rate (tasks.model.schedule) and the seed of dropout are functions of it. So a run that is killed and
resumed does the same arithmetic as one that was not. Dropout alone depends on ranks and micro batches, which then
belong to the training's identity (tasks.model.fingerprint).
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
import torch.nn.functional as functional

from tasks.kit.errors import StageError
from tasks.kit.files import json_digest
from tasks.model import checkpoints
from tasks.model.blocks import Blocks
from tasks.model.engine import gather_weights, save_engine, update
from tasks.model.history import HistoryWriter
from tasks.model.launch import Attempt
from tasks.model.network import save_network
from tasks.model.order import sequences_at
from tasks.model.schedule import learning_rate

_NUM_NAMED_BLOCKS = 32  # of a batch that went wrong


@dataclasses.dataclass
class RunState:
    """What a run knows after a step, beside the engine's state; kept in each checkpoint."""

    step: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    best_step: int | None = None
    """Step whose weights are kept as the best; only with `patience`."""
    looks_without_better: int = 0
    stopped_early: bool = False
    peak_memory_bytes: int = 0


@dataclasses.dataclass
class Pace:
    """Seconds and tokens of this attempt's steps, without looks at the validation side and saving."""

    seconds: float = 0.0
    tokens: int = 0


class Loop:
    """Trains until the last step, an early stop, or a signal.

    Args:
        engine: the DeepSpeed engine, loaded from the checkpoint if there is one.
        state: what the run knew then.
        stopping: whether this process was asked to end; one rank that was is enough.
        memory: bytes that this rank holds at most.
    """

    def __init__(
        self,
        engine: Any,
        attempt: Attempt,
        state: RunState,
        stopping: Callable[[], bool],
        memory: Callable[[], int],
        shape: dict[str, Any],
    ) -> None:
        self.engine, self.attempt, self.state = engine, attempt, state
        self.stopping, self.memory, self.shape = stopping, memory, shape
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.train_blocks = Blocks.open(attempt.split, "train")
        self.validation_blocks = Blocks.open(attempt.split, "validation")
        self.pace = Pace()

    def run(self) -> bool:
        """Train. Returns False when a signal ended it before its time (a checkpoint is there)."""
        attempt, state = self.attempt, self.state
        history = HistoryWriter(attempt.folder / "history.jsonl", state.step) if self.rank == 0 else None
        self.engine.train()
        while state.step < attempt.total_steps and not state.stopped_early:
            began = time.perf_counter()
            rate = learning_rate(state.step, attempt.total_steps, attempt.train)
            sequences = self.batch(state.step)
            nats = self.forward_backward(sequences)
            norm = update(self.engine, attempt, rate)
            loss, stop, memory = self.agree(nats)
            self.check_finite(loss, norm, sequences)
            state.step += 1
            state.last_loss = loss
            state.peak_memory_bytes = max(state.peak_memory_bytes, memory)
            if state.first_loss is None:
                state.first_loss = loss
                self.check_loaded(loss)
            seconds = time.perf_counter() - began
            tokens = sequences.size * self.train_blocks.block_size
            self.pace.seconds += seconds
            self.pace.tokens += tokens

            last = state.step == attempt.total_steps
            looked = last or state.step % attempt.train.evaluate_every == 0
            if looked:
                self.look()
            if history:
                history.append(
                    {
                        "step": state.step,
                        "tokens": state.step * tokens,
                        "train_loss": loss,
                        "validation_loss": state.validation_loss if looked else None,
                        "learning_rate": rate,
                        "gradient_norm": norm if math.isfinite(norm) else None,  # fp16 skipped the step
                        "tokens_per_second": tokens / seconds,
                        "memory_bytes": memory,
                    }
                )
            if last or stop or state.stopped_early or state.step % attempt.runtime.checkpoint_every == 0:
                if history:
                    history.sync()
                self.save()
            if stop and not (last or state.stopped_early):
                return False
        return True

    def batch(self, step: int) -> np.ndarray:
        """Numbers of the blocks of a step, (accumulation, ranks, micro batch), the same on every rank."""
        size = self.attempt.train.global_batch_size
        positions = np.arange(step * size, (step + 1) * size)
        order = sequences_at(positions, len(self.train_blocks), self.attempt.train.seed)
        return order.reshape(self.attempt.accumulation, self.world, self.attempt.runtime.micro_batch_size)

    def forward_backward(self, sequences: np.ndarray) -> torch.Tensor:
        """Add up the gradients of this rank's share of a step. Returns its nats, summed over tokens.

        Each micro batch counts by its tokens over those of the whole step: a mean of means would be wrong as
        soon as counts differ. DeepSpeed divides by accumulation and ranks, so the factor takes that back.
        """
        accumulation = self.attempt.accumulation
        step_targets = sequences.size * (self.train_blocks.block_size - 1)
        total = torch.zeros((), dtype=torch.float64, device=self.engine.device)
        for micro in range(accumulation):
            ids = torch.from_numpy(self.train_blocks.gather(sequences[micro, self.rank]))
            # One stream a micro batch: dropout needs no saved state to be the same after a kill.
            torch.manual_seed(
                int(json_digest([self.attempt.train.seed, self.state.step, micro, self.rank])[:15], 16)
            )
            nats, _ = next_token_nats(self.engine, ids.to(self.engine.device))
            self.engine.backward(nats * (accumulation * self.world / step_targets))
            if micro < accumulation - 1:
                self.engine.step()  # counts the micro batch; the optimizer waits for the last one
            total += nats.detach()
        return total / step_targets

    def agree(self, loss: torch.Tensor) -> tuple[float, bool, int]:
        """Sum over ranks in one message: the loss, whether anyone was told to stop, memory in use."""
        told = torch.tensor([0.0, float(self.stopping()), float(self.memory())], dtype=torch.float64)
        message = told.to(loss.device)
        message[0] = loss
        if self.world > 1:
            distributed.all_reduce(message)
        total, stop, memory = message.tolist()
        return total, stop > 0, int(memory)

    def check_finite(self, loss: float, norm: float, sequences: np.ndarray) -> None:
        """Stop on a loss or gradient that is no number; on every rank in the same step, since both are sums."""
        skipped = self.attempt.precision == "fp16" and not self.engine.was_step_applied()
        if math.isfinite(loss) and (math.isfinite(norm) or skipped):
            return
        blocks = sequences.reshape(-1).tolist()
        names = ", ".join(map(str, blocks[:_NUM_NAMED_BLOCKS]))
        more = f" and {len(blocks) - _NUM_NAMED_BLOCKS} more" if len(blocks) > _NUM_NAMED_BLOCKS else ""
        raise StageError(
            f"step {self.state.step + 1}: the loss is {loss} and the gradient norm {norm}, so the weights are lost. "
            f"Blocks of the train side in this step: {names}{more}. Nothing was written to data/train; lower "
            "train.learning_rate or raise train.warmup_steps, or look at these blocks"
        )

    def check_loaded(self, loss: float) -> None:
        """A pretrained network that guesses no better than evenly was not loaded, or reads other tokens."""
        even = math.log(self.shape["vocabulary_size"])
        if self.attempt.base_model and loss > even - 0.25:
            raise StageError(
                f"the first step's loss is {loss:.2f} nats, and guessing evenly gives {even:.2f}: the weights of "
                f"{self.attempt.base_model} do not fit these tokens (another tokenizer?) or were not loaded"
            )

    def look(self) -> None:
        """Measure the validation loss over all its blocks; with `patience`, keep the best weights or stop."""
        state, patience = self.state, self.attempt.train.patience
        if not len(self.validation_blocks):
            return
        state.validation_loss = loss = self.validation_loss()
        if state.best_validation_loss is None or loss < state.best_validation_loss:
            state.best_validation_loss = loss
            state.looks_without_better = 0
            if patience:
                state.best_step = state.step
                self.export(checkpoints.best_folder(self.attempt.folder, state.step), {})
        else:
            state.looks_without_better += 1
            state.stopped_early = patience is not None and state.looks_without_better >= patience

    def validation_loss(self) -> float:
        """Nats a token over the whole validation side, shared out over the ranks."""
        blocks, size = self.validation_blocks, self.attempt.runtime.micro_batch_size
        mine = np.arange(self.rank, len(blocks), self.world)
        batches = math.ceil(
            math.ceil(len(blocks) / self.world) / size
        )  # as many on every rank: ZeRO-3 needs it
        sums = torch.zeros(2, dtype=torch.float64, device=self.engine.device)
        self.engine.eval()
        with torch.no_grad():
            for batch in range(batches):
                own = mine[batch * size : (batch + 1) * size]
                ids = torch.from_numpy(blocks.gather(own if len(own) else np.zeros(1, np.int64)))
                nats, targets = next_token_nats(self.engine, ids.to(self.engine.device))
                if len(own):
                    sums += torch.stack([nats.double(), torch.tensor(float(targets)).to(sums)])
        self.engine.train()
        if self.world > 1:
            distributed.all_reduce(sums)
        nats_sum, targets_sum = sums.tolist()
        if not math.isfinite(nats_sum):
            raise StageError(
                f"step {self.state.step}: the validation loss is {nats_sum}; lower train.learning_rate"
            )
        return float(nats_sum / targets_sum)

    def save(self) -> None:
        """Write a checkpoint of this step; older ones go only when it is whole."""
        folder = checkpoints.step_folder(self.attempt.folder, self.state.step)
        temporary = folder.with_name(f"{folder.name}.tmp")
        if self.rank == 0:
            checkpoints.begin(folder)
        distributed.barrier()
        save_engine(self.engine, temporary)
        if self.rank == 0:
            checkpoints.commit(folder, dataclasses.asdict(self.state) | self.shape)
            checkpoints.prune(self.attempt.folder, self.attempt.runtime.keep_checkpoints)
        distributed.barrier()

    def export(self, folder: Any, state: dict[str, Any]) -> None:
        """Write the weights as they are now as a Hugging Face folder, sealed like a checkpoint."""
        weights = gather_weights(self.engine)
        if self.rank == 0:
            temporary = checkpoints.begin(folder)
            module = self.engine.module
            save_network(module.config, weights, temporary / "model", module.generation_config)
            checkpoints.commit(folder, state)
        distributed.barrier()


def next_token_nats(network: Any, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Cross-entropy of each next token, summed in fp32, and how many there are: (n, length) gives n * (length - 1)."""
    logits = network(input_ids=ids, use_cache=False).logits
    targets = ids[:, 1:].reshape(-1)
    # One wide copy of the logits is the largest tensor of a small model: shift the targets, not the logits.
    shifted = functional.pad(ids[:, 1:], (0, 1), value=-100).reshape(-1)
    nats = functional.cross_entropy(
        logits.float().reshape(shifted.numel(), -1), shifted, ignore_index=-100, reduction="sum"
    )
    return nats, targets.numel()
