"""Which arithmetic a training uses on the device that is there."""

from typing import Literal

from tasks.kit.errors import ParamsError
from tasks.kit.hardware import Hardware


def resolve_precision(asked: Literal["auto", "fp32", "bf16", "fp16"], hardware: Hardware) -> str:
    """fp32, bf16 or fp16. `auto` is bf16 only in hardware: emulated it is 3 to 22 times slower than fp32.

    Raises:
        ParamsError: fp16 on a CPU, which DeepSpeed does not train.
    """
    if asked == "fp16" and hardware.device == "cpu":
        raise ParamsError(
            "train.precision is fp16, which needs a GPU, and this machine trains on its CPU: "
            f"set it to {'bf16 or ' if hardware.has_bf16 else ''}fp32, or to auto"
        )
    if asked == "auto":
        return "bf16" if hardware.has_bf16 else "fp32"
    return asked
