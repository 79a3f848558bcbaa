"""The console: secrets of the environment never leave."""

import json
import logging
from urllib.parse import quote, quote_plus

import pytest

from tasks.kit.console import RedactingFormatter, redact


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_KEY",
        "DB_PASSWORD",
        "GPG_PASSPHRASE",
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "PREFECT_API_AUTH_STRING",
        "SSH_PRIVATE_KEY",
    ],
)
def test_a_secret_of_the_environment_is_masked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "hunter2hunter2")
    assert redact("key=hunter2hunter2!") == "key=********!"


def test_a_password_inside_an_address_is_masked() -> None:
    assert redact("at postgres://me:hunter2@host/db") == "at postgres://me:********@host/db"


def test_a_short_value_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "1")
    assert redact("step 1 of 11") == "step 1 of 11"


def test_a_traceback_is_masked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2hunter2")
    try:
        raise ValueError("bad hunter2hunter2")
    except ValueError:
        record = logging.LogRecord(
            "a", logging.ERROR, __file__, 1, "failed", None, __import__("sys").exc_info()
        )
    assert "hunter2hunter2" not in RedactingFormatter("%(message)s").format(record)


def test_a_secret_is_masked_as_it_stands_in_json_and_in_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'p"ss wö/rd+1'
    monkeypatch.setenv("DB_PASSWORD", secret)
    forms = [
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret),
        quote(secret, safe=""),
    ]
    for form in [*forms, quote_plus(secret)]:
        assert redact(f"<{form}>").strip('<">') == "********"


def test_each_line_of_a_key_file_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_PRIVATE_KEY", "-----BEGIN KEY-----\nMIIEowIBAAKCAQ\nabc\n-----END KEY-----\n")
    assert redact("a MIIEowIBAAKCAQ b") == "a ******** b"
    assert redact("abc") == "abc"


def test_a_password_without_a_user_is_masked() -> None:
    assert redact("redis://:hunter2@host") == "redis://:********@host"


def test_names_that_only_sound_secret_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "disabled")
    monkeypatch.setenv("SOME_KEYBOARD", "german")
    assert redact("disabled german") == "disabled german"
