"""The base of every record and every configuration model."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen, strict about unknown keys; bytes travel through JSON as base64."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64",
                              use_attribute_docstrings=True)


class Config(Record):
    """A section of the run configuration. Every field carries a sentence: what it is and when to change it."""
