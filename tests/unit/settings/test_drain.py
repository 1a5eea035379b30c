"""How long a gateway drains by default."""

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.settings import ServerSettings, Settings, StoreSettings


@pytest.mark.parametrize(
    ("url", "given", "seconds"),
    [
        ("postgresql:///holdfast", None, 2.0),
        ("sqlite:///holdfast.db", None, 0.0),
        ("postgresql:///holdfast", 0.0, 0.0),
        ("sqlite:///holdfast.db", 5.0, 5.0),
    ],
)
def test_only_replicas_on_postgresql_drain_by_default(
    url: str, given: float | None, seconds: float
) -> None:
    server = ServerSettings(drain_seconds=given)
    assert Settings(store=StoreSettings(url=url), server=server).drain_seconds == seconds


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="drain_seconds"):
        ServerSettings(drain_seconds=-1.0)
