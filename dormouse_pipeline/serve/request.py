"""What a completion request may say, and what it means. Everything it says that this server does not do is refused by name."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_BODY = 4 << 20
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1, None), "best_of": (1, None), "echo": (False, None), "logprobs": (None,), "suffix": (None, ""),
    "frequency_penalty": (0, None), "presence_penalty": (0, None), "logit_bias": ({}, None), "stream_options": (None,),
}  # fmt: skip
"""Fields of the OpenAI interface that are accepted with the value that changes nothing, and refused with any other."""

Byte = Annotated[int, Field(ge=0, le=255)]


class BadRequest(Exception):
    """A request that cannot be carried out, with the HTTP status and the field that is wrong."""

    def __init__(self, message: str, status: int = 400, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field = status, field

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.status}}


class CompletionRequest(BaseModel):
    """POST /v1/completions. Tokens are bytes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str | list[Byte]
    """Text (UTF-8), or the bytes themselves."""
    model: str | None = None
    max_tokens: int = Field(64, ge=1)
    """New bytes at most, the closing one included."""
    temperature: float = Field(1.0, ge=0, le=100)
    """0 takes the most likely byte."""
    seed: int | None = Field(None, ge=0)
    """Root of the draws. Without one the server chooses, and says which."""
    n: int = Field(1, ge=1, le=16)
    stop: str | list[str] | None = None
    """At most four; the completion ends before the first that appears."""
    stream: bool = False
    user: str | None = None

    def prompt_bytes(self) -> bytes:
        return self.prompt.encode() if isinstance(self.prompt, str) else bytes(self.prompt)

    def stops(self) -> tuple[bytes, ...]:
        return tuple(s.encode() for s in ([self.stop] if isinstance(self.stop, str) else self.stop or []))


def parse(body: bytes, max_tokens: int) -> CompletionRequest:
    """The request in a body. Raises BadRequest naming what is wrong."""
    try:
        value = json.loads(body)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object with a `prompt`")
    for name, neutral in NEUTRAL.items():
        if name in value and value.pop(name) not in neutral:
            raise BadRequest(f"`{name}` is not supported; leave it out", field=name)
    try:
        request = CompletionRequest.model_validate(value)
        request.prompt_bytes(), request.stops()
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else None
        unknown = first["type"] == "extra_forbidden"
        raise BadRequest(f"`{field}` is not a field of a completion request" if unknown else f"`{field}`: {first['msg']}",
                         field=field) from error
    except UnicodeEncodeError as error:
        raise BadRequest(f"the text is not valid Unicode: {error.reason}") from error
    if request.max_tokens > max_tokens:
        raise BadRequest(f"`max_tokens` {request.max_tokens} exceeds this server's limit of {max_tokens}", field="max_tokens")
    if len(request.stops()) > 4 or not all(request.stops()):
        raise BadRequest("`stop` takes at most four strings, none of them empty", field="stop")
    return request
