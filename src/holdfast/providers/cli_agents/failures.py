"""Failures of agents as the engine's failure classes."""

from holdfast.core.errors import FailureClass, ProviderFailure
from holdfast.providers.errors import is_prompt_refusal

MAX_MESSAGE = 2000
_TOO_LONG = ("prompt is too long", "context window", "context length", "exceed context limit")
_NOT_LOGGED_IN = ("not logged in", "please run /login", "invalid api key", "401 unauthorized")


def stale_session(message: str, code: str = "agent_session_not_found") -> ProviderFailure:
    """Return the failure for a session that the agent cannot resume; it is rebuilt from the log."""
    return ProviderFailure(
        message[:MAX_MESSAGE], failure_class="stale_state", status=404, provider_code=code
    )


def agent_failure(message: str, status: int | None = None) -> ProviderFailure:
    """Return the failure of a turn, classified by the status and message of the model's API."""
    lowered = message.lower()
    if any(text in lowered for text in _TOO_LONG):
        return _failure(message, "overflow", status or 400, "context_length_exceeded")
    if is_prompt_refusal(status, None, message):
        return _failure(message, "terminal", 400, "agent_request_refused")
    if status in (401, 403) or any(text in lowered for text in _NOT_LOGGED_IN):
        return _failure(message, "terminal", 502, "agent_not_logged_in")
    if status == 429:
        return _failure(message, "busy", 429, "agent_rate_limited")
    if status is not None and 400 <= status < 500 and status != 408:
        return _failure(message, "terminal", status, "agent_request_refused")
    return _failure(message, "transient", 502, "agent_failed")


def agent_exited(errors: str, unreadable: str, exit_code: int | None) -> ProviderFailure:
    """Return the failure for an agent that exited without an answer, with what it printed."""
    message = f"the agent exited with code {exit_code} without an answer"
    if errors:
        message += f": {errors[-MAX_MESSAGE // 2 :]}"
    if unreadable:
        message += f"; it printed: {unreadable[-MAX_MESSAGE // 2 :]}"
    return _failure(message, "transient", 502, "agent_exited")


def agent_timeout(seconds: float) -> ProviderFailure:
    """Return the failure for a turn that exceeded its deadline."""
    text = f"the agent did not finish its turn within {seconds:g} s"
    return _failure(text, "terminal", 504, "agent_timeout")


def agent_busy(seconds: float, max_processes: int) -> ProviderFailure:
    """Return the failure for a turn that got no process; the agent was not called."""
    text = (
        f"no process of the agent became free within {seconds:g} s "
        f"(max_processes = {max_processes}); the agent was not asked"
    )
    return _failure(text, "transient", 503, "agent_busy")


def agent_not_prepared(reason: str) -> ProviderFailure:
    """Return the failure for a turn whose directories cannot be created or written."""
    return agent_not_started(f"the directory of the agent's session cannot be used: {reason}")


def agent_not_started(message: str) -> ProviderFailure:
    """Return the failure for a program that does not start, or does not start to talk."""
    return _failure(message, "terminal", 502, "agent_not_started")


def agent_broken(message: str) -> ProviderFailure:
    """Return the failure for an agent that violates its protocol."""
    return _failure(message, "terminal", 502, "agent_broken_answer")


def _failure(message: str, kind: FailureClass, status: int, code: str) -> ProviderFailure:
    return ProviderFailure(
        message[:MAX_MESSAGE], failure_class=kind, status=status, provider_code=code
    )
