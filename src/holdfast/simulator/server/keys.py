"""Read and check the caller's key, in every header that clients use."""

from holdfast.simulator.delivery.errors import Problem, anthropic_error, openai_error
from holdfast.simulator.state.world import World


def key_of(headers: dict[str, str], query: dict[str, str]) -> str:
    """Return the caller's key; empty when there is none."""
    bearer = headers.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    for name in ("x-api-key", "api-key", "x-goog-api-key"):
        if name in headers:
            return headers[name]
    return query.get("key", "")


def key_problem(world: World, api: str, key: str) -> Problem | None:
    """Return the 401 for a missing or unknown key; None for a valid one."""
    allowed = world.scenario.keys
    if not key and (world.profile.needs_key or allowed):
        return _missing(api)
    return _wrong(api, key) if allowed and key not in allowed else None


def _missing(api: str) -> Problem:
    if api == "messages":
        return Problem(401, anthropic_error("x-api-key header is required", "authentication_error"))
    return Problem(
        401,
        openai_error(
            "You didn't provide an API key. You need to provide your API key in an Authorization "
            "header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY). You can obtain an API "
            "key from https://platform.openai.com/account/api-keys."
        ),
    )


def _wrong(api: str, key: str) -> Problem:
    if api == "messages":
        return Problem(401, anthropic_error("invalid x-api-key", "authentication_error"))
    shown = f"{key[:4]}{'*' * max(0, len(key) - 8)}{key[-4:]}"
    message = (
        f"Incorrect API key provided: {shown}. You can find your API key at "
        "https://platform.openai.com/account/api-keys."
    )
    return Problem(401, openai_error(message, code="invalid_api_key"))
