"""Lines of a batch: each a request with a name of its own; and the lines of its results.

A line that is no request fails the whole batch, with its number. A request that is refused goes to the file of
errors, and the rest is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from node.api.errors import ApiError, encodable, unsupported, wrong
from node.api.reading import Fields
from node.api.requests import CHAT, EMBEDDINGS
from tasks.models.errors import RowsInvalid
from tasks.models.rows import MESSAGES_MAX, objects_of
from tasks.programs.operators.scalars import NANO

__all__ = [
    "GREEDY",
    "Answer",
    "BatchLine",
    "Drawing",
    "Fault",
    "check_lines",
    "cut",
    "error_line",
    "output_line",
    "parse_lines",
    "read_request",
    "result_line",
]

REQUESTS_MAX: Final = 50_000
CUSTOM_ID_CHARACTERS_MAX: Final = 256
FAULTS_MAX: Final = 100
"""Faults of a batch that are told; more are not looked for."""
NEW_TOKENS_MAX: Final = 1 << 20
STOPS_MAX: Final = 4
STOP_CHARACTERS_MAX: Final = 256
ROWS_OF_REQUEST_MAX: Final = 128
"""Prompts of one request of completions, times its ``n``."""
TEMPERATURE_MAX: Final = 2
"""The format's own bound."""

_SHARED: Final = (
    "model", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "stream", "stream_options", "user",
    "frequency_penalty", "presence_penalty", "logit_bias", "logprobs",
)  # fmt: skip
_CHAT_ONLY: Final = (
    "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "functions", "function_call",
    "parallel_tool_calls", "response_format", "modalities", "audio", "prediction", "reasoning_effort",
    "service_tier", "store", "metadata", "verbosity", "web_search_options", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "moderation",
)  # fmt: skip
_EMBEDDINGS: Final = ("model", "input", "encoding_format", "dimensions", "user")
_ENCODINGS: Final = ("float", "base64")
_COMPLETIONS_ONLY: Final = ("prompt", "best_of", "echo", "suffix")
_NO_TOOLS: Final = "models here call no tools"
_AS_THEY_ARE: Final = "tokens are drawn by the model's own probabilities"


class Fault(NamedTuple):
    """What is wrong with a batch as a whole, in the format's own form."""

    reason: str
    message: str
    line: int | None = None
    param: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as an error of a batch."""
        return {"code": self.reason, "message": encodable(self.message), "line": self.line, "param": self.param}


class Drawing(NamedTuple):
    """How the tokens of a request are drawn: temperature and ``top_p`` in units of 10^-9, and its seed.

    With temperature 0 the likeliest token is taken, and the others say nothing.
    """

    temperature: int = NANO
    top_p: int = NANO
    seed: int | None = None

    @property
    def fields(self) -> dict[str, float]:
        """The fields of a row, with a temperature of six digits at most."""
        return {"temperature": round(self.temperature / NANO, 6), "top_p": self.top_p / NANO}


GREEDY: Final = Drawing(0, 0)


@dataclass(frozen=True)
class BatchLine:
    """A request of a batch: its prompts as lines of a job's data, or why it is refused."""

    line: int
    custom_id: str
    model: str
    prompts: tuple[Mapping[str, Any], ...] = ()
    new_tokens: int | None = None
    stops: tuple[str, ...] = ()
    copies: int = 1
    """Answers to each prompt."""
    drawing: Drawing = GREEDY
    refused: ApiError | None = field(default=None, compare=False)
    as_base64: bool = False
    """Vectors are told as the bytes of binary32."""


class Answer(NamedTuple):
    """What came after one prompt of a request."""

    text: str
    is_whole: bool
    """Whether it ended by itself: by an end token or a stop text."""
    prompt_tokens: int
    """0 for further answers to one prompt, which counts once."""
    new_tokens: int


