"""Open the configured channels; a platform's code is imported only if it is used."""

from collections.abc import Sequence
from importlib.util import find_spec

from holdfast.channels.settings import ChannelSettings
from holdfast.core.errors import InvalidSetting
from holdfast.ports.channel import Channel
from holdfast.ports.http_client import HttpCaller


def open_channel(settings: ChannelSettings, http: HttpCaller) -> Channel:
    """Return the channel of a `[[channel]]` table."""
    match settings.kind:
        case "telegram":
            from holdfast.channels.telegram.channel import TelegramChannel

            _require(settings, "markdown_it")
            return TelegramChannel(settings, http)
        case "slack":
            _require(settings, "slack_sdk", "aiohttp", "markdown_it")
            from holdfast.channels.slack.channel import SlackChannel

            return SlackChannel(settings, http)
        case "signal":
            _require(settings, "markdown_it")
            from holdfast.channels.signal.channel import SignalChannel

            return SignalChannel(settings, http)


def _require(settings: ChannelSettings, *modules: str) -> None:
    """Raise if a platform's packages are not installed, before anything is received."""
    if any(find_spec(module) is None for module in modules):
        raise InvalidSetting(
            f"channel {settings.name}: install the packages of its platform with "
            f"pip install 'holdfast[{settings.kind}]'"
        )


def open_channels(
    settings: Sequence[ChannelSettings], http: HttpCaller
) -> list[tuple[ChannelSettings, Channel]]:
    """Return every configured channel with its settings."""
    return [(channel, open_channel(channel, http)) for channel in settings]
