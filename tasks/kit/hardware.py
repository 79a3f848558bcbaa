"""What the machine has, asked without importing torch (2.4 s): instructions of the CPU, CUDA devices, cores."""

import ctypes
import functools
import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path

_CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR of cuda.h


@dataclass(frozen=True)
class Hardware:
    """The device that tensors live on, how many of it there are, and whether it multiplies bf16 in hardware."""

    device: str
    count: int
    has_bf16: bool


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def find_hardware() -> Hardware:
    """CUDA devices where torch was built for them and the driver finds some, else the CPU."""
    majors = [] if importlib.metadata.version("torch").endswith("+cpu") else _cuda_majors()
    if majors:
        return Hardware("cuda", len(majors), min(majors) >= 8)  # bf16 came with Ampere, capability 8.0
    return Hardware("cpu", num_cores(), bool(_cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"}))


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.startswith(("flags", "Features"))
        for flag in line.split(":", 1)[1].split()
    }


def _cuda_majors() -> list[int]:
    """Major compute capability of each device that CUDA shows (CUDA_VISIBLE_DEVICES counts)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    majors = []
    for device in range(count.value):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), _CAPABILITY_MAJOR, device):
            return []
        majors.append(value.value)
    return majors