def parse_lines(data: bytes, endpoint: str) -> tuple[list[BatchLine], list[Fault]]:
    """Return the requests of a file of JSON lines, or what is wrong with it: one of both is empty."""
    found, faults, names, model = list[BatchLine](), list[Fault](), set[str](), ""
    try:
        for number, fields in objects_of(data):
            if len(found) >= REQUESTS_MAX:
                return [], [Fault("too_many_requests", f"More than {REQUESTS_MAX} requests.", number)]
            try:
                one = _line(number, fields, endpoint, names)
            except ApiError as error:
                faults.append(Fault(error.reason or "invalid_request", str(error), number, error.param))
                if len(faults) >= FAULTS_MAX:
                    break
                continue
            model = model or one.model
            if one.model != model:
                text = f"All requests of a batch are for one model: {model}, not {one.model}."
                faults.append(Fault("mismatched_model", text, number, "body.model"))
                if len(faults) >= FAULTS_MAX:
                    break
            found.append(one)
    except RowsInvalid as error:
        faults.append(Fault("invalid_json_line", str(error), error.line))
    return ([], faults) if faults else (found, [])


def _line(number: int, values: Mapping[str, Any], endpoint: str, names: set[str]) -> BatchLine:
    fields = Fields(values, ("custom_id", "method", "url", "body"))
    name = fields.needed("custom_id", most=CUSTOM_ID_CHARACTERS_MAX)
    if name in names:
        raise wrong(f"The custom_id {name!r} is there twice.", "custom_id", "duplicate_custom_id")
    names.add(name)
    if fields.needed("method") != "POST":
        raise wrong("The method of each request is POST.", "method", "invalid_method")
    if fields.needed("url") != endpoint:
        raise wrong(f"The URL of each request of this batch is {endpoint}.", "url", "invalid_url")
    body = fields.raw("body")
    if type(body) is not dict:
        raise fields.missing("body") if body is None else fields.invalid("body", "an object")
    model = body.get("model")
    if type(model) is not str or not 0 < len(model) <= CUSTOM_ID_CHARACTERS_MAX or model != encodable(model):
        raise wrong("Missing required parameter: 'body.model'.", "body.model", "missing_required_parameter")
    try:
        return read_request(number, name, model, body, endpoint)
    except ApiError as error:
        return BatchLine(number, name, model, refused=error)


def read_request(number: int, name: str, model: str, body: Mapping[str, Any], endpoint: str) -> BatchLine:
    """Return the request of a body. Raises ApiError for what the format refuses and what no job does."""
    if endpoint == EMBEDDINGS:
        return _embedding(number, name, model, body)
    is_chat = endpoint == CHAT
    fields = Fields(body, (*_SHARED, *(_CHAT_ONLY if is_chat else _COMPLETIONS_ONLY)))
    _refuse_shared(fields)
    copies = fields.whole("n", 1, ROWS_OF_REQUEST_MAX) or 1
    if is_chat:
        _refuse_chat(fields)
        prompts: tuple[Mapping[str, Any], ...] = ({"messages": _messages(fields)},)
        most = fields.whole("max_completion_tokens", 1, NEW_TOKENS_MAX)
    else:
        fields.only("best_of", (copies,), "as many completions are computed as are returned (best_of = n)")
        fields.only("echo", (False,), "prompts are not repeated in completions")
        fields.only("suffix", ("",), "nothing is inserted between texts")
        prompts, most = _prompts(fields), None
    older = fields.whole("max_tokens", 1, NEW_TOKENS_MAX)
    if most is not None and older is not None and most != older:
        raise fields.invalid("max_tokens", "the number of max_completion_tokens")
    if len(prompts) * copies > ROWS_OF_REQUEST_MAX:
        raise fields.invalid("n", f"{ROWS_OF_REQUEST_MAX} answers at most in all,")
    return BatchLine(number, name, model, prompts, most or older, _stops(fields), copies, _drawing(fields))


def _drawing(fields: Fields) -> Drawing:
    """Return how tokens are drawn; absent fields have the format's defaults. Raises ApiError."""
    temperature, top_p = fields.number("temperature", 0, TEMPERATURE_MAX), fields.number("top_p", 0, 1)
    seed = fields.whole("seed", -(2**63), 2**63 - 1)
    if temperature is None:
        temperature = 1
    if not (nano := round(temperature * NANO)):
        return GREEDY
    return Drawing(nano, NANO if top_p is None else round(top_p * NANO), seed)


