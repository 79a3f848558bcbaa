"""Where a corpus lies, S3 or a folder: listing its objects and reading one of them whole, or not at all."""

import contextlib
import functools
import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from tasks.kit.errors import EnvironmentProblem, InputError, ParamsError
from tasks.kit.files import file_digest
from tasks.kit.object_store import ObjectStore, StoreAddress, connect, explain_errors

logger = logging.getLogger("train_llm")

_ATTEMPTS = 5
_SPOOL_BYTES = 16 << 20


@dataclass(frozen=True)
class ObjectEntry:
    """One object as the snapshot saw it. `etag` is S3's (no MD5 of a multipart upload) or a file's xxh3 digest."""

    key: str
    size: int
    etag: str
    version_id: str | None = None


@dataclass(frozen=True)
class Source:
    """A bucket with a prefix, or a folder (then `bucket` is None and `prefix` its path)."""

    bucket: str | None
    prefix: str

    @property
    def url(self) -> str:
        """As it stands in params.yaml."""
        return f"s3://{self.bucket}/{self.prefix}" if self.bucket else self.prefix

    def name(self, key: str) -> str:
        """A whole key for messages: `s3://bucket/key`, or the path of a file."""
        return f"s3://{self.bucket}/{key}" if self.bucket else str(Path(self.prefix, key))

    def relative(self, key: str) -> str:
        """`key` below the source."""
        if self.bucket is None:
            return key
        folder = self.prefix.rstrip("/") + "/" if self.prefix else ""
        return key.removeprefix(folder) if key.startswith(folder) else key.rpartition("/")[2]


def parse_source(text: str) -> Source:
    """Understand `snapshot.source`.

    Raises:
        ParamsError: neither an `s3://bucket/prefix` nor a path.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Source(None, text)
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ParamsError(f"snapshot.source {text!r}: expected s3://bucket/prefix/ or a local folder")
    return Source(bucket, prefix)


def list_folder(source: Source, root: Path) -> Iterator[ObjectEntry]:
    """Every file below a folder, with the digest of its bytes.

    Raises:
        InputError: there is no such folder.
    """
    folder = root / source.prefix
    if not folder.is_dir():
        raise InputError(
            f"snapshot.source {source.url!r} is no folder ({folder.resolve()}): correct it, or use an s3:// URL"
        )
    for path in folder.rglob("*"):
        if path.is_file():
            key = path.relative_to(folder).as_posix()
            if any("\ud800" <= character <= "\udfff" for character in key):
                raise InputError(f"{key!r} below {folder}: the file's name is not UTF-8; rename the file")
            yield ObjectEntry(key, path.stat().st_size, file_digest(path))


def list_bucket(source: Source, store: ObjectStore) -> Iterator[ObjectEntry]:
    """Every object below the prefix, all pages; folder placeholders (empty keys ending in `/`) are left out.

    Raises:
        EnvironmentProblem: the store is out of reach, or refuses.
    """
    with explain_errors(store, source.url):
        if _is_versioned(source, store.client):
            pages = store.client.get_paginator("list_object_versions").paginate(
                Bucket=source.bucket, Prefix=source.prefix
            )
            items = (item for page in pages for item in page.get("Versions", []) if item["IsLatest"])
        else:
            pages = store.client.get_paginator("list_objects_v2").paginate(
                Bucket=source.bucket, Prefix=source.prefix
            )
            items = (item for page in pages for item in page.get("Contents", []))
        folder = source.prefix.rstrip("/") + "/"
        for item in items:
            key = item["Key"]
            if key.endswith("/") and item["Size"] == 0:
                continue
            # The prefix `books` is also the beginning of `books2/`, which is another folder.
            if source.prefix and key != source.prefix and not key.startswith(folder):
                continue
            yield ObjectEntry(key, item["Size"], item["ETag"].strip('"'), item.get("VersionId"))


def _is_versioned(source: Source, client: Any) -> bool:
    from botocore.exceptions import ClientError

    try:
        return bool(client.get_bucket_versioning(Bucket=source.bucket).get("Status") == "Enabled")
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchBucket":
            raise
        return False  # no right to ask, or a server that does not know of versions


@contextlib.contextmanager
def open_object(
    source: Source, entry: ObjectEntry, root: Path, address: StoreAddress | None
) -> Iterator[BinaryIO]:
    """The bytes of one object, all there and of the version that the snapshot saw.

    Raises:
        InputError: the object was changed or removed since the snapshot.
        EnvironmentProblem: it could not be read whole after several attempts.
    """
    if source.bucket is None:
        with _open_file(source, entry, root) as file:
            yield file
        return
    assert address is not None
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
        _download(source, entry, _connected(address), spool)
        spool.seek(0)
        yield cast(BinaryIO, spool)


@functools.lru_cache(maxsize=4)
def _connected(address: StoreAddress) -> ObjectStore:
    """One client a process: making one takes 0.1 s."""
    return connect(address)


@contextlib.contextmanager
def _open_file(source: Source, entry: ObjectEntry, root: Path) -> Iterator[BinaryIO]:
    path = root / source.prefix / entry.key
    try:
        if path.stat().st_size != entry.size or file_digest(path) != entry.etag:
            raise _changed(source, entry)
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise _changed(source, entry) from None


def _changed(source: Source, entry: ObjectEntry) -> InputError:
    return InputError(
        f"{source.name(entry.key)} was changed or removed since the snapshot: run snapshot again (`dvc repro` does)"
    )


def _download(source: Source, entry: ObjectEntry, store: ObjectStore, target: IO[bytes]) -> None:
    """Fetch an object, going on where a broken connection ended."""
    from botocore.exceptions import BotoCoreError, ClientError

    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.2 * 2**attempt)
            logger.info("%s: %s; attempt %d", source.name(entry.key), problem, attempt + 1)
        try:
            with explain_errors(store, source.name(entry.key)):
                _fetch_rest(source, entry, store.client, target)
            if target.tell() == entry.size:
                return
            problem = f"got {target.tell():,} of {entry.size:,} bytes"
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _CHANGED_CODES:
                raise _changed(source, entry) from None
            problem = f"the server answered {code}"
        except (BotoCoreError, EnvironmentProblem, OSError) as error:
            problem = str(error)
    raise EnvironmentProblem(
        f"{source.name(entry.key)} could not be read whole in {_ATTEMPTS} attempts ({problem}): "
        f"check the connection to {store.endpoint} and run again; finished shards are kept"
    )


_CHANGED_CODES = ("PreconditionFailed", "412", "NoSuchKey", "NoSuchVersion", "404", "InvalidRange", "416")


def _fetch_rest(source: Source, entry: ObjectEntry, client: Any, target: IO[bytes]) -> None:
    begin = target.tell()
    if begin > entry.size:
        target.seek(0)
        target.truncate()
        begin = 0
    arguments: dict[str, Any] = {"Bucket": source.bucket, "Key": entry.key, "IfMatch": f'"{entry.etag}"'}
    if entry.version_id and entry.version_id != "null":
        arguments["VersionId"] = entry.version_id
    if begin:
        arguments["Range"] = f"bytes={begin}-"
    with contextlib.closing(client.get_object(**arguments)["Body"]) as body:
        while chunk := body.read(1 << 20):
            target.write(chunk)
