"""A kind of connection for each test."""

import pytest

from tests.unit.stores.sqlite.recording import RecordingConnection


@pytest.fixture
def kind() -> type[RecordingConnection]:
    """A kind of connection of this test's own."""
    return type("RecordingConnection", (RecordingConnection,), {"asked": []})
