"""Faults in the HTTP API and the providers."""

from tests.faults.fault import Fault

HTTP = "src/holdfast/http"
PROVIDERS = "src/holdfast/providers"

ACCESS = (
    Fault(
        "a web page changes something while no key is needed",
        f"{HTTP}/request/auth.py",
        "                check_origin(request, self._origins)\n",
        "                pass\n",
        ("tests/unit/http/test_access.py",),
    ),
    Fault(
        "everybody is let in while the keys cannot be read",
        f"{HTTP}/request/auth.py",
        "            if not self._is_loaded:\n                raise\n",
        "",
        ("tests/unit/http/request/test_auth.py",),
    ),
    Fault(
        "a pass-through is paid for although its client has left",
        f"{HTTP}/api/relay.py",
        "    left = asyncio.ensure_future(request.wait_disconnected(or_half_closed=True))\n",
        "    left = asyncio.ensure_future(asyncio.Event().wait())\n",
        ("tests/integration/test_left_pass_throughs.py",),
    ),
    Fault(
        "a revoked key goes on reading",
        f"{HTTP}/request/auth.py",
        "            except NotAuthenticated:\n                return\n",
        "            except NotAuthenticated:\n                continue\n",
        ("tests/unit/http/test_access.py",),
    ),
    Fault(
        "a revoked key is let in",
        f"{HTTP}/request/auth.py",
        "            if row.revoked_at is None\n",
        "",
        ("tests/unit/http/test_access.py",),
    ),
    Fault(
        "revoking the last key opens the gateway",
        f"{HTTP}/request/auth.py",
        "self._requires_key = self._requires_key or bool(rows)",
        "self._requires_key = any(row.revoked_at is None for row in rows)",
        ("tests/unit/http/test_access.py",),
    ),
    Fault(
        "metrics are shown to everybody with a key",
        f"{HTTP}/request/auth.py",
        "if request.path in ADMIN_PATHS and not caller.is_admin:",
        "if False:",
        ("tests/unit/http/test_access.py",),
    ),
    Fault(
        "a web page may name the gateway by another name",
        f"{HTTP}/request/auth.py",
        "if match is None or match[1] not in self._hosts:",
        "if match is None:",
        ("tests/unit/http/test_access.py",),
    ),
    Fault(
        "a host that ends like ours is taken for ours",
        f"{HTTP}/request/auth.py",
        "if match is None or match[1] not in self._hosts:",
        "if match is None or not any(match[1].startswith(one) for one in self._hosts):",
        ("tests/unit/http/test_access.py",),
    ),
    Fault(
        "one rate limit counts the requests of all tenants",
        f"{HTTP}/request/auth.py",
        "        now = time.monotonic()\n        tokens,",
        '        now, tenant = time.monotonic(), Tenant("")\n        tokens,',
        ("tests/unit/http/test_metrics_and_limits.py",),
    ),
    Fault(
        "a key is read from a header that was sent twice",
        f"{HTTP}/request/session_headers.py",
        "    if len(request.by_name) != len(request.headers):\n"
        "        _reject_duplicates(request)\n",
        "",
        ("tests/unit/http/request/test_session_headers.py",),
    ),
)

WIRE = (
    Fault(
        "a stop waits for a request that never ends",
        f"{HTTP}/server/run.py",
        "            for task in state.tasks:\n                task.cancel()\n",
        "",
        ("tests/unit/http/server/test_run.py",),
    ),
    Fault(
        "pipelined requests are answered newest first",
        f"{HTTP}/server/protocol.py",
        "following = self.pipeline.pop()",
        "following = self.pipeline.popleft()",
        ("tests/acceptance/test_wire.py",),
    ),
    Fault(
        "a request for an upgrade has its body read as requests",
        f"{HTTP}/server/protocol.py",
        "if parser.should_upgrade() and self._is_upgrade(method):",
        "if False and self._is_upgrade(method):",
        ("tests/acceptance/test_wire.py",),
    ),
    Fault(
        "headers may break a line of the answer",
        f"{HTTP}/server/exchange.py",
        'if head.translate(None, _ALLOWED) != b"\\r\\n" * (len(lines) + 2):',
        "if False:",
        ("tests/unit/http/server/test_exchange.py",),
    ),
)

