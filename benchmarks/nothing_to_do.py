"""What a second run costs when nothing changed: `train-llm run` and `dvc repro`, against DVC on empty commands.

Runs in the project's own workspace, which must be up to date (`make demo`). The bare workspace is a copy of
dvc.yaml, dvc.lock and all outputs and inputs whose listing stage does nothing: what DVC itself costs here.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5


def main() -> None:
    """Print the median seconds of each, and the ratios; the commands take turns, so that noise hits all alike."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        bare = _bare_workspace(Path(folder) / "bare", environment)
        commands = {
            "dvc repro, listing empty": (bare, ["dvc", "repro"]),
            "dvc repro": (ROOT, ["dvc", "repro"]),
            "train-llm run": (ROOT, ["train-llm", "run"]),
            "train-llm --help": (ROOT, ["train-llm", "--help"]),
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for round_number in range(ROUNDS + 1):
            for name, (workspace, command) in commands.items():
                began = time.perf_counter()
                subprocess.run(command, cwd=workspace, env=environment, check=True, stdout=subprocess.DEVNULL)
                if round_number:  # the first warms the disk
                    seconds[name].append(time.perf_counter() - began)
    base = statistics.median(seconds["dvc repro, listing empty"])
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"{name:<26} {median:6.2f} s  (of {min(values):.2f} to {max(values):.2f})  {median / base:5.2f} x"
        )


def _bare_workspace(folder: Path, environment: dict[str, str]) -> Path:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    shutil.copytree(ROOT / "data", folder / "data", dirs_exist_ok=True)
    shutil.copy2(ROOT / "dvc.lock", folder / "dvc.lock")
    (folder / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {ROOT / '.dvc' / 'cache'}\n")
    declared = (folder / "dvc.yaml").read_text()
    # DVC deletes outputs before a command, so the empty one puts them back from copies.
    shutil.copytree(folder / "data/snapshot", folder / ".listing")
    shutil.copy2(folder / "data/metrics/snapshot.json", folder / ".figures")
    empty = "mkdir -p data/snapshot && cp .listing/* data/snapshot && cp .figures data/metrics/snapshot.json"
    (folder / "dvc.yaml").write_text(declared.replace("exec python -m tasks snapshot", empty))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["dvc", "repro"], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


if __name__ == "__main__":
    main()
