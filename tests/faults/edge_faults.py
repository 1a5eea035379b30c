"""Faults at the edges: the HTTP side, and the providers."""

from tests.faults.fault import Fault

HTTP = "src/holdfast/ingress/http"
PROVIDERS = "src/holdfast/providers"

ACCESS = (
    Fault(
        "a revoked key is let in",
        f"{HTTP}/auth.py",
        "            if row.revoked_at is None\n",
        "",
        ("tests/unit/ingress/test_access.py",),
    ),
    Fault(
        "revoking the last key opens the gateway",
        f"{HTTP}/auth.py",
        "self._is_locked = self._is_locked or bool(rows)",
        "self._is_locked = any(row.revoked_at is None for row in rows)",
        ("tests/unit/ingress/test_access.py",),
    ),
    Fault(
        "metrics are shown to everybody with a key",
        f"{HTTP}/auth.py",
        "if request.path in ADMIN_PATHS and not caller.is_admin:",
        "if False:",
        ("tests/unit/ingress/test_access.py",),
    ),
    Fault(
        "a web page may name the gateway by another name",
        f"{HTTP}/auth.py",
        "        if name not in self._hosts:\n",
        "        if False:\n",
        ("tests/unit/ingress/test_access.py",),
    ),
    Fault(
        "a host that ends like ours is taken for ours",
        f"{HTTP}/auth.py",
        "if name not in self._hosts:",
        "if not any(name.startswith(one) for one in self._hosts):",
        ("tests/unit/ingress/test_access.py",),
    ),
    Fault(
        "one rate limit counts the requests of all tenants",
        f"{HTTP}/limits.py",
        "        now = time.monotonic()\n",
        '        now, tenant = time.monotonic(), Tenant("")\n',
        ("tests/acceptance/test_access.py",),
    ),
    Fault(
        "a key is read from a header that was sent twice",
        f"{HTTP}/session_headers.py",
        "    if len(request.by_name) != len(request.headers):\n        _refuse_doubled(request)\n",
        "",
        ("tests/unit/ingress/test_session_headers.py",),
    ),
)

WIRE = (
    Fault(
        "pipelined requests are answered newest first",
        f"{HTTP}/wire.py",
        "self._start(self.pipeline.pop())",
        "self._start(self.pipeline.popleft())",
        ("tests/acceptance/test_wire.py",),
    ),
    Fault(
        "a request for an upgrade has its body read as requests",
        f"{HTTP}/wire.py",
        "if parser.should_upgrade() and self._is_diverted(method):",
        "if False and self._is_diverted(method):",
        ("tests/acceptance/test_wire.py",),
    ),
    Fault(
        "headers may break a line of the answer",
        f"{HTTP}/exchange.py",
        'if head.translate(None, _FIT) != b"\\r\\n" * (len(lines) + 2):',
        "if False:",
        ("tests/unit/ingress/test_exchange.py",),
    ),
)

FAILURES = (
    Fault(
        "our own key's refusal is told as the caller's",
        f"{PROVIDERS}/failures.py",
        "status=502 if status in (401, 403) else status,",
        "status=status,",
        ("tests/unit/providers/test_failures.py",),
    ),
    Fault(
        "secrets in a provider's words are passed on",
        f"{PROVIDERS}/failures.py",
        """    return ProviderFailure(
        redact(message[:MAX_MESSAGE]),
        failure_class=found,
        # Our key""",
        """    return ProviderFailure(
        message[:MAX_MESSAGE],
        failure_class=found,
        # Our key""",
        ("tests/integration/test_odd_servers.py",),
    ),
    Fault(
        "a stream that broke off is taken for whole",
        f"{PROVIDERS}/openai_responses.py",
        """        if output.ending is None:
            raise broken(""",
        """        if False:
            raise broken(""",
        ("tests/unit/providers/test_truncation.py",),
    ),
    Fault(
        "a cut answer is taken for whole",
        f"{PROVIDERS}/connection.py",
        "return not has_length and self.status not in _BODILESS",
        "return self.status not in _BODILESS",
        ("tests/unit/providers/test_truncation.py", "tests/unit/providers/test_http.py"),
    ),
)

OPAQUE = (
    Fault(
        "sealed content goes to a maker that did not seal it",
        f"{PROVIDERS}/origin.py",
        "if isinstance(marked, str) and marked.startswith(start):",
        "if isinstance(marked, str) and marked.startswith(_MARK):",
        ("tests/unit/providers/test_replay.py",),
    ),
    Fault(
        "sealed content is sent again after it was refused",
        f"{PROVIDERS}/replay.py",
        "return self.maker.unmark(content) if self.is_opaque_allowed else None",
        "return self.maker.unmark(content)",
        ("tests/unit/providers/test_replay.py", "tests/integration/test_heals.py"),
    ),
    Fault(
        "reasoning that broke off is sent",
        f"{PROVIDERS}/replay.py",
        "if kind in _SEALED and (head.status in _UNFINISHED or not is_sealed):",
        "if kind in _SEALED and not is_sealed:",
        ("tests/unit/providers/test_replay.py",),
    ),
    Fault(
        "a server that ignores what it was asked to remember is believed",
        f"{PROVIDERS}/kept.py",
        "return usage.input_tokens >= (alone + together) / 2",
        "return True",
        ("tests/integration/test_integrity.py", "tests/integration/test_state_modes.py"),
    ),
    Fault(
        "an event that is cut between CR and LF is lost or doubled",
        f"{PROVIDERS}/sse.py",
        '            chunk = chunk.removeprefix(b"\\n")\n',
        "",
        ("tests/unit/providers/test_sse.py",),
    ),
)

EDGE_FAULTS = (*ACCESS, *WIRE, *FAILURES, *OPAQUE)
