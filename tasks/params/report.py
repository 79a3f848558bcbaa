"""Section `report` of params.yaml."""

from tasks.params.base import Section


class ReportParams(Section):
    """What the report is called."""

    title: str = "train-llm"
    """Heading of the page."""
