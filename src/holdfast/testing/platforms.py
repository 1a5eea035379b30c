"""Simulated chat platforms, for tests of channels and of gateways with channels."""

from holdfast.simulator.platforms.server import PlatformAnswer
from holdfast.simulator.platforms.telegram import SentMessage, TelegramSimulator
from holdfast.simulator.platforms.webhooks import WebhookAttempt, WebhookReceiver

__all__ = [
    "PlatformAnswer",
    "SentMessage",
    "TelegramSimulator",
    "WebhookAttempt",
    "WebhookReceiver",
]
