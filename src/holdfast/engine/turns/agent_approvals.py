"""Permission requests of command-line agents, handled like approvals of tools.

The agent waits in its own process, in the middle of its turn. The run ends with an approval request
that holds the lane. The answer starts the next run, which passes it to the agent. If the agent's
process has ended meanwhile, it starts again from the log and has to ask again.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.model.gateway_items import (
    GatewayApproval,
    GatewayCall,
    approval_request_id,
    client_output,
    complete,
    store_item,
)
from holdfast.core.model.items import read_item
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.synthetic_outputs import NOT_APPROVED
from holdfast.core.tools.approval_words import approval_code
from holdfast.core.tools.open_calls import find_open_calls
from holdfast.engine.model_call.caller import ModelCaller
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ToolSettings
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.engine.turns.tool_loop import UNATTENDED
from holdfast.engine.turns.tool_progress import (
    ToolTurn,
    chat_words,
    commit_step,
    join_waiting_input,
)
from holdfast.engine.turns.tool_stream import ToolSink, begin_events, end_events, request_events
from holdfast.ports.provider import Answer, PermissionRequest

APPROVED = "The call was approved. If no result of it follows, it did not run: ask again."
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class AgentApprovals:
    """Executes turns without gateway tools; the upstream may be an agent that asks permission."""

    def __init__(
        self, gateway: Gateway, model: ModelCaller, settings: ToolSettings | None = None
    ) -> None:
        self._gateway = gateway
        self._model = model
        self.approval_seconds = (settings or ToolSettings()).approval_seconds
        """How long an agent may wait for a permission."""

    async def run(
        self, run: ActiveRun, request: TurnRequest, writer: JournalWriter | None
    ) -> tuple[Answer, ToolTurn | None]:
        """Return the answer, and a `ToolTurn` if the agent waits for an approval or had one.

        The first run of a turn has nothing to settle: the executor calls its model directly.
        """
        settled: Sequence[bytes] = ()
        if run.turn.step or run.turn.attempts > 1:
            settled = await self._settle(run, writer)
        if run.turn.step and not settled:
            await join_waiting_input(self._gateway.read, run, writer)
        if run.turn.source not in UNATTENDED:
            run.approval_seconds = self.approval_seconds
        sink = self._sink(writer, len(settled)) if settled else writer
        answer = await self._model.call(run, request, sink)
        if answer.request is not None:
            return await self.pause(run, request, answer, writer, settled)
        if not settled:
            return answer, None
        items = [read_item(body) for body in answer.items]
        items += chat_words(request, settled, items, self._gateway.ids.new)
        bodies = [item.body for item in items]
        turn = ToolTurn(
            answer=replace(answer, items=bodies), output=client_output([*settled, *bodies])
        )
        return turn.answer, turn

    def _sink(self, writer: JournalWriter | None, offset: int) -> ToolSink | None:
        """Return the sink for the model's events, with indexes after those already shown."""
        if writer is None:
            return None
        return ToolSink(writer, lambda _: None, offset=offset, new_id=self._gateway.ids.new)

    async def _settle(self, run: ActiveRun, writer: JournalWriter | None) -> Sequence[bytes]:
        """Commit the answers to requests of earlier runs; a request without one is denied."""
        open_calls = find_open_calls(await run.own_items())
        completions = []
        for call in open_calls.calls:
            denial = _denial(open_calls.approvals.get(call.id))
            run.permissions[call.call_id] = denial is None
            completions.append(complete(call, APPROVED if denial is None else None, denial))
        if not completions:
            return ()
        items = [store_item(each) for each in completions]
        await commit_step(run, writer, items)
        if writer is not None:
            for index, (call, completion) in enumerate(
                zip(open_calls.calls, completions, strict=True)
            ):
                writer.write([*begin_events(call, index), *end_events(completion, index)])
            writer.begin_step()
        return [item.body for item in items]

    async def pause(
        self,
        run: ActiveRun,
        request: TurnRequest,
        answer: Answer,
        writer: JournalWriter | None,
        settled: Sequence[bytes] = (),
    ) -> tuple[Answer, ToolTurn]:
        """Commit the agent's output and its permission request; hold the lane for the answer."""
        assert answer.request is not None
        call = self._call(answer.request)
        items = [*(read_item(body) for body in answer.items), store_item(call)]
        items += chat_words(request, settled, items, self._gateway.ids.new)
        await commit_step(run, writer, items, answer)
        if writer is not None:
            place = len(client_output([*settled, *answer.items]))
            writer.write(request_events(call, place))
            writer.begin_step()
        rest = replace(answer, items=[], state=None)
        turn = ToolTurn(
            answer=rest,
            output=client_output([*settled, *(item.body for item in items)]),
            pending=(call.id,),
            hold_seconds=self.approval_seconds,
            counted=answer.usage,
        )
        return rest, turn

    def _call(self, permission: PermissionRequest) -> GatewayCall:
        approval_id = approval_request_id(self._gateway.ids.new("mcpr"))
        function = _NOT_IN_NAMES.sub("_", f"{permission.upstream}__{permission.name}")
        return GatewayCall(
            id=approval_id,
            item_id=self._gateway.ids.new("mcp"),
            call_id=permission.call_id,
            function=function[:64],
            server_label=permission.upstream,
            name=permission.name,
            arguments=permission.arguments,
            code=approval_code(approval_id),
        )


def _denial(approval: GatewayApproval | None) -> str | None:
    """Return why a call is denied, or `None` if it is allowed."""
    if approval is None or not approval.approve:
        reason = approval.reason if approval is not None else None
        return f"{NOT_APPROVED} Reason: {reason}" if reason else NOT_APPROVED
    return None
