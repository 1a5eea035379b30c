"""A gateway process between a simulated chat platform and a simulated provider."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from holdfast.simulator.platforms.signal import ACCOUNT
from holdfast.testing.platforms import SignalSimulator, SlackSimulator, TelegramSimulator
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.acceptance.stories import MODEL

BOT_TOKEN, APP_TOKEN = "42:TEST", "xapp-TEST"
SECRETS = {
    "STORY_KEY": "sk-story", "BOT_TOKEN": BOT_TOKEN, "APP_TOKEN": APP_TOKEN,
    "WEBHOOK_SECRET": "hush",
}  # fmt: skip
QUICK = "[lanes]\nlease_seconds = 1.5\n"
"""For gateways that are killed. On a busy machine a short lease may expire, so others omit it."""
CHAIN = 'state = "chain"\ncontext_tokens = 100000'
OPEN = 'direct = "open"\ncollect_seconds = 0'
TELEGRAM = 'kind = "telegram"\ntoken_env = "BOT_TOKEN"'
SLACK = 'kind = "slack"\nbot_token_env = "BOT_TOKEN"\napp_token_env = "APP_TOKEN"'
SIGNAL = f'kind = "signal"\naccount = "{ACCOUNT}"'
"""The fields of a `[[channel]]` table that each platform needs."""


def write_config(
    folder: Path,
    provider: ProviderSimulator,
    channel: str,
    *,
    upstream: str = "",
    rest: str = QUICK,
) -> Path:
    """Write the configuration of a gateway with one upstream and one channel."""
    config = folder / "holdfast.toml"
    config.write_text(
        f'[[upstream]]\nurl = "{provider.base_url}"\nkey_env = "STORY_KEY"\n{upstream}\n'
        f'[[channel]]\nmodel = "{MODEL}"\n{channel}\n{rest}\n'
    )
    return config


def channel_gateway(store_url: str, config: Path) -> AbstractContextManager[GatewayProcess]:
    """Run a gateway that has the secrets of every platform."""
    return running_gateway(store_url, "--config", str(config), env=SECRETS)


@contextmanager
def telegram_story(
    store_url: str, folder: Path, more: str = OPEN, rest: str = ""
) -> Iterator[tuple[TelegramSimulator, ProviderSimulator, GatewayProcess]]:
    """Run Telegram, a provider and a gateway between them."""
    with ProviderSimulator() as provider, TelegramSimulator(BOT_TOKEN) as telegram:
        channel = f'name = "support"\nurl = "{telegram.url}"\n{TELEGRAM}\n{more}'
        config = write_config(folder, provider, channel, upstream=CHAIN, rest=rest)
        with channel_gateway(store_url, config) as gateway:
            yield telegram, provider, gateway


@contextmanager
def slack_story(
    store_url: str,
    folder: Path,
    more: str = f'{OPEN}\nallow_groups = ["C1"]',
    rest: str = "",
) -> Iterator[tuple[SlackSimulator, ProviderSimulator, GatewayProcess]]:
    """Run a Slack workspace, a provider and a gateway between them."""
    with ProviderSimulator() as provider, SlackSimulator(BOT_TOKEN, APP_TOKEN) as slack:
        channel = f'name = "work"\nurl = "{slack.url}"\n{SLACK}\n{more}'
        config = write_config(folder, provider, channel, upstream=CHAIN, rest=rest)
        with channel_gateway(store_url, config) as gateway:
            yield slack, provider, gateway


@contextmanager
def signal_story(
    store_url: str, folder: Path, more: str = OPEN, rest: str = ""
) -> Iterator[tuple[SignalSimulator, ProviderSimulator, GatewayProcess]]:
    """Run a signal-cli daemon, a provider and a gateway between them."""
    with ProviderSimulator() as provider, SignalSimulator() as signal:
        channel = f'name = "phone"\nurl = "{signal.url}"\n{SIGNAL}\n{more}'
        config = write_config(folder, provider, channel, rest=rest)
        with channel_gateway(store_url, config) as gateway:
            yield signal, provider, gateway
