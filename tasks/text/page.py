"""What a page is made of, told once and written twice: as HTML for reading and as Markdown for pull requests.

Both come from the same blocks, so they cannot tell different numbers. `Text` cells are our own words; `Code` is
anything that a stranger could have written (sources, keys, texts), and is never read as markup.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from tasks.text.charts import Bars, Chart
from tasks.text.numerals import NOT_MEASURED
from tasks.text.quoting import excerpt, markdown_block, markdown_code, markdown_text, one_line

Mark = Literal["", "good", "bad", "warn"]


@dataclass(frozen=True)
class Text:
    """Our own words or numbers; `mark` colours a verdict, whose word says the same."""

    text: str
    mark: Mark = ""

    @property
    def missing(self) -> bool:
        return self.text == NOT_MEASURED

    @property
    def markdown(self) -> str:
        text = markdown_text(self.text)
        return f"**{text}**" if self.mark else f"*{text}*" if self.missing else text


@dataclass(frozen=True)
class Code:
    """A stranger's word, shown on one line, cut when long, with nothing in it read as markup."""

    raw: str
    limit: int = 80

    @property
    def text(self) -> str:
        return one_line(self.raw, self.limit)

    @property
    def markdown(self) -> str:
        return markdown_code(self.text)


@dataclass(frozen=True)
class Link:
    """A relative path to a file of the project."""

    text: str
    href: str

    @property
    def markdown(self) -> str:
        return f"[{markdown_text(self.text)}]({self.href})"


Cell = Text | Code | Link


@dataclass(frozen=True)
class Prose:
    """A sentence or two of ours, made of cells."""

    parts: tuple[Cell, ...]
    mark: Mark = ""
    kind: Literal["prose"] = "prose"

    @property
    def mark_word(self) -> str:
        return {"good": "Good", "bad": "Beware", "warn": "Look here", "": ""}[self.mark]


@dataclass(frozen=True)
class Table:
    """Rows under headers; the columns named in `numeric` are set right, and the first names its row."""

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[str] = frozenset()
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Excerpt:
    """A text of the corpus or of the model under a label."""

    label: tuple[Cell, ...]
    raw: str

    @property
    def text(self) -> str:
        return excerpt(self.raw)

    @property
    def markdown(self) -> str:
        return markdown_block(self.text)


@dataclass(frozen=True)
class Excerpts:
    """Texts to look at, folded away under a summary unless `open`."""

    summary: tuple[Cell, ...]
    entries: tuple[Excerpt, ...]
    open: bool = False
    kind: Literal["excerpts"] = "excerpts"

    @property
    def summary_html(self) -> str:
        """The summary for Markdown, where `<summary>` is HTML: escaped as such."""
        shown = (
            f"<code>{escape(c.text)}</code>" if isinstance(c, Code) else escape(c.text) for c in self.summary
        )
        return "".join(map(str, shown))


@dataclass(frozen=True)
class Figure:
    """A chart; Markdown has none, a table beside it tells its numbers."""

    chart: Chart | Bars
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True)
class Commands:
    """Lines for a shell."""

    lines: tuple[str, ...]
    kind: Literal["commands"] = "commands"

    @property
    def markdown(self) -> str:
        return "```sh\n" + "\n".join(self.lines) + "\n```"


Block = Prose | Table | Excerpts | Figure | Commands


@dataclass(frozen=True)
class Section:
    """A part of the page: `name` is its anchor."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """The whole page. `facts` are the few figures at the top: (label, value, remark)."""

    title: str
    headline: Prose
    facts: tuple[tuple[str, Cell, str], ...]
    sections: tuple[Section, ...]
    warnings: tuple[Prose, ...] = field(default=())


def prose(*parts: str | Cell, mark: Mark = "") -> Prose:
    """Words and cells as one paragraph."""
    return Prose(cells(*parts), mark)


def cells(*parts: str | Cell) -> tuple[Cell, ...]:
    """Words become cells."""
    return tuple(Text(part) if isinstance(part, str) else part for part in parts)


def word(text: str | None) -> Cell:
    """A stranger's word, or that there is none."""
    return Text(NOT_MEASURED) if text is None else Code(text)


def table(
    caption: str, headers: Sequence[str], rows: Sequence[Sequence[str | Cell]], numeric: Sequence[str] = ()
) -> Table:
    """A table whose plain words become cells."""
    return Table(caption, tuple(headers), tuple(cells(*row) for row in rows), frozenset(numeric))


def render_html(page: Page) -> str:
    """One page that needs nothing beside itself."""
    return _environment(autoescape=True).get_template("report.html.j2").render(page=page)


def render_markdown(page: Page) -> str:
    """The same blocks as GitHub-flavoured Markdown."""
    return _environment(autoescape=False).get_template("report.md.j2").render(page=page)


def _environment(autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("tasks.text"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown_text"] = markdown_text
    return environment
