"""The control API under /_sim: faults, scripts, barriers, expiry, time and the record.

Its requests are not recorded and need no key.
"""

from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from holdfast.simulator.delivery.http_outlet import Send
from holdfast.simulator.faults.catalogue import CATALOGUE
from holdfast.simulator.faults.matching import Match
from holdfast.simulator.faults.quantities import Count, Seconds
from holdfast.simulator.state.barriers import Barrier
from holdfast.simulator.state.json import Json, NotJson, decode_object, encode
from holdfast.simulator.state.scenario import (
    BarrierSpec,
    InvalidScenario,
    Script,
    convert,
    fault_of,
)
from holdfast.simulator.state.world import World

CONTROL_PREFIX = "/_sim"
MAX_WAIT_SECONDS = 60.0


def is_control(path: str) -> bool:
    """Return whether `path` belongs to the control API."""
    return path == CONTROL_PREFIX or path.startswith(f"{CONTROL_PREFIX}/")


class ListeningServer(Protocol):
    """The server's listening socket, which a test may close."""

    def refuse(self, connections: int) -> None:
        """Reset the next `connections` connections."""
        ...

    async def shut(self, seconds: float | None) -> None:
        """Stop listening for `seconds`, or until `open` is called."""
        ...

    async def open(self) -> None:
        """Listen again."""
        ...


class _ControlError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _ForgetOrder(msgspec.Struct, forbid_unknown_fields=True):
    id: str | None = None
    account: str | None = None


class _ClockOrder(msgspec.Struct, forbid_unknown_fields=True):
    advance_seconds: int


class _ReleaseOrder(msgspec.Struct, forbid_unknown_fields=True):
    count: Count | None = None


class _RefuseOrder(msgspec.Struct, forbid_unknown_fields=True):
    connections: Count


class _ListenOrder(msgspec.Struct, forbid_unknown_fields=True):
    open: bool
    seconds: Seconds | None = None


