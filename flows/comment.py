"""The metric table of a run, for a comment: `python -m flows.comment KEY` prints the newest artifact of that key."""

import sys


def artifact(key: str) -> str:
    """Markdown of the newest artifact of a key on the server at PREFECT_API_URL.

    Raises:
        LookupError: there is none.
    """
    from prefect.artifacts import Artifact

    found = Artifact.get(key)
    if found is None or not isinstance(found.data, str):
        raise LookupError(
            f"the Prefect server holds no artifact {key!r}: did the run end before it wrote its metrics?"
        )
    return found.data


def main(arguments: list[str]) -> int:
    """Print one artifact. Returns 2 for wrong arguments, 1 when there is none."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m flows.comment KEY\n")
        return 2
    try:
        sys.stdout.write(artifact(arguments[0]))
    except LookupError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
