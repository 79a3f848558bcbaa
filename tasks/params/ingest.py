"""Section `ingest` of params.yaml."""

from pydantic import Field

from tasks.params.base import Section


class IngestParams(Section):
    """How objects become documents."""

    text_fields: tuple[str, ...] = ("text", "content", "body")
    """Fields of a record that may hold its text; the first one present wins."""
    group_field: str | None = "group"
    """Field whose value keeps documents together in the split; none: every document is alone."""
    max_document_bytes: int = Field(default=16 * 2**20, gt=0)
    """A line, row or file larger than this is refused by object and line, never cut."""
    max_object_bytes: int = Field(default=8 * 2**30, gt=0)
    """An object that unpacks to more than this is refused (a decompression bomb)."""
    max_refused_share: float = Field(default=0.05, ge=0, le=1)
    """The stage stops when more than this share of the records, or of the objects, had to be refused."""
    objects_per_shard: int = Field(default=16, gt=0)
    """Mean number of objects whose documents share one Parquet shard."""
