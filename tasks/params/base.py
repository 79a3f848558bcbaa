"""What all sections of params.yaml share."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A section of params.yaml: immutable, no unknown keys, only finite numbers, the doc of each field under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_yes_and_no_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `yes`, `on` and `true` as a boolean, which pydantic would take as 1."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            taken = {annotation, *get_args(annotation)}
            if bool not in taken and taken & {int, float}:
                raise ValueError("input should be a number, not a yes or no")
        return value
