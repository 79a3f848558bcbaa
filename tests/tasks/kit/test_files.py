"""Files: whole or not at all, and digests that do not depend on the listing's order."""

from pathlib import Path

import pytest

from tasks.kit.files import (
    atomic_path,
    folder_digest,
    json_digest,
    link_or_copy,
    write_atomically,
    write_json,
)


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_atomically(target, b"old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_bytes(b"new")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_not_a_number_is_refused_in_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not (tmp_path / "a.json").exists()


def test_a_folder_digest_knows_names_and_bytes_and_no_order(tmp_path: Path) -> None:
    for name, order in (("one", "ab"), ("two", "ba")):
        for letter in order:
            write_atomically(tmp_path / name / letter, letter.encode())
    assert folder_digest(tmp_path / "one") == folder_digest(tmp_path / "two")
    (tmp_path / "two" / "a").rename(tmp_path / "two" / "c")
    assert folder_digest(tmp_path / "one") != folder_digest(tmp_path / "two")


def test_a_json_digest_does_not_see_the_order_of_keys() -> None:
    assert json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1}) != json_digest({"a": 1, "b": 3})


def test_a_link_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("new")
    (tmp_path / "target").write_text("old")
    link_or_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_text() == "new"
