"""A channel that is connected to its simulated platform, for the channel contract."""

from typing import Any, Generic, TypeVar

from holdfast.ports.channel import Channel

ChannelType = TypeVar("ChannelType", bound=Channel)


class SimulatedChannel(Generic[ChannelType]):
    """An adapter, and methods to act as the people and servers of its platform."""

    def __init__(self, simulator: Any, channel: ChannelType) -> None:
        self.simulator = simulator
        self.channel = channel

    def say(self, text: str) -> None:
        """Send a direct message as a person."""
        self.simulator.say(text)

    def repeat_last(self) -> None:
        """Deliver the last message again."""
        self.simulator.deliver_again()

    def texts(self) -> list[str]:
        """Return the messages that arrived."""
        texts: list[str] = self.simulator.texts()
        return texts

    def go_away(self) -> None:
        """Stop answering."""
        self.simulator.down()
