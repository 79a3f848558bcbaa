"""Ports of the loopback that nobody uses now; whoever takes one may still lose it to another, and then asks again."""

import contextlib
import os
import socket
from collections.abc import Sequence

_TWIN = 10_000  # SeaweedFS opens each port p and p + 10000 (gRPC)


def free_port() -> int:
    """A free port that the kernel chooses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def free_ports_with_twins(names: Sequence[str], attempt: int = 0) -> dict[str, int]:
    """Consecutive free ports, one a name, each with its twin 10,000 above; `attempt` moves on to others.

    Raises:
        OSError: there are none.
    """
    for base in range(20_000 + (os.getpid() * 10 + attempt * 1000) % 8000, 29_000, 10):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + len(names)):
                    for number in (port, port + _TWIN):
                        stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            return dict(zip(names, range(base, base + len(names)), strict=True))
    raise OSError(
        f"no {len(names)} free loopback ports between 20000 and 29000 (each with its twin 10000 above)"
    )
