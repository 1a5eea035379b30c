"""Simulated chat platforms, for tests of channels and of gateways with channels."""

from holdfast.simulator.platforms.server import PlatformAnswer
from holdfast.simulator.platforms.signal import SignalMessage, SignalSimulator
from holdfast.simulator.platforms.slack import SlackSimulator
from holdfast.simulator.platforms.slack_api import PostedMessage
from holdfast.simulator.platforms.telegram import SentMessage, TelegramSimulator
from holdfast.simulator.platforms.webhooks import WebhookAttempt, WebhookReceiver

__all__ = [
    "PlatformAnswer",
    "PostedMessage",
    "SentMessage",
    "SignalMessage",
    "SignalSimulator",
    "SlackSimulator",
    "TelegramSimulator",
    "WebhookAttempt",
    "WebhookReceiver",
]
