"""Summaries in a simulated process: requested explicitly, or made so that a request fits.

A summary repeats the text that its writer saw, so that foreign text in it is detected.
"""

import asyncio
import hashlib
from typing import Any

from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.session import Session
from holdfast.engine.embedded.function_model import FunctionModel
from holdfast.engine.model_call.compaction_turns import CompactionRequest, CompactionTurns
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ContextSettings
from tests.simulation.plan import Op
from tests.simulation.tools import Witness

BY_MODEL = ContextSettings(mode="model", reserve_tokens=0, summary_tokens=50)
BY_RULE = ContextSettings(mode="elide", reserve_tokens=0, summary_tokens=50)


async def compact(gateway: Gateway, op: Op, session_id: SessionId, witness: Witness) -> Session:
    """Compact a session with a summary written by a model or by rule."""
    settings = BY_MODEL if op.choice % 2 else BY_RULE
    writer = FunctionModel(_writer(op, witness))
    compactor = Compactor(gateway, lambda _: writer, settings=settings)
    wanted = CompactionRequest(
        tenant=Tenant(op.tenant),
        session_id=session_id,
        model="sim",
        on_busy=op.on_busy,
        idempotency_key=op.idempotency_key,
        body_hash=hashlib.blake2b(session_id.encode(), digest_size=16).digest(),
    )
    return await CompactionTurns(gateway, compactor).compact(wanted)


def _writer(op: Op, witness: Witness) -> Any:
    script = op.script
    assert script is not None

    async def write(items: list[dict[str, Any]]) -> str:
        with witness("a compaction"):
            await asyncio.sleep(script.seconds)
        if script.ending == "fail":
            raise ProviderFailure("no summary", failure_class="terminal")
        return repeated(items[-1]["content"][0]["text"])

    return write


def repeated(text: str) -> str:
    """Return a summary: the end of the text."""
    return f"sum {text[-60:]}"
