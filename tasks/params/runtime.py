"""Section `runtime` of params.yaml: where and how fast, never what. Nothing here enters a key."""

from typing import Literal

from pydantic import Field

from tasks.params.base import Section


class RuntimeParams(Section):
    """Machines, processes and places."""

    object_store: str = "embedded"
    """`embedded`: a SeaweedFS server of our own over `.state/s3`; `aws`; or the URL of an S3 endpoint."""
    num_workers: int = Field(default=0, ge=0)
    """Processes of the data stages; 0: one a core; 1: in the stage's own process."""
    dask_address: str | None = None
    """Scheduler of a Dask cluster (`tcp://host:8786`) that runs the shards in place of local processes."""
    num_processes: int = Field(default=2, gt=0)
    """Ranks of the training."""
    micro_batch_size: int = Field(default=2, gt=0)
    """Sequences a rank holds at once; accumulation follows from `train.global_batch_size`."""
    zero_stage: int = Field(default=1, ge=0, le=3)
    """ZeRO stage of DeepSpeed."""
    offload_optimizer: bool = False
    """Keep optimizer states in the host's memory (GPU only)."""
    launcher: Literal["torchrun", "deepspeed"] = "torchrun"
    """What starts the ranks."""
    checkpoint_every: int = Field(default=200, gt=0)
    """Steps between two checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """Whole checkpoints that are kept."""
    evaluation_batch_size: int = Field(default=16, gt=0)
    """Blocks scored at once by evaluate, quantize and register."""
