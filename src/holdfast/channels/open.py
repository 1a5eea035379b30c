"""Open the configured channels; each platform's code loads only when it is used."""

from collections.abc import Sequence

from holdfast.channels.settings import ChannelSettings
from holdfast.ports.channel import Channel
from holdfast.ports.http_client import HttpCaller


def open_channel(settings: ChannelSettings, http: HttpCaller) -> Channel:
    """Return the channel of a `[[channel]]` table."""
    from holdfast.channels.telegram.channel import TelegramChannel

    return TelegramChannel(settings, http)


def open_channels(
    settings: Sequence[ChannelSettings], http: HttpCaller
) -> list[tuple[ChannelSettings, Channel]]:
    """Return every configured channel with its settings."""
    return [(one, open_channel(one, http)) for one in settings]