def _embedding(number: int, name: str, model: str, body: Mapping[str, Any]) -> BatchLine:
    """Return a request for vectors. Raises ApiError."""
    fields = Fields(body, _EMBEDDINGS)
    fields.only("dimensions", (), "a vector has as many numbers as the model gives")
    fields.text("user", most=512)
    encoding = fields.raw("encoding_format")
    if encoding is not None and encoding not in _ENCODINGS:
        raise fields.invalid("encoding_format", " or ".join(_ENCODINGS))
    prompts = tuple(
        {"text": one["prompt"]} if "prompt" in one else one for one in _prompts(fields, "input")
    )  # fmt: skip
    return BatchLine(number, name, model, prompts, as_base64=encoding == "base64")


def _refuse_shared(fields: Fields) -> None:
    fields.only("frequency_penalty", (0, 0.0), _AS_THEY_ARE)
    fields.only("presence_penalty", (0, 0.0), _AS_THEY_ARE)
    fields.only("logit_bias", ({},), _AS_THEY_ARE)
    fields.only("logprobs", (False,), "probabilities of tokens are no part of a result")
    fields.only("stream", (False,), "results of a batch are not streamed")
    fields.only("stream_options", (), "results of a batch are not streamed")
    fields.text("user", most=512)


def _refuse_chat(fields: Fields) -> None:
    fields.only("top_logprobs", (0,), "probabilities of tokens are no part of a result")
    fields.only("tools", ([],), _NO_TOOLS)
    fields.only("tool_choice", ("none",), _NO_TOOLS)
    fields.only("functions", ([],), _NO_TOOLS)
    fields.only("function_call", ("none",), _NO_TOOLS)
    fields.only("parallel_tool_calls", (False,), _NO_TOOLS)
    fields.only("response_format", ({"type": "text"},), "models here answer with plain text")
    fields.only("modalities", (["text"],), "models here answer with plain text")
    fields.only("audio", (), "models here answer with plain text")
    fields.only("prediction", (), "there are no predicted outputs")
    fields.only("reasoning_effort", ("none",), "models here have no separate reasoning")
    fields.only("verbosity", (), "models here have no verbosity")
    fields.only("service_tier", ("auto", "default"), "there is one tier")
    fields.only("store", (False,), "results are kept as files")
    fields.only("web_search_options", (), "models here search nothing")
    fields.only("moderation", (), "nothing is moderated")
    fields.metadata()
    for name in ("safety_identifier", "prompt_cache_key", "prompt_cache_retention"):
        fields.text(name, most=512)  # hints that change no answer


def _messages(fields: Fields) -> list[dict[str, str]]:
    found = fields.raw("messages")
    if found is None:
        raise fields.missing("messages")
    if type(found) is not list or not 1 <= len(found) <= MESSAGES_MAX:
        raise fields.invalid("messages", f"a list of 1 to {MESSAGES_MAX} messages")
    return [_message(one, f"messages[{place}]", fields) for place, one in enumerate(found)]


_ROLES: Final[Mapping[str, str]] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
}  # fmt: skip


def _message(value: Any, place: str, fields: Fields) -> dict[str, str]:
    if type(value) is not dict:
        raise fields.invalid(place, "an object")
    known = ("role", "content", "name", "refusal", "audio", "function_call", "tool_calls", "tool_call_id")
    one = Fields(value, known, place)
    role = one.needed("role")
    if role in ("tool", "function"):
        raise unsupported(f"'{place}.role': {_NO_TOOLS}.", f"{place}.role")
    if role not in _ROLES:
        raise one.invalid("role", ", ".join(_ROLES))
    for name in ("function_call", "tool_calls", "tool_call_id"):
        one.only(name, ([],), _NO_TOOLS)
    one.only("audio", (), "models here read plain text")
    one.only("refusal", ("",), "an assistant's message is a text")
    one.only("name", (), "messages carry no names")
    return {"role": _ROLES[role], "content": _content(one)}


