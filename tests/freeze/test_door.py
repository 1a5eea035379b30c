"""What clients get and what the upstream gets is as recorded, byte for byte."""

import asyncio

import pytest

from tests.freeze.door import parts, see_part
from tests.freeze.recording import check


@pytest.mark.parametrize("part", parts())
def test_answers_and_upstream_requests_are_as_recorded(part: str) -> None:
    check("door", part, asyncio.run(see_part(part)))
