"""A gateway with a Telegram channel, over real processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.testing.platforms import TelegramSimulator
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import MODEL

TOKEN = "42:TEST"
QUICK = "[lanes]\nlease_seconds = 1.5\n"


def configure(
    folder: Path, upstream: ProviderSimulator, telegram: TelegramSimulator, more: str, rest: str
) -> Path:
    """Write the configuration of a gateway with one bot."""
    config = folder / "holdfast.toml"
    config.write_text(
        f'[[upstream]]\nurl = "{upstream.base_url}"\nkey_env = "STORY_KEY"\nstate = "chain"\n'
        f'[[channel]]\nname = "support"\nkind = "telegram"\ntoken_env = "BOT_TOKEN"\n'
        f'url = "{telegram.url}"\nmodel = "{MODEL}"\n{more}\n{rest}\n'
    )
    return config


def bot_gateway(store_url: str, config: Path) -> GatewayProcess:
    """Return a gateway process with the bot's secrets."""
    env = {"STORY_KEY": "sk-story", "BOT_TOKEN": TOKEN, "WEBHOOK_SECRET": "hush"}
    return GatewayProcess(store_url, "--config", str(config), env=env)


@contextmanager
def telegram_story(
    store_url: str,
    folder: Path,
    more: str = 'direct = "open"\ncollect_seconds = 0',
    rest: str = QUICK,
) -> Iterator[tuple[TelegramSimulator, ProviderSimulator, GatewayProcess]]:
    """Run a platform, a provider and a gateway between them."""
    with ProviderSimulator() as provider, TelegramSimulator(TOKEN) as telegram:
        gateway = bot_gateway(store_url, configure(folder, provider, telegram, more, rest))
        gateway.start()
        try:
            yield telegram, provider, gateway
        finally:
            gateway.kill()
