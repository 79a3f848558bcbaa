"""A copy of the project in a folder of its own: what a user's clone is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tasks.kit.processes import TELEMETRY_OFF
from tasks.params.tree import override_params

ROOT = Path(__file__).resolve().parents[1]

# A cut-down run: the same stages and code, a corpus of 0.4 MB and a model of 0.1 M parameters.
SMALL = (
    "tokenize.vocabulary_size=512",
    "split.block_size=64",
    "validate.min_train_tokens=10000",
    "train.model.hidden_size=64",
    "train.model.num_layers=2",
    "train.model.num_heads=2",
    "train.model.num_kv_heads=2",
    "train.model.intermediate_size=128",
    "train.global_batch_size=8",
    "train.max_steps=16",
    "train.evaluate_every=8",
    "train.warmup_steps=2",
    "evaluate.prompt_tokens=24",
    "evaluate.continuation_tokens=24",
    "evaluate.num_continuations=4",
    "evaluate.num_samples=1",
    "evaluate.bootstrap_resamples=100",
    "quantize.max_blocks=32",
    "quantize.max_perplexity_increase=0.5",
    "register.min_improvement_over_untrained=0.01",
    "register.resamples=200",
    "runtime.checkpoint_every=4",
)


def environment(**more: str) -> dict[str, str]:
    """The environment of a command: this interpreter's commands first on PATH, telemetry off, a small corpus."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "PREFECT_", "MLFLOW_"))
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return {**kept, **TELEMETRY_OFF, "PATH": path, "TRAIN_LLM_SAMPLE_BYTES": "400000", "CI": "1", **more}


def make_workspace(folder: Path, cache: Path, overrides: tuple[str, ...] = SMALL) -> Path:
    """Copy every file that git would track into `folder`, as a repository of its own over a shared DVC cache."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in listed.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file() and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    override_params(folder / "params.yaml", overrides)
    (folder / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {cache}\n")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-qm", "A clone"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder


def run(
    workspace: Path, *command: str, timeout: float = 900, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in the workspace; the output of both streams is in `stdout`."""
    return subprocess.run(
        command,
        cwd=workspace,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