FAILURES = (
    Fault(
        "outputs after a response leave out a call",
        f"{HTTP}/request/submit_turn.py",
        "if missing and len(missing) < len(open_calls):",
        "if False:",
        ("tests/unit/http/test_tool_outputs.py",),
    ),
    Fault(
        "structured output keeps its lane",
        "src/holdfast/engine/turns/executor.py",
        "if command.pending_calls and not run.turn.step:",
        "if False:",
        ("tests/unit/http/test_tool_outputs.py",),
    ),
    Fault(
        "our own key's refusal is told as the caller's",
        f"{PROVIDERS}/errors.py",
        "status=502 if is_unauthorized else 400",
        "status=400",
        ("tests/unit/providers/test_errors.py",),
    ),
    Fault(
        "secrets in a provider's words are passed on",
        f"{PROVIDERS}/http/upstream.py",
        "        failure.message = redact(failure.message, key)\n",
        "",
        ("tests/integration/test_odd_servers.py",),
    ),
    Fault(
        "a stream that broke off is taken for whole",
        f"{PROVIDERS}/openai_responses/adapter.py",
        """        if output.finished is None:
            raise broken(""",
        """        if False:
            raise broken(""",
        ("tests/unit/providers",),
    ),
    Fault(
        "a cut answer is taken for whole",
        f"{PROVIDERS}/http/connection.py",
        "return not has_length and self.status not in _NO_BODY",
        "return self.status not in _NO_BODY",
        ("tests/unit/providers/http", "tests/unit/providers"),
    ),
)

OPAQUE = (
    Fault(
        "sealed content goes to a maker that did not seal it",
        f"{PROVIDERS}/items/seal_owner.py",
        "if isinstance(marked, str) and marked.startswith(start):",
        "if isinstance(marked, str) and marked.startswith(_MARK):",
        ("tests/unit/providers/items/test_replay.py",),
    ),
    Fault(
        "sealed content is sent again after it was refused",
        f"{PROVIDERS}/items/replay.py",
        "return self.owner.unmark(content) if self.is_opaque_allowed else None",
        "return self.owner.unmark(content)",
        ("tests/unit/providers/items/test_replay.py", "tests/integration/test_heals.py"),
    ),
    Fault(
        "reasoning that broke off is sent",
        f"{PROVIDERS}/items/replay.py",
        "if kind in _ENCRYPTED and (head.status in _UNFINISHED or not is_encrypted):",
        "if kind in _ENCRYPTED and not is_encrypted:",
        ("tests/unit/providers/items/test_replay.py",),
    ),
    Fault(
        "a server that ignores what it was asked to remember is believed",
        f"{PROVIDERS}/openai_responses/upstream_state.py",
        "return usage.input_tokens >= (new + total) / 2",
        "return True",
        ("tests/integration/test_integrity.py", "tests/integration/test_state_modes.py"),
    ),
    Fault(
        "an event that is cut between CR and LF is lost or doubled",
        f"{PROVIDERS}/http/sse.py",
        '            chunk = chunk.removeprefix(b"\\n")\n',
        "",
        ("tests/unit/providers/http/test_sse.py",),
    ),
)

BOUNDS = (
    Fault(
        "a tenant that is full stores what comes from chats",
        "src/holdfast/channels/inbound.py",
        "limits=await storage.limits(self._tenant, limits),",
        "limits=limits,",
        ("tests/integration/test_refused_messages.py",),
    ),
    Fault(
        "a tenant that is full stores what its schedules ask",
        "src/holdfast/schedules/service.py",
        "limits=await gateway.storage.limits(tenant, gateway.limits),",
        "limits=gateway.limits,",
        ("tests/integration/test_schedules.py",),
    ),
    Fault(
        "trailers of any length are read",
        f"{HTTP}/server/protocol.py",
        "elif self._framing_bytes > self.limits.head_bytes and self._is_receiving_body():",
        "elif False:",
        ("tests/unit/http/server/test_connection_limits.py",),
    ),
    Fault(
        "a request may have any number of items",
        f"{HTTP}/request/decoding.py",
        "    if len(entries) > max_items:\n",
        "    if False:\n",
        ("tests/unit/http/request/test_body_decoder.py",),
    ),
    Fault(
        "an answer of an upstream may be of any length",
        f"{PROVIDERS}/http/client.py",
        "                if size > MAX_BODY_BYTES:\n",
        "                if False:\n",
        ("tests/unit/providers/http/test_limits.py",),
    ),
    Fault(
        "answers of upstreams are held whatever their size",
        f"{PROVIDERS}/http/answer_budget.py",
        "        if size > self._free:\n",
        "        if False:\n",
        ("tests/unit/providers/http/test_answer_budget.py",),
    ),
)

