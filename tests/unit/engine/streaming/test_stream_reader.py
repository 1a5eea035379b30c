"""A reader of a stream: where it reads on, and where it ends."""

from msgspec.structs import replace

from holdfast.core.ids import DEFAULT_TENANT
from holdfast.engine.streaming.live_response import LiveResponses
from holdfast.engine.streaming.response_records import ResponseRecords
from holdfast.engine.streaming.stream_reader import StreamReader
from tests.in_process import open_gateway
from tests.unit.engine.streaming.test_live_response import delta, live


async def test_a_reader_stays_with_its_run_while_another_one_answers_the_same_request() -> None:
    lives, lost, resumed = LiveResponses(), live(), live()
    lives.add(lost)
    lost.publish([delta("one ")])
    async with open_gateway() as gateway:
        records = ResponseRecords(gateway.engine.read)
        reader = StreamReader(records, lives, DEFAULT_TENANT, lost.id)
        assert await reader.take(0.001) == lost.after(-1, 1)
        lives.add(resumed)
        resumed.publish([delta("four "), delta("five")])
        assert await reader.take(0.001) == ()
        lost.end(replace(lost.facts, status="failed"))
        assert await reader.take(0.001) == lost.after(0, 1)
        assert await reader.take(0.001) is None
