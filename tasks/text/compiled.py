"""Functions compiled by numba, kept on disk where that is possible."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` at its first call; later processes load the machine code from disk.

    numba keeps it in NUMBA_CACHE_DIR, beside the source or in the user's cache folder, and raises at decoration
    where none of them can be written (a read-only install without a home): there each process compiles anew.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