AGENTS = (
    Fault(
        "an agent that does not start is started by every turn",
        f"{PROVIDERS}/cli_agents/launcher.py",
        "if failed == key and time.monotonic() < until:",
        "if False:",
        ("tests/cli_agents/test_acp_start.py",),
    ),
    Fault(
        "an agent keeps its transcript of an erased item",
        "src/holdfast/engine/sessions/gateway.py",
        "is_erasure = isinstance(command, Delete) or command.erase",
        "is_erasure = isinstance(command, Delete)",
        ("tests/cli_agents/test_erasure.py",),
    ),
    Fault(
        "a clean-up waits for a turn",
        f"{PROVIDERS}/cli_agents/provider.py",
        "if directory is None or session_id in self._locks:",
        "if directory is None:",
        ("tests/cli_agents/test_time_limits.py",),
    ),
    Fault(
        "the files of an agent that serves another store are deleted",
        f"{PROVIDERS}/cli_agents/provider.py",
        "        if session is None:\n            return\n        if session.is_erased:\n",
        "        if session is None or session.is_erased:\n",
        ("tests/cli_agents/test_erasure.py",),
    ),
)


MEMORY = (
    Fault(
        "a body counts what it declares before it arrives",
        f"{HTTP}/server/types.py",
        "size := min(size + STEP_BYTES, length)",
        "size := length",
        ("tests/acceptance/test_slow_uploads.py",),
    ),
    Fault(
        "one tenant takes the whole memory for bodies",
        f"{HTTP}/server/memory_budget.py",
        "return free >= self._share and next",
        "return next",
        ("tests/unit/http/request/test_body_decoder.py",),
    ),
    Fault(
        "an unsigned webhook may be as large as any body",
        f"{HTTP}/admin/channels.py",
        "        request.max_body_bytes = min(request.max_body_bytes, MAX_WEBHOOK_BYTES)\n",
        "",
        ("tests/acceptance/test_slow_uploads.py",),
    ),
    Fault(
        "a body may stop for as long as it came fast before",
        f"{HTTP}/server/protocol.py",
        "latest = max(self._body_deadline, now + limits.body_ahead_seconds)",
        'latest = float("inf")',
        ("tests/unit/http/server/test_connection_limits.py",),
    ),
    Fault(
        "a page is as large as its entries",
        f"{HTTP}/request/pagination.py",
        "        if shown and size > MAX_PAGE_BYTES:\n            break\n",
        "",
        ("tests/unit/http/test_page_sizes.py",),
    ),
    Fault(
        "all entries of a page are read, however large they are",
        f"{HTTP}/request/pagination.py",
        "if size > MAX_PAGE_BYTES and len(found) > 1:",
        "if False:",
        ("tests/unit/http/test_page_sizes.py",),
    ),
    Fault(
        "a large response waits in the transport",
        f"{HTTP}/server/exchange.py",
        "        if len(body) > PIECE_BYTES and self.method",
        "        if False and self.method",
        ("tests/unit/http/server/test_connection_limits.py",),
    ),
    Fault(
        "a reply is read whether there is room for it or not",
        f"{HTTP}/app.py",
        "            if not is_read or endpoint is None:",
        "            if True:",
        ("tests/unit/http/test_page_sizes.py",),
    ),
    Fault(
        "a client that left goes on waiting for memory",
        f"{HTTP}/server/exchange.py",
        "is_gone = self.disconnected or (self.is_half_closed and self.reply_held is not None)",
        "is_gone = False",
        ("tests/unit/http/test_page_sizes.py",),
    ),
    Fault(
        "WebSocket messages that are not complete are not counted",
        f"{HTTP}/server/uvicorn_websocket.py",
        "        elif self._waiting is None:\n            self._count(pending)\n",
        "",
        ("tests/acceptance/test_slow_uploads.py",),
    ),
)

