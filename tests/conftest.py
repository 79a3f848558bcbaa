"""What all tests share: real inputs of other hands, and telemetry off."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.kit.processes import let_idle_threads_sleep, switch_telemetry_off

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

switch_telemetry_off()
let_idle_threads_sleep()


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """Path of a file or folder of the shared real inputs; skips, naming the path, where it is absent."""

    def find(name: str) -> Path:
        path = SHARED_DATA / name
        if not path.exists():
            pytest.skip(f"real input {path} is not here")
        return path

    return find
