"""Many beside each other, or one alone."""

import asyncio

from holdfast.stores.postgres.rw_gate import ReadWriteGate


async def test_one_that_goes_alone_waits_for_all_others_to_have_gone() -> None:
    gate = ReadWriteGate()
    is_alone = asyncio.Event()

    async def alone() -> None:
        async with gate.exclusive():
            assert gate.is_taken
            is_alone.set()

    with gate.shared():
        with gate.shared():
            waiting = asyncio.create_task(alone())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not is_alone.is_set()
        assert not gate.is_empty
    await waiting
    assert is_alone.is_set()
    assert gate.is_empty


async def test_two_that_go_alone_follow_each_other_also_where_one_fails() -> None:
    gate = ReadWriteGate()
    inside = 0

    async def alone(fails: bool) -> None:
        nonlocal inside
        async with gate.exclusive():
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            if fails:
                raise RuntimeError

    done = await asyncio.gather(alone(True), alone(False), alone(True), return_exceptions=True)
    assert [type(one) for one in done] == [RuntimeError, type(None), RuntimeError]
    assert gate.is_empty


async def test_one_that_is_cancelled_while_it_waits_is_in_nobodys_way() -> None:
    gate = ReadWriteGate()

    async def alone() -> None:
        async with gate.exclusive():
            pass

    with gate.shared():
        waiting = asyncio.create_task(alone())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert gate.is_empty
    await alone()
