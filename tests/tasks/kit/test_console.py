"""The console: secrets of the environment never leave."""

import logging

import pytest

from tasks.kit.console import RedactingFormatter, redact


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DB_PASSWORD", "PREFECT_API_AUTH_STRING"]
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
