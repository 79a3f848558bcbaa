"""What all sections of params.yaml share."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of params.yaml: immutable, no unknown keys, the doc of each field stands under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
