"""Section `snapshot` of params.yaml."""

from tasks.params.base import Section


class SnapshotParams(Section):
    """Which objects belong to the corpus."""

    source: str = "s3://corpus/sample/"
    """Where the raw text lies: `s3://bucket/prefix/`, or a local folder."""
    include: tuple[str, ...] = ("*",)
    """Shell patterns of keys (relative to the source) to take; `*` also matches `/`."""
    exclude: tuple[str, ...] = ()
    """Shell patterns of keys to leave out; wins over `include`."""
