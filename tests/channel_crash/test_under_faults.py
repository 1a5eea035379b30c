"""Replicas, outages and many messages: each is answered once, in order."""

import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.simulator.platforms.signal import ACCOUNT
from holdfast.testing.platforms import (
    PlatformAnswer,
    SignalSimulator,
    SlackSimulator,
    TelegramSimulator,
)
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import running_gateway
from tests.acceptance.stories import HttpUser
from tests.channel_crash.chats import PLATFORMS, ChatPlatform, TelegramChats
from tests.channel_crash.crashing import (
    CrashingGateway,
    Sayings,
    judge,
    simulators,
    wait_until_settled,
    write_crash_config,
)

pytestmark = pytest.mark.soak

CHATS, ROUNDS = 50, 20
OUTAGE_SECONDS = 8.0
MAX_IDLE_MEGABYTES = 120


@pytest.mark.parametrize("platform", PLATFORMS)
def test_of_two_replicas_one_receives_and_the_other_takes_over(
    platform: str, store_url: str, tmp_path: Path
) -> None:
    chats = PLATFORMS[platform]()
    with simulators(chats) as provider:
        config = write_crash_config(tmp_path, provider, chats)
        replicas = [CrashingGateway(store_url, config) for _ in range(2)]
        try:
            for replica in replicas:
                replica.start()
            said: list[tuple[int, str]] = []
            for number in range(12):
                said.append((7 + number % 3, f"message {number}"))
                chats.say(said[-1][1], said[-1][0])
                if number in (3, 7):
                    replicas[number % 2].kill()
                    replicas[number % 2].start()
            user = HttpUser(replicas[0])
            judge(user, chats, tuple(said), wait_until_settled(user, tuple(said)))
        finally:
            for replica in replicas:
                replica.kill()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platform_that_is_down_delays_and_loses_nothing(
    platform: str, store_url: str, tmp_path: Path
) -> None:
    chats = PLATFORMS[platform]()
    said = ((7, "one"), (8, "two"), (7, "three"))
    with simulators(chats) as provider:
        gateway = CrashingGateway(store_url, write_crash_config(tmp_path, provider, chats))
        gateway.start()
        try:
            barrier = provider.hold()
            for person, text in said:
                chats.say(text, person)
            barrier.wait_held(2)
            chats.simulator.down()
            barrier.remove()
            time.sleep(OUTAGE_SECONDS)
            gateway.kill()
            gateway.start()
            chats.simulator.up()
            user = HttpUser(gateway)
            judge(user, chats, said, wait_until_settled(user, said))
        finally:
            gateway.kill()


class _Faults:
    """Faults of a platform, by a seeded coin."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.counts: dict[str, int] = {}
        self.is_on = True

    def __call__(self, method: str, _: dict[str, Any]) -> PlatformAnswer | None:
        coin = self._random.random()
        if not self.is_on or method not in ("sendMessage", "getUpdates") or coin > 0.12:
            return None
        kind = ("cut before", "cut after", "429", "502")[int(coin * 100) // 3]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind.startswith("cut"):
            return PlatformAnswer(is_cut=True, takes_effect=kind == "cut after")
        code = int(kind)
        body = {"ok": False, "error_code": code, "description": "on purpose"}
        if code == 429:
            body["parameters"] = {"retry_after": 1}
        return PlatformAnswer(body, status=code)


def _all_rows(user: HttpUser) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = ""
    while True:
        page = user.get(f"/v1/outbox?limit=100{after}")
        rows += page["data"]
        if not page["has_more"]:
            return rows[::-1]
        after = f"&after={page['last_id']}"


def _write(chats: ChatPlatform, replicas: list[CrashingGateway]) -> Sayings:
    said: list[tuple[int, str]] = []
    for number in range(ROUNDS):
        for person in range(101, 101 + CHATS):
            said.append((person, f"m{number}"))
            chats.say(said[-1][1], person)
        if number in (4, 9, 14):
            replicas[number % 2].kill()
            replicas[number % 2].start()
    return tuple(said)


def test_a_thousand_messages_with_faults_are_answered_once_and_in_order(
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats, faults = TelegramChats(), _Faults(7)
    chats.simulator.fail(faults)
    with ProviderSimulator() as provider, chats.simulator:
        config = write_crash_config(tmp_path, provider, chats, 'reply = "whole"')
        replicas = [CrashingGateway(store_url, config) for _ in range(2)]
        try:
            for replica in replicas:
                replica.start()
            began = time.monotonic()
            said = _write(chats, replicas)
            user = HttpUser(replicas[0])
            while len(rows := _all_rows(user)) < len(said) or any(
                row["state"] != "sent" for row in rows
            ):
                time.sleep(0.5)
            seconds = time.monotonic() - began
            judge(user, chats, said, rows)
        finally:
            for replica in replicas:
                replica.kill()
    doubts = sum(row["is_maybe_duplicate"] for row in rows)
    sent = len(chats.simulator.sent)
    with capsys.disabled():
        print(  # noqa: T201 - the figures of the documentation
            f"\n{len(said)} messages in {seconds:.0f} s, faults {faults.counts}, sent {sent}, "
            f"marked {doubts}, store {store_url.partition(':')[0]}"
        )


def test_three_idle_channels_need_little_memory(tmp_path: Path) -> None:
    with TelegramSimulator() as telegram, SlackSimulator() as slack, SignalSimulator() as signal:
        config = tmp_path / "holdfast.toml"
        config.write_text(
            f'[[channel]]\nname = "t"\nkind = "telegram"\ntoken_env = "T"\nurl = "{telegram.url}"\n'
            f'[[channel]]\nname = "s"\nkind = "slack"\nbot_token_env = "B"\napp_token_env = "A"\n'
            f'url = "{slack.url}"\n'
            f'[[channel]]\nname = "p"\nkind = "signal"\naccount = "{ACCOUNT}"\n'
            f'url = "{signal.url}"\n'
        )
        env = {"T": telegram.token, "B": slack.bot_token, "A": slack.app_token}
        store = f"sqlite:///{tmp_path / 'holdfast.db'}"
        with running_gateway(store, "--config", str(config), env=env) as gateway:
            user = HttpUser(gateway)
            while {one["state"] for one in user.get("/v1/channels")["data"]} != {"receiving"}:
                pass
            telegram.wait(lambda: any(call[0] == "getUpdates" for call in telegram.calls))
            signal.wait(lambda: bool(signal.resumed_behind))
            assert gateway._process is not None
            used = psutil.Process(gateway._process.pid).memory_info().rss / 2**20
    assert used < MAX_IDLE_MEGABYTES
