"""A gateway with a Slack channel, over real processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.testing.platforms import SlackSimulator
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import MODEL

BOT_TOKEN, APP_TOKEN = "xoxb-story", "xapp-story"
QUICK = "[lanes]\nlease_seconds = 1.5\n"
OPEN = 'direct = "open"\nallow_groups = ["C1"]\ncollect_seconds = 0'


def slack_gateway(
    store_url: str, folder: Path, provider: ProviderSimulator, slack: SlackSimulator, more: str
) -> GatewayProcess:
    """Return a gateway process with one Slack app."""
    config = folder / "holdfast.toml"
    config.write_text(
        f'[[upstream]]\nurl = "{provider.base_url}"\nkey_env = "STORY_KEY"\nstate = "chain"\n'
        f'context_tokens = 100000\n[[channel]]\nname = "work"\nkind = "slack"\n'
        f'bot_token_env = "BOT_TOKEN"\napp_token_env = "APP_TOKEN"\nurl = "{slack.url}"\n'
        f'model = "{MODEL}"\n{more}\n{QUICK}'
    )
    env = {"STORY_KEY": "sk-story", "BOT_TOKEN": BOT_TOKEN, "APP_TOKEN": APP_TOKEN}
    return GatewayProcess(store_url, "--config", str(config), env=env)


@contextmanager
def slack_story(
    store_url: str, folder: Path, more: str = OPEN
) -> Iterator[tuple[SlackSimulator, ProviderSimulator, GatewayProcess]]:
    """Run a workspace, a provider and a gateway between them."""
    with ProviderSimulator() as provider, SlackSimulator(BOT_TOKEN, APP_TOKEN) as slack:
        gateway = slack_gateway(store_url, folder, provider, slack, more)
        gateway.start()
        try:
            yield slack, provider, gateway
        finally:
            gateway.kill()
