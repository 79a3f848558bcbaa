"""Functions compiled by numba, kept on disk under the digest of everything they are made of."""

import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
import xxhash

_IMPORT = re.compile(r"^from (?:tasks\.text\.)?(\w+) import", re.M)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` at its first call; later processes load the machine code from disk.

    numba looks only at the time of the file that holds a cached function: one that calls into, or takes a constant
    from, another module is served stale after that module changed (met here: two kernels with two versions of one
    hash). So the cache of each state of these modules is a folder of its own.
    """
    folder = _cache_folder()
    if folder is None:  # a read-only install without a home: each process compiles anew
        return numba.njit(nogil=True)(function)
    configured = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)  # read at decoration
    try:
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = configured


def sources_digest(folder: Path) -> str:
    """Digest of the modules in `folder` that hold compiled functions, and of those in it that they import."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    waiting = [name for name, source in sources.items() if "@compiled" in source]
    wanted: set[str] = set()
    while waiting:
        if (name := waiting.pop()) not in wanted:
            wanted.add(name)
            waiting += [found for found in _IMPORT.findall(sources[name]) if found in sources]
    digest = xxhash.xxh3_64()
    for name in sorted(wanted):
        digest.update(f"{name}\0{sources[name]}\0".encode())
    return digest.hexdigest()


def first_writable(folders: Iterable[Path]) -> Path | None:
    """The first folder that exists or can be made, and written to."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


@functools.cache
def _cache_folder() -> Path | None:
    here = Path(__file__).parent
    bases = [Path(numba.config.CACHE_DIR)] if numba.config.CACHE_DIR else []
    bases.append(here / "__pycache__")
    bases.append(Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "train-llm")
    name = f"numba-{sources_digest(here)}"
    return first_writable(base / name for base in bases)