class Control:
    """The control API of one simulator."""

    def __init__(self, world: World, listener: ListeningServer) -> None:
        self._world = world
        self._listener = listener

    async def answer(self, scope: dict[str, Any], raw: bytes, send: Send) -> None:
        """Answer one control request; invalid input gets a one-line error."""
        status, kind = 200, b"application/json"
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        parts = [part for part in scope["path"].split("/") if part][1:]
        try:
            if parts == ["record.jsonl"] and scope["method"] == "GET":
                body = self._world.record.as_jsonl(_match(query), after=_after(query))
                kind = b"application/x-ndjson"
            else:
                body = encode(await self._dispatch(scope["method"], parts, query, raw))
        except _ControlError as exc:
            status, body = exc.status, encode({"error": str(exc)})
        except (InvalidScenario, NotJson) as exc:
            status, body = 400, encode({"error": str(exc)})
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _dispatch(
        self, method: str, parts: list[str], query: dict[str, str], raw: bytes
    ) -> Json:
        match (method, parts):
            case ("GET", []):
                return self._state()
            case (_, ["barriers", *rest]):
                return await self._barriers(method, rest, query, raw)
            case (_, ["faults", *rest]):
                return self._faults(method, rest, raw)
            case (_, ["record"]):
                return self._record(method, query)
            case (_, ["connections" | "listening"]):
                return await self._control_listener(method, parts[0], raw)
            case ("POST", [order]):
                return self._order(order, raw)
        raise _ControlError(404, f"no control endpoint {method} {CONTROL_PREFIX}/{'/'.join(parts)}")

    def _state(self) -> Json:
        world = self._world
        return {
            "profile": world.profile.name,
            "seed": world.scenario.seed,
            "calls": world.calls,
            "accounts": {
                key: {
                    "responses": len(account.responses),
                    "items": len(account.items),
                    "conversations": len(account.conversations),
                    "completions": len(account.completions),
                }
                for key, account in world.accounts.items()
            },
            "faults": [rule.as_json() for rule in world.faults.values()],
            "barriers": [barrier.as_json() for barrier in world.barriers.barriers.values()],
            "catalogue": sorted(CATALOGUE),
        }

    async def _barriers(
        self, method: str, rest: list[str], query: dict[str, str], raw: bytes
    ) -> Json:
        barriers = self._world.barriers
        match (method, rest):
            case ("GET", []):
                return {"barriers": [each.as_json() for each in barriers.barriers.values()]}
            case ("POST", []):
                spec = convert(decode_object(raw), BarrierSpec)
                if spec.name is not None and spec.name in barriers.barriers:
                    raise _ControlError(409, f"barrier {spec.name!r} already exists")
                return barriers.add(spec).as_json()
            case ("DELETE", []):
                return {"released": barriers.clear()}
            case ("GET", [name]):
                return await self._await_held(self._barrier(name), query)
            case ("POST", [name, "release"]):
                count = convert(decode_object(raw), _ReleaseOrder).count
                return {"released": barriers.release(self._barrier(name), count)}
            case ("DELETE", [name]):
                return {"released": barriers.remove(self._barrier(name))}
        raise _ControlError(404, f"no control endpoint {method} {CONTROL_PREFIX}/barriers")

    def _barrier(self, name: str) -> Barrier:
        found = self._world.barriers.barriers.get(name)
        if found is None:
            raise _ControlError(404, f"no barrier {name!r}")
        return found

    async def _await_held(self, barrier: Barrier, query: dict[str, str]) -> Json:
        wanted = _number(query, "held", 0)
        if wanted:
            seconds = min(_number(query, "wait_seconds", 10.0), MAX_WAIT_SECONDS)
            if not await self._world.barriers.wait_held(barrier, int(wanted), seconds):
                raise _ControlError(
                    408,
                    f"barrier {barrier.id!r} holds {len(barrier.held)} calls, not {wanted:g}, "
                    f"after {seconds:g} s",
                )
        return barrier.as_json()

    def _faults(self, method: str, rest: list[str], raw: bytes) -> Json:
        world = self._world
        match (method, rest):
            case ("GET", []):
                return {"faults": [rule.as_json() for rule in world.faults.values()]}
            case ("POST", []):
                return world.add_fault(fault_of(decode_object(raw), where="fault")).as_json()
            case ("DELETE", []):
                count = len(world.faults)
                world.faults.clear()
                return {"removed": count}
            case ("DELETE", [rule_id]) if rule_id in world.faults:
                del world.faults[rule_id]
                return {"removed": 1}
        raise _ControlError(404, f"no fault {'/'.join(rest)!r} to {method}")

    def _record(self, method: str, query: dict[str, str]) -> Json:
        record = self._world.record
        if method == "DELETE":
            record.clear()
            return {}
        if method != "GET":
            raise _ControlError(405, f"the record cannot be changed with {method}")
        return {"requests": list(record.find(_match(query), after=_after(query)))}

    async def _control_listener(self, method: str, name: str, raw: bytes) -> Json:
        if method != "POST":
            raise _ControlError(405, f"{name} takes POST")
        body = decode_object(raw)
        if name == "connections":
            order = convert(body, _RefuseOrder)
            self._listener.refuse(order.connections)
            return {"refusing": order.connections}
        listen = convert(body, _ListenOrder)
        if listen.open:
            await self._listener.open()
        else:
            await self._listener.shut(listen.seconds)
        return {"open": listen.open}

    def _order(self, order: str, raw: bytes) -> Json:
        world, body = self._world, decode_object(raw)
        match order:
            case "answers":
                world.add_script(convert(body, Script))
                return {"answers": len(world.scripts)}
            case "forget":
                return {"forgotten": world.forget(**msgspec.structs.asdict(_forget_order(body)))}
            case "clock":
                world.clock.advance(convert(body, _ClockOrder).advance_seconds)
                return {"offset_seconds": world.clock.offset_seconds}
            case "release":
                world.barriers.release_hanging()
                return {"released": world.barriers.clear()}
            case "reset":
                world.reset()
                return {}
        raise _ControlError(404, f"no control endpoint POST {CONTROL_PREFIX}/{order}")


def _forget_order(body: Json) -> _ForgetOrder:
    return convert(body, _ForgetOrder)


def _match(query: dict[str, str]) -> Match:
    fields = {key: value for key, value in query.items() if key != "after"}
    return convert(fields, Match, from_text=True)


def _after(query: dict[str, str]) -> int:
    return int(_number(query, "after", 0))


def _number(query: dict[str, str], name: str, default: float) -> float:
    try:
        number = float(query.get(name, default))
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise InvalidScenario(f"{name}: expected a number from 0 on, got {query[name]!r}")
    return number
