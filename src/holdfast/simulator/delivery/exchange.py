"""One call from its arrival to the last byte of its answer."""

import asyncio
from collections.abc import Callable

from holdfast.simulator.delivery.errors import Problem, anthropic_error, invalid, openai_error
from holdfast.simulator.delivery.injection import injected_problem
from holdfast.simulator.delivery.outlet import Outlet
from holdfast.simulator.delivery.transmission import SimulatedTransmission, wait_until_gone
from holdfast.simulator.faults.effects import Drop, Effect, Hang, Late, Slow
from holdfast.simulator.state.barriers import Barrier
from holdfast.simulator.state.call import ApiAnswer, Call
from holdfast.simulator.state.json import NotJson, decode_object, encode
from holdfast.simulator.state.record import RequestEntry
from holdfast.simulator.state.scenario import InvalidScenario, fault_of
from holdfast.simulator.state.world import World

Handler = Callable[[World, Call], ApiAnswer]
FAULT_HEADER = "x-sim-fault"
"""A fault for this call alone: a kind, or a JSON object with a kind and its parameters."""


async def handle_call(world: World, call: Call, handler: Handler, outlet: Outlet) -> None:
    """Answer `call` through `outlet`, with its faults applied."""
    entry = world.record.open(call)
    try:
        await _answer_with_faults(world, call, handler, outlet, entry)
    except Problem as problem:
        await _send_problem(call, problem, outlet, entry)
    finally:
        world.record.close(entry)


async def _send_problem(call: Call, problem: Problem, outlet: Outlet, entry: RequestEntry) -> None:
    entry.status, entry.fault = problem.status, problem.fault
    body = _in_dialect(call, problem)
    await outlet.send_body(problem.status, problem.headers, encode(body))


def _in_dialect(call: Call, problem: Problem) -> dict[str, object]:
    """Return the body in the form of the called API."""
    error = problem.body.get("error")
    if call.api != "messages" or "type" in problem.body or not isinstance(error, dict):
        return problem.body
    kind = "not_found_error" if problem.status == 404 else str(error.get("type"))
    return anthropic_error(str(error["message"]), kind, call.ids.new("req_011C", size=10))


async def _answer_with_faults(
    world: World, call: Call, handler: Handler, outlet: Outlet, entry: RequestEntry
) -> None:
    call.effects = _own_fault(call) + (world.matching_faults(call) if world.faults else [])
    call.script = world.script_for(call) if world.scripts else None
    held_by = world.barriers.find(call)
    if held_by:
        await world.barriers.hold(held_by, "arrival", call)
    if call.effects and await _ends_before_work(world, call, outlet):
        return
    answer = _work(world, call, handler)
    entry.status, entry.answer_id, entry.fault = answer.status, answer.id, answer.fault
    delivery = SimulatedTransmission(
        call=call,
        answer=answer,
        entry=entry,
        outlet=outlet,
        barriers=world.barriers,
        held_by=held_by,
    )
    try:
        await _finish(world, delivery, held_by)
    finally:
        answer.release()


def _own_fault(call: Call) -> list[Effect]:
    written = call.headers.get(FAULT_HEADER)
    if written is None:
        return []
    try:
        raw = decode_object(written.encode()) if written.startswith("{") else written
        return [fault_of(raw, where=FAULT_HEADER)]
    except NotJson as exc:
        message = f"{FAULT_HEADER}: not JSON: {exc}"
        raise invalid(message, FAULT_HEADER, "invalid_simulator_input") from exc
    except InvalidScenario as exc:
        raise invalid(str(exc), FAULT_HEADER, "invalid_simulator_input") from exc


async def _ends_before_work(world: World, call: Call, outlet: Outlet) -> bool:
    """Apply the faults that come before any work; return whether they ended the call."""
    slow, drop, hang = call.effect(Slow), call.effect(Drop), call.effect(Hang)
    if slow is not None and slow.before_seconds:
        await asyncio.sleep(slow.before_seconds)
    if hang is not None and hang.event is None:
        await wait_until_gone(outlet, world.barriers)
    if drop is not None and not drop.stored:
        await outlet.break_off(drop.ending)
        return True
    problem = injected_problem(call)
    if problem is not None:
        raise problem
    return False


def _work(world: World, call: Call, handler: Handler) -> ApiAnswer:
    try:
        return handler(world, call)
    except (TypeError, AttributeError, LookupError, ValueError, RecursionError) as exc:
        # Handlers do not validate every field: these errors mean a value of the wrong type.
        message = f"Invalid request: the body has a value of an unexpected type ({exc})."
        raise Problem(400, openai_error(message)) from exc


async def _finish(world: World, delivery: SimulatedTransmission, held_by: list[Barrier]) -> None:
    call, answer, outlet = delivery.call, delivery.answer, delivery.outlet
    if answer.is_background:
        await outlet.send_body(answer.status, answer.headers, encode(answer.body))
    answer.begin()
    if held_by:
        await world.barriers.hold(held_by, "running", call)
    if answer.is_background:
        delivery.commit()
        return
    drop = call.effect(Drop)
    if drop is not None:
        delivery.commit()
        await outlet.break_off(drop.ending)
        return
    if call.effect(Late):
        delivery.commit()
        await wait_until_gone(outlet, world.barriers)
    await delivery.run()