def _content(message: Fields) -> str:
    value = message.raw("content")
    if value is None:
        raise message.missing("content")
    if type(value) is str:
        return value
    if type(value) is not list or len(value) > MESSAGES_MAX:
        raise message.invalid("content", "a string or a list of parts")
    texts = list[str]()
    for number, part in enumerate(value):
        place = message.param(f"content[{number}]")
        if type(part) is not dict or type(part.get("type")) is not str:
            raise message.invalid(f"content[{number}]", "an object with a type")
        if part["type"] != "text":
            raise unsupported(f"'{place}': models here read plain text, no {part['type'][:40]}.", place)
        if type(part.get("text")) is not str or part.keys() - {"type", "text"}:
            raise message.invalid(f"content[{number}]", "type and text")
        texts.append(part["text"])
    return "".join(texts)


def _prompts(fields: Fields, name: str = "prompt") -> tuple[Mapping[str, Any], ...]:
    value = fields.raw(name)
    if value is None:
        raise fields.missing(name)
    if type(value) is str:
        return ({"prompt": value},)
    if type(value) is list and value:
        if all(type(one) is int for one in value):
            return ({"input_ids": value},)
        if len(value) > ROWS_OF_REQUEST_MAX:
            raise fields.invalid(name, f"{ROWS_OF_REQUEST_MAX} of them at most")
        if all(type(one) is str for one in value):
            return tuple({"prompt": one} for one in value)
        if all(type(one) is list and one and all(type(token) is int for token in one) for one in value):
            return tuple({"input_ids": one} for one in value)
    raise fields.invalid(name, "a string, tokens, or a list of these")


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("stop")
    if value is None:
        return ()
    found = [value] if type(value) is str else value
    if type(found) is not list or len(found) > STOPS_MAX:
        raise fields.invalid("stop", f"a string or a list of {STOPS_MAX} strings at most")
    if not all(type(one) is str and 0 < len(one) <= STOP_CHARACTERS_MAX for one in found):
        raise fields.invalid("stop", f"strings of 1 to {STOP_CHARACTERS_MAX} characters")
    return tuple(found)


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return a text up to the first of ``stops`` in it, and whether there was one.

    What was computed after it is dropped: the tokens before it are the same with and without it.
    """
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def output_line(
    number: int, name: str, model: str, endpoint: str, answers: Sequence[Answer], *, batch: str, created_s: int,
    fingerprint: str,
) -> bytes:  # fmt: skip
    """Return the line of a request that was done."""
    is_chat = endpoint == CHAT
    choices: list[dict[str, Any]] = []
    for index, one in enumerate(answers):
        choice: dict[str, Any] = {"index": index}
        if is_chat:
            choice["message"] = {"role": "assistant", "content": one.text, "refusal": None}
        else:
            choice["text"] = one.text
        choices.append({**choice, "logprobs": None, "finish_reason": "stop" if one.is_whole else "length"})
    asked, told = sum(one.prompt_tokens for one in answers), sum(one.new_tokens for one in answers)
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{batch}-{number}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": created_s,
        "model": model,
        "choices": choices,
        "usage": {"prompt_tokens": asked, "completion_tokens": told, "total_tokens": asked + told},
        "system_fingerprint": fingerprint,
    }
    return result_line(number, name, batch, body)


def result_line(number: int, name: str, batch: str, body: Mapping[str, Any]) -> bytes:
    """Return the line of a request that was done, with the body of its answer."""
    return _result(number, name, batch, {"status_code": 200, "request_id": f"req_{batch}_{number}", "body": body})


def error_line(number: int, name: str, error: ApiError, *, batch: str, was_asked: bool = True) -> bytes:
    """Return the line of a request that was refused; not ``was_asked``: it was never begun, or not finished."""
    if was_asked:
        answer = {"status_code": error.status, "request_id": f"req_{batch}_{number}", "body": error.to_json()}
        return _result(number, name, batch, answer)
    return _result(number, name, batch, None, {"code": error.reason, "message": str(error)})


def _result(number: int, name: str, batch: str, response: Any, error: Any = None) -> bytes:
    line = {"id": f"batch_req_{batch}_{number}", "custom_id": name, "response": response, "error": error}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def check_lines(data: bytes) -> int:
    """Return how many objects a file of JSON lines has. Raises ApiError, naming the line."""
    try:
        return sum(1 for _ in objects_of(data))
    except RowsInvalid as error:
        raise wrong(
            f"Expected a JSON object in each line of the file: {error}.", "file", "invalid_jsonl"
        ) from None
