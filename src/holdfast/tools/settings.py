"""Settings of MCP servers, and what operators see of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from holdfast.core.errors import InvalidSetting

Approval = Literal["always", "writes", "never"]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """`[[mcp]]`: a server whose tools the gateway runs; needs the extra `mcp`."""

    name: str
    """The `server_label` in requests: letters, digits, `_` and `-`, at most 32."""
    command: str = ""
    """A program that speaks MCP on its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: tuple[str, ...] = ()
    """Variables that it gets, beside PATH, HOME, LANG, TMPDIR and a mark of ours; no others."""
    workdir: str = ""
    """Its working directory; default: that of the gateway."""
    url: str = ""
    """The address of a server with streamable HTTP, instead of `command`."""
    bearer_env: str = ""
    """Environment variable with the bearer token for `url`."""
    headers_env: tuple[str, ...] = ()
    """Further headers for `url`, as `Header=VARIABLE`."""
    allow: tuple[str, ...] = ()
    """The only tools that may be used; default: all."""
    approval: Approval = "always"
    """Which calls a person must approve: all, those of tools that write, or none."""
    read_only: tuple[str, ...] = ()
    """Tools that only read: with `approval = "writes"` they need no approval."""
    repeatable: tuple[str, ...] = ()
    """Tools that may run a second time after a crash; others are reported as unknown."""
    trust_annotations: bool = False
    """Whether the server's own hints (read-only, idempotent) count like these lists."""
    per: Literal["process", "session"] = "process"
    """One connection for all sessions, or one for each session, for stateful servers."""
    tenant: str = "default"
    """The tenant that may use it."""
    concurrency: int = 8
    """Calls at a time; further ones wait."""
    start_seconds: float = 30.0
    """How long the server may take to start and to list its tools."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of the named variables; never written anywhere."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == "holdfast":
            raise InvalidSetting(
                f"mcp.name must be 1 to 32 letters, digits, _ or -, and not holdfast: {self.name!r}"
            )
        if bool(self.command) == bool(self.url):
            raise InvalidSetting(f"mcp {self.name!r} needs either command or url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise InvalidSetting(f"mcp.url must be http://… or https://…, not {self.url!r}")
        for variable in (*self.env, *([self.bearer_env] if self.bearer_env else [])):
            _check_variable(variable)
        for entry in self.headers_env:
            header, _, variable = entry.partition("=")
            if not _HEADER.fullmatch(header):
                raise InvalidSetting(f"mcp.headers_env: {entry!r} must be Header=VARIABLE")
            _check_variable(variable)
        if self.concurrency < 1:
            raise InvalidSetting("mcp.concurrency must be at least 1")
        if not self.start_seconds > 0:
            raise InvalidSetting("mcp.start_seconds must be positive")

    def filled(self, environment: Mapping[str, str]) -> "McpSettings":
        """Return the entry with the values of its variables."""
        names = {*self.env, *(entry.partition("=")[2] for entry in self.headers_env)}
        if self.bearer_env:
            names.add(self.bearer_env)
        variables = {name: environment[name] for name in names if name in environment}
        for name in ("PATH", "HOME", "LANG", "TMPDIR"):
            if name in environment:
                variables.setdefault(name, environment[name])
        return replace(self, secrets=variables)

    @property
    def variables(self) -> frozenset[str]:
        """The names of the environment variables that the entry uses."""
        headers = (entry.partition("=")[2] for entry in self.headers_env)
        bearer = (self.bearer_env,) if self.bearer_env else ()
        return frozenset((*self.env, *headers, *bearer))

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the server's process."""
        names = (*self.env, "PATH", "HOME", "LANG", "TMPDIR")
        return {name: self.secrets[name] for name in names if name in self.secrets}

    def headers(self) -> dict[str, str]:
        """Return the headers of requests to the server; a variable that is not set gives none."""
        headers: dict[str, str] = {}
        if self.bearer_env and self.bearer_env in self.secrets:
            headers["Authorization"] = f"Bearer {self.secrets[self.bearer_env]}"
        for entry in self.headers_env:
            header, _, variable = entry.partition("=")
            if variable in self.secrets:
                headers[header] = self.secrets[variable]
        return headers


def _check_variable(name: str) -> None:
    """Raise for an invalid variable name without repeating it: it may be the secret itself."""
    if not _VARIABLE.fullmatch(name):
        raise InvalidSetting(
            "mcp.env, bearer_env and headers_env take names of environment variables, not values"
        )


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server, for operators."""

    name: str
    tenant: str
    state: str
    """`idle` (not started yet), `ready` or `failed`."""
    tools: int = 0
    error: str | None = None
    left_out: list[str] = []
    """Tools that the server lists and that are not well-formed."""
