"""Requests are proven by the digests that this version and earlier ones recorded."""

from hashlib import blake2b

from msgspec.structs import replace

from holdfast.core.model.request import hash_items
from holdfast.engine.turns.sent_requests import rebuilt_digest
from holdfast.ports.provider import ModelCall, digest_call

CALL = ModelCall(model="m", items=[b'{"type":"message"}', b'{"type":"other"}'])


def recorded_now(call: ModelCall) -> bytes:
    return digest_call(blake2b(digest_size=16, key=hash_items(call.items)), call)


def recorded_by_0_1_0(call: ModelCall) -> bytes:
    params = (
        b'["%b",{},{},true,true,false,null,0]' % call.model.encode()
    )  # what `digest_call` adds to the items
    joined = b"".join(body + b"\n" for body in call.items)
    return blake2b(joined + b"\0" + params, digest_size=16).digest()


def test_a_request_is_proven_by_the_digest_of_either_version() -> None:
    for recorded in (recorded_now(CALL), recorded_by_0_1_0(CALL)):
        assert rebuilt_digest(CALL, recorded) == recorded
    assert rebuilt_digest(CALL, None) == recorded_now(CALL)


def test_another_request_is_not_proven() -> None:
    others = (
        replace(CALL, model="n"),
        replace(CALL, items=CALL.items[:1]),
        replace(CALL, items=[*CALL.items][::-1]),
        replace(CALL, items=[b"".join(CALL.items)]),
    )
    for other in others:
        for recorded in (recorded_now(CALL), recorded_by_0_1_0(CALL)):
            assert rebuilt_digest(other, recorded) != recorded
