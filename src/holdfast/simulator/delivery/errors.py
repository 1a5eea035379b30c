"""Errors as providers send them: a status, a body in the provider's own shape, and headers."""

from holdfast.simulator.faults.catalogue import CATALOGUE, CatalogueEntry
from holdfast.simulator.state.json import Json

DEFAULT_VALUES: dict[str, object] = {
    "id": "rs_0",
    "index": 0,
    "part": 0,
    "field": "input[0].call_id",
    "length": 116,
    "model": "model",
    "organization": "org-simulated",
    "limit": 200_000,
    "used": 200_251,
    "requested": 20_000,
    "seconds": 1,
    "request_id": "00000000-0000-0000-0000-000000000000",
}


class Problem(Exception):
    """Ends the call with this status and body."""

    def __init__(
        self,
        status: int,
        body: Json,
        *,
        headers: dict[str, str] | None = None,
        fault: str | None = None,
    ) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body
        self.headers = headers or {}
        self.fault = fault


def openai_error(
    message: str,
    *,
    type: str = "invalid_request_error",  # noqa: A002 - the wire's own word
    param: str | None = None,
    code: str | None = None,
) -> Json:
    """Return an error body as OpenAI writes it."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def anthropic_error(message: str, kind: str, request_id: str | None = None) -> Json:
    """Return an error body as Anthropic writes it."""
    body: Json = {"type": "error", "error": {"type": kind, "message": message}}
    if request_id is not None:
        body["request_id"] = request_id
    return body


def gemini_error(status: int, message: str, kind: str, details: list[Json] | None = None) -> Json:
    """Return an error body as Google writes it."""
    error: Json = {"code": status, "message": message, "status": kind}
    if details:
        error["details"] = details
    return {"error": error}


def catalogue_problem(number: str, **values: object) -> Problem:
    """Return the catalogue error `number`, with its placeholders filled from `values`."""
    listed = CATALOGUE[number]
    filled = DEFAULT_VALUES | values
    message = listed.message.format_map(filled)
    return Problem(
        listed.status,
        _body(listed, message, filled),
        headers=_headers(listed, filled),
        fault=number,
    )


def _body(listed: CatalogueEntry, message: str, filled: dict[str, object]) -> Json:
    if listed.shape == "anthropic":
        return anthropic_error(message, listed.type, str(filled["request_id"]))
    if listed.shape == "gemini":
        return gemini_error(listed.status, message, listed.type, _retry_info(listed, filled))
    if listed.shape == "letta":
        return {"detail": message}
    param = listed.param.format_map(filled) if listed.param else listed.param
    return openai_error(message, type=listed.type, param=param, code=listed.code)


def _retry_info(listed: CatalogueEntry, filled: dict[str, object]) -> list[Json] | None:
    if listed.id != "G02":
        return None
    delay = f"{filled['seconds']}s"
    return [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]


def _headers(listed: CatalogueEntry, filled: dict[str, object]) -> dict[str, str]:
    return {"retry-after": str(filled["seconds"])} if listed.id == "C05" else {}


def invalid(message: str, param: str | None, code: str | None = None) -> Problem:
    """Return OpenAI's 400 for an invalid request."""
    return Problem(400, openai_error(message, param=param, code=code))


def missing(param: str) -> Problem:
    """Return OpenAI's 400 for a missing field."""
    return invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def not_found(message: str) -> Problem:
    """Return OpenAI's 404."""
    return Problem(404, openai_error(message))
