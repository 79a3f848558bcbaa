"""Records as rows of documents: which field is the text, which the group, and what else is kept of a record."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from tasks.params.ingest import IngestParams
from tasks.text.records import Record, RecordFault, document_id, excerpt

_MAX_META_CHARACTERS = 500


class DocumentRow(NamedTuple):
    """One document, in the order of `DOCUMENT_SCHEMA`; a missing or empty text is None."""

    id: str
    text: str | None
    source: str
    group: str | None
    meta: str


class RowMaker:
    """Makes the rows of one object."""

    def __init__(self, key: str, source: str, format_name: str, params: IngestParams) -> None:
        self._key = key
        self._source = source
        self._format_name = format_name
        self._params = params

    def row(self, record: Record) -> DocumentRow | RecordFault:
        """The row of `record`, or why it has none."""
        params, fields = self._params, record.fields
        line = record.line or record.number
        text_field = next((name for name in params.text_fields if name in fields), None)
        if text_field is None:
            return RecordFault(line, "no_text_field", excerpt(f"fields: {', '.join(map(str, fields))}"))
        text = fields[text_field]
        if text is not None and not isinstance(text, str):
            return RecordFault(line, "text_not_a_string", excerpt(f"{text_field}: {text!r}"))
        if text and len(text.encode()) > params.max_document_bytes:
            return RecordFault(line, "line_too_long", excerpt(text))
        return DocumentRow(
            document_id(self._key, record.number),
            text or None,
            self._source,
            _group_of(fields, params.group_field),
            self._meta(record, text_field),
        )

    def _meta(self, record: Record, text_field: str) -> str:
        others = {
            str(name): value if isinstance(value, str | int | float | bool) else str(value)
            for name, value in record.fields.items()
            if name not in (text_field, self._params.group_field) and _is_short_scalar(value)
        }
        meta = {
            "object": self._key,
            "record": record.number,
            "line": record.line,
            "format": self._format_name,
            "fields": others,
        }
        return orjson.dumps(meta, option=orjson.OPT_SORT_KEYS).decode()


def _is_short_scalar(value: Any) -> bool:
    return (
        value is not None
        and not isinstance(value, list | dict | bytes)
        and len(str(value)) <= _MAX_META_CHARACTERS
    )


def _group_of(fields: Mapping[str, Any], group_field: str | None) -> str | None:
    value = fields.get(group_field) if group_field else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None
