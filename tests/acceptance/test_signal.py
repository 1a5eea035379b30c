"""People talk to an agent over Signal, through a signal-cli daemon."""

from pathlib import Path

from holdfast.simulator.platforms.signal import ACCOUNT, GROUP, user_uuid
from holdfast.testing.platforms import SignalSimulator
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, sqlite_url
from tests.acceptance.stories import MODEL, HttpUser
from tests.acceptance.test_telegram import until_sent


def signal_gateway(
    folder: Path, provider: ProviderSimulator, signal: SignalSimulator, more: str = ""
) -> GatewayProcess:
    """Return a gateway with one Signal account, which is not started."""
    config = folder / "holdfast.toml"
    config.write_text(
        f'[[upstream]]\nurl = "{provider.base_url}"\nkey_env = "STORY_KEY"\n'
        f'[[channel]]\nname = "phone"\nkind = "signal"\naccount = "{ACCOUNT}"\n'
        f'url = "{signal.url}"\nmodel = "{MODEL}"\ncollect_seconds = 0\n{more}\n'
        "[lanes]\nlease_seconds = 1.5\n"
    )
    env = {"STORY_KEY": "sk-story"}
    return GatewayProcess(sqlite_url(folder), "--config", str(config), env=env)


def test_people_are_answered_once_strangers_not_and_a_killed_gateway_loses_nothing(
    tmp_path: Path,
) -> None:
    with ProviderSimulator() as provider, SignalSimulator() as signal:
        gateway = signal_gateway(tmp_path, provider, signal, 'allow = ["+490000007"]')
        gateway.start()
        try:
            user = HttpUser(gateway)
            signal.say("a stranger in a group of their own", user=9, group=GROUP)
            signal.say("a stranger", user=9)
            signal.wait_for_text("approve the code", user_uuid(9))
            signal.write_from_phone("my own words")
            signal.say("hello **you**")
            signal.wait_for_text("Messages seen: 1", user_uuid(7))
            key = f"agent:main:signal:direct:{user_uuid(7)}"
            assert [one["key"] for one in user.get("/v1/sessions")["data"]] == [key]
            until_sent(gateway, 2)
            gateway.kill()
            signal.say("while it was dead")
            signal.deliver_again()
            gateway.start()
            signal.wait_for_text("Messages seen: 3", user_uuid(7))
            signal.say("/status")
            signal.wait_for_text("generation 1", user_uuid(7))
            mention = [{"number": ACCOUNT, "start": 0, "length": 1}]
            signal.say("\ufffc in the group", group=GROUP, mentions=mention)
            signal.wait_for_text("Messages seen: 1", GROUP)
            assert len(provider.requests()) == 3
            assert len(signal.texts(user_uuid(7))) == 3
        finally:
            gateway.kill()