APIS = (
    Fault(
        "a server that was replaced is not asked again",
        f"{PROVIDERS}/api_choice.py",
        "        self.upstream.on_not_found = self._doubt\n",
        "",
        ("tests/integration/test_api_detection.py",),
    ),
    Fault(
        "every unknown model makes the gateway ask its server what it has",
        f"{PROVIDERS}/api_choice.py",
        "(is_new and not failure.is_missing_path)",
        "False",
        ("tests/integration/test_api_detection.py",),
    ),
    Fault(
        "a server that lacks a path in JSON is taken to have it",
        f"{PROVIDERS}/http/api_detection.py",
        'return "absent" if is_missing else "unknown"',
        'return "present"',
        ("tests/integration/test_api_detection.py",),
    ),
    Fault(
        "a server that did not answer is taken to lack the path",
        f"{PROVIDERS}/http/api_detection.py",
        'if reply.status is not None else "unknown"',
        'if reply.status is not None else "absent"',
        ("tests/integration/test_api_detection.py",),
    ),
    Fault(
        "a request for Chat Completions continues a state that it is not sent with",
        f"{PROVIDERS}/api_choice.py",
        "        if self.needs_chat(chat_fields):\n            return None\n",
        "",
        ("tests/integration/test_chat_only_fields.py",),
    ),
)

EXPORTS = (
    Fault(
        "a line end that a client sent ends a line of an export",
        f"{HTTP}/api/export.py",
        '    if b"\\n" in line or b"\\r" in line:\n',
        "    if False:\n",
        ("tests/contract/test_export_pages.py",),
    ),
    Fault(
        "an export keeps a session that was erased between its parts",
        f"{HTTP}/api/export.py",
        "    if await read.find_session(tenant, session_id=session.id) is None:\n",
        "    if False:\n",
        ("tests/contract/test_export_pages.py",),
    ),
    Fault(
        "the parts of an exported session are of several versions",
        "src/holdfast/stores/sql/export.py",
        "where l.session = ?1 and l.n <= ?4 order by",
        "where l.session = ?1 and ?4 = ?4 order by",
        ("tests/contract/test_export_pages.py",),
    ),
    Fault(
        "an export that is continued keeps the session that was cut",
        "src/holdfast/cli/output/export_file.py",
        "        self._cut(found[0][0])\n",
        "",
        ("tests/unit/cli/output/test_export_file.py",),
    ),
    Fault(
        "a stream that broke is taken for a complete export",
        "src/holdfast/cli/client/export_stream.py",
        'kind = StreamReached if value["has_more"] else _Last',
        "kind = _Last",
        ("tests/cli/test_bulk_export.py",),
    ),
)

DOCTOR = (
    Fault(
        "an ordinary check reads the whole log",
        "src/holdfast/doctor/store_checks.py",
        "for start in range(0 if self.is_deep else first, last + 1, SLICE):",
        "for start in range(0, last + 1, SLICE):",
        ("tests/contract/test_doctor_reach.py",),
    ),
    Fault(
        "an ordinary check reads every session",
        "src/holdfast/doctor/store_checks.py",
        "return parts[: self.coverage.most_sessions]",
        "return parts",
        ("tests/contract/test_doctor_reach.py",),
    ),
    Fault(
        "one check that fails is the end of all",
        "src/holdfast/doctor/store_checks.py",
        """    except StoreClosed:
        raise
""",
        """    except StoreError:
        raise
""",
        ("tests/contract/test_doctor_reach.py",),
    ),
    Fault(
        "a check that was not finished is passed over",
        "src/holdfast/doctor/store_checks.py",
        """        detail = f"{name}: {exc.message}"
        yield""",
        """        detail = f"{name}: {exc.message}"
        assert detail
        return
        yield""",
        ("tests/contract/test_doctor_reach.py",),
    ),
)

EDGE_FAULTS = (
    *DOCTOR, *APIS, *EXPORTS, *ACCESS, *WIRE, *BOUNDS, *FAILURES, *OPAQUE, *AGENTS, *MEMORY,
)  # fmt: skip
