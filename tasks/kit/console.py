"""What a stage says: log lines without secrets, and progress that is quiet when nobody watches."""

import json
import logging
import os
import re
import sys
import time
from urllib.parse import quote, quote_plus

_SECRET_NAME = re.compile(
    r"SECRET|TOKEN(?!IZER)|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH_STRING|CONNECTION_STRING|COOKIE"
    r"|(API|ACCESS|ACCOUNT|STORAGE|PRIVATE|SHARED|SIGNING|ENCRYPTION|MASTER|SERVICE)_?KEY"
    r"|(AWS|AZURE|GCP|GOOGLE|OPENAI|ANTHROPIC|WANDB|COMET|HF)\w*_KEY|(_PAT|_PWD|_SAS|_DSN)$",
    re.I,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")
_MASK = "********"
_MIN_LENGTH = 6
"""Shorter values stay: masking `1` or `true` would eat the log."""


def secret_values() -> list[str]:
    """What must not be shown: values of environment variables whose name says that they are secret, longest first.

    Each also as it stands inside JSON and inside an address, and each line of one that has several (a key file).
    """
    values = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    values |= {line.strip() for value in values for line in value.splitlines()}
    forms = {
        form
        for value in values
        if len(value) >= _MIN_LENGTH
        for form in (
            value,
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            quote(value),
            quote(value, safe=""),
            quote_plus(value),
        )
    }
    return sorted(forms, key=len, reverse=True)


def redact(text: str) -> str:
    """`text` with every secret of the environment, and every password inside a URL, masked."""
    for value in secret_values():
        text = text.replace(value, _MASK)
    return _URL_PASSWORD.sub(rf"\1:{_MASK}", text)


class RedactingFormatter(logging.Formatter):
    """Masks secrets in the finished line: also those inside tracebacks and of other libraries."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def set_up_logging(stage: str) -> logging.Logger:
    """Log to standard error as `stage: message`. Returns the project's logger; once a process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(f"{stage}: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logger = logging.getLogger("train_llm")
    logger.setLevel(logging.INFO)
    return logger


class Progress:
    """Progress with the time that is left: a live line on a terminal, else a log line a minute.

    `unit` names what is counted; `start` is where a resumed job begins, so that the rate is of this attempt.
    """

    def __init__(self, total: int, unit: str, start: int = 0) -> None:
        self.total, self.unit, self.start = total, unit, start
        self.began = self.last_shown = time.monotonic()
        self.live = sys.stderr.isatty() and not os.environ.get("CI")

    def update(self, done: int, note: str = "") -> None:
        """Say that `done` of `total` are finished."""
        now = time.monotonic()
        finished = done >= self.total
        if now - self.last_shown < (0.2 if self.live else 60) and not (finished and self.live):
            return
        self.last_shown = now
        rate = (done - self.start) / max(now - self.began, 1e-9)
        left = f", {(self.total - done) / rate:,.0f} s left" if rate > 0 and not finished else ""
        line = f"{done:,} of {self.total:,} {self.unit}{left}{', ' + note if note else ''}"
        if self.live:
            sys.stderr.write(f"\r\033[K{redact(line)}" + ("\n" if finished else ""))
            sys.stderr.flush()
        else:
            logging.getLogger("train_llm").info(line)
