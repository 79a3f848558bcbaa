"""Folders that are whole or not there: written beside, synced, sealed with a manifest, then renamed.

DeepSpeed writes shards straight to their final names and `latest` by plain open, so a kill in a save leaves a
checkpoint that looks finished. Here only the manifest, written last, makes a folder count.
"""

import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.kit.files import empty_folder, file_digest, read_json, write_json

logger = logging.getLogger("train_llm")

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its folder, the step after which it was taken, and what the run knew then."""

    path: Path
    step: int
    state: dict[str, Any]


def begin(folder: Path) -> Path:
    """An empty folder beside `folder` to write into; `commit` gives it its name."""
    return empty_folder(folder.with_name(f"{folder.name}.tmp"))


def commit(folder: Path, state: dict[str, Any]) -> None:
    """Seal what was written into `begin(folder)`: every file synced, the manifest last, then the rename."""
    temporary = folder.with_name(f"{folder.name}.tmp")
    files = {}
    for path in _files(temporary):
        _sync(path)
        files[path.relative_to(temporary).as_posix()] = {
            "bytes": path.stat().st_size,
            "digest": file_digest(path),
        }
    write_json(temporary / _MANIFEST, {"state": state, "files": files})
    for directory in [p for p in temporary.rglob("*") if p.is_dir()] + [temporary]:
        _sync(directory)
    if folder.exists():  # of the same step, from before a damaged one was passed over
        shutil.rmtree(folder)
    temporary.rename(folder)
    _sync(folder.parent)


def problem_of(folder: Path) -> str | None:
    """Why a folder may not be used, in words; None when each file has the size and digest of its manifest."""
    try:
        files = read_json(folder / _MANIFEST)["files"]
    except FileNotFoundError:
        return f"{_MANIFEST} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{_MANIFEST} is damaged"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size:,} bytes in place of {expected['bytes']:,}"
        if file_digest(path) != expected["digest"]:
            return f"{name} does not have the bytes that were written"
    return None


def state_of(folder: Path) -> dict[str, Any]:
    """The state that was sealed with a whole folder."""
    state: dict[str, Any] = read_json(folder / _MANIFEST)["state"]
    return state


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step-{step:08d}"


def best_folder(root: Path, step: int) -> Path:
    """Where the weights of the best validation loss, seen at `step`, lie."""
    return root / f"best-{step:08d}"


def newest_whole(root: Path) -> Checkpoint | None:
    """The newest checkpoint that can be used; a partial or damaged one is named in the log, then removed.

    Only for a moment in which nobody writes: what a killed run left half done is cleared away.
    """
    for leftover in root.glob("*.tmp"):
        logger.info("%s was not finished when the run before stopped: removed", leftover)
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    for step, folder in sorted(_numbered(root, "step"), reverse=True):
        problem = problem_of(folder)
        state = {} if problem else state_of(folder)
        best = state.get("best_step")
        if not problem and best is not None and (damage := problem_of(best_folder(root, best))):
            problem = f"its best weights, {best_folder(root, best).name}, cannot be used: {damage}"
        if not problem:
            return Checkpoint(folder, step, state)
        logger.warning("checkpoint %s cannot be used (%s): the one before it is", folder, problem)
        shutil.rmtree(folder)
    return None


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and best weights that no kept one needs."""
    steps = sorted(_numbered(root, "step"), reverse=True)
    for _, folder in steps[keep:]:
        shutil.rmtree(folder)
    needed = {state_of(folder).get("best_step") for _, folder in steps[:keep]}
    for step, folder in _numbered(root, "best"):
        if step not in needed:
            shutil.rmtree(folder)


def clear_finished(root: Path) -> None:
    """Remove the checkpoints of a finished training: its `final` is all that a repeated run delivers from."""
    folders = [folder for kind in ("step", "best") for _, folder in _numbered(root, kind)]
    if folders:
        logger.info("%s is finished: %d checkpoints in it removed", root, len(folders))
    for folder in folders:
        shutil.rmtree(folder)


def prune_trainings(folder: Path, current: str, keep: int = 3, max_days: float = 14.0) -> None:
    """Remove other trainings from `folder` than the one named `current`; the log names each.

    Kept are the newest `keep` finished ones, and unfinished ones that ran in the last `max_days` days: those may
    still be gone on with. What was removed is trained again when it is asked for.
    """
    others = sorted(
        (path for path in folder.iterdir() if path.is_dir() and path.name != current),
        key=_last_change,
        reverse=True,
    )
    finished = [path for path in others if (path / "final" / _MANIFEST).exists()]
    oldest = time.time() - max_days * 86_400
    stale = [path for path in others if path not in finished and _last_change(path) < oldest]
    for path, reason in [(path, f"{keep} newer ones are kept") for path in finished[keep:]] + [
        (path, f"unfinished, and not touched for {max_days:.0f} days") for path in stale
    ]:
        logger.info("training %s removed: %s", path, reason)
        shutil.rmtree(path)


def _last_change(training: Path) -> float:
    """When something in a training's folder was last written; of one that holds nothing, when it was made."""
    return max((path.stat().st_mtime for path in training.iterdir()), default=training.stat().st_mtime)


def _numbered(root: Path, kind: str) -> Iterator[tuple[int, Path]]:
    for path in root.glob(f"{kind}-*"):
        number = path.name.removeprefix(f"{kind}-")
        if number.isdigit() and path.is_dir():
            yield int(number), path


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
