"""Great Expectations' pages made fit to keep: they open offline, call nobody, and hold no path of this machine.

As built, each page loads a dozen files from six hosts, and its logo is a tracking image that sends the project's id.
The list of results on the index page is drawn by such a script, so that page is written anew.
"""

import html
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_SCRIPT = re.compile(r"<script\b.*?</script>", re.S | re.I)
_REMOTE_TAG = re.compile(r"<(?:link|img)\b[^>]*(?:href|src)\s*=\s*[\"'](?:https?:)?//[^>]*>", re.S | re.I)
_ICON = re.compile(r"<link\b[^>]*favicon[^>]*>", re.I)
_NEWSLETTER = re.compile(r"<a\b[^>]*href=\"https?://[^>]*>(.*?)</a>", re.S | re.I)
_STYLE = """<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { border: 1px solid #ccc; padding: .3rem .6rem; vertical-align: top; }
.fa-check-circle::before { content: "\\2713"; color: #17823b; } .fa-times::before { content: "\\2717"; color: #b00020; }
</style>
"""


class Verdict(NamedTuple):
    """One suite on the index page."""

    suite: str
    success: bool
    met: int
    total: int


def make_offline(folder: Path, verdicts: Sequence[Verdict], machine_paths: Sequence[str]) -> None:
    """Rewrite all pages below `folder` and its index.html; drop the images that only the old index showed."""
    shutil.rmtree(folder / "static" / "images", ignore_errors=True)
    for page in sorted(folder.rglob("*.html")):
        page.write_text(offline_page(page.read_text(encoding="utf-8"), machine_paths), encoding="utf-8")
    (folder / "index.html").write_text(_index_page(folder, verdicts), encoding="utf-8")


def offline_page(page: str, machine_paths: Sequence[str]) -> str:
    """A page without scripts, files of other hosts, and the given paths."""
    for pattern in (_SCRIPT, _REMOTE_TAG, _ICON):
        page = pattern.sub("", page)
    page = _NEWSLETTER.sub(r"\1", page)
    for path in sorted(machine_paths, key=len, reverse=True):
        page = page.replace(path, "")
    return page.replace("</head>", f"{_STYLE}</head>", 1)


def _index_page(folder: Path, verdicts: Sequence[Verdict]) -> str:
    rows = []
    for verdict in verdicts:
        results = sorted((folder / "validations" / verdict.suite).rglob("*.html"))
        links = [(f"expectations/{verdict.suite}.html", "suite")]
        links += [(page.relative_to(folder).as_posix(), "results") for page in results]
        cells = (
            html.escape(verdict.suite),
            "passed" if verdict.success else "<strong>failed</strong>",
            f"{verdict.met} of {verdict.total}",
            " ".join(f'<a href="{html.escape(link)}">{text}</a>' for link, text in links),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Data Docs</title>\n'
        f"{_STYLE}</head><body><h1>Data Docs</h1>\n"
        "<table><tr><th>Suite</th><th>Verdict</th><th>Expectations met</th><th>Pages</th></tr>\n"
        + "\n".join(rows)
        + "\n</table></body></html>\n"
    )
