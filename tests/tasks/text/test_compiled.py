"""Machine code is kept, and never served for another source."""

import os
import subprocess
import sys
from pathlib import Path

from tasks.text.compiled import first_writable, sources_digest

ROOT = Path(__file__).resolve().parents[3]
MODULES = {
    "compiled.py": (ROOT / "tasks/text/compiled.py").read_text(encoding="utf-8"),
    "inner.py": "from compiled import compiled\n\n@compiled\ndef inner(x):\n    return x + 1\n",
    "outer.py": (
        "from compiled import compiled\nfrom inner import inner\n\n@compiled\ndef outer(x):\n    return inner(x)\n"
    ),
}
CALL = "import outer; print(outer.outer(1), sum(outer.outer.stats.cache_hits.values()))"


def call(folder: Path) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder)}
    return subprocess.check_output(
        [sys.executable, "-c", CALL], cwd=folder, env=environment, text=True
    ).split()


def test_a_changed_callee_in_another_module_is_compiled_anew(tmp_path):
    for name, source in MODULES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    assert call(tmp_path) == ["2", "0"]
    assert call(tmp_path) == ["2", "1"]
    (tmp_path / "inner.py").write_text(MODULES["inner.py"].replace("+ 1", "+ 5"), encoding="utf-8")
    assert call(tmp_path) == ["6", "0"]


def test_the_digest_covers_what_compiled_functions_are_made_of(tmp_path):
    (tmp_path / "kernel.py").write_text("from tasks.text.constants import A\n\n@compiled\ndef f(): ...\n")
    (tmp_path / "constants.py").write_text("A = 1\n")
    (tmp_path / "unrelated.py").write_text("B = 1\n")
    before = sources_digest(tmp_path)
    (tmp_path / "unrelated.py").write_text("B = 2\n")
    assert sources_digest(tmp_path) == before
    (tmp_path / "constants.py").write_text("A = 2\n")
    assert sources_digest(tmp_path) != before


def test_a_folder_that_cannot_be_made_is_passed_over(tmp_path):
    (tmp_path / "file").write_text("")
    assert first_writable([tmp_path / "file" / "cache", tmp_path / "other"]) == tmp_path / "other"
    assert first_writable([tmp_path / "file" / "cache"]) is None
