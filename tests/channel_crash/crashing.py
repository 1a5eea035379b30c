"""Kill a gateway at one point, start another one, and check what people received."""

import base64
import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from holdfast.testing.platforms import PlatformAnswer
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.channel_stories import OPEN, SECRETS, write_config
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import HttpUser
from tests.channel_crash.chats import ChatPlatform
from tests.channel_crash.killed_gateway import KILL

DEATH_SECONDS = 60.0
MESSAGES = ((7, "one"), (8, "three"), (7, "two"))
"""Person and text of each message, in this order."""
Sayings = tuple[tuple[int, str], ...]


class KillPoint(NamedTuple):
    """Where the gateway is killed: before or after the n-th commit, or the n-th call, of a name."""

    side: str
    name: str
    number: int = 1

    @property
    def is_commit(self) -> bool:
        """Whether it is a commit instead of a call to the platform."""
        return self.name[0].isupper()

    def __str__(self) -> str:
        return f"{self.side}-{self.name}-{self.number}"


class CrashingGateway(GatewayProcess):
    """A gateway that may be configured to be killed at a point."""

    def __init__(self, store_url: str, config: Path, point: KillPoint | None = None) -> None:
        env = dict(SECRETS)
        if point is not None and point.is_commit:
            env[KILL] = f"{point.side} {point.name} {point.number}"
        super().__init__(store_url, "--config", str(config), env=env)
        self._command[2] = "tests.channel_crash.killed_gateway"

    def shoot(self) -> None:
        """Send SIGKILL and do not wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)

    def until_dead(self) -> None:
        """Wait until the process is dead, killed by itself or by `shoot`."""
        assert self._process is not None
        assert self._process.wait(DEATH_SECONDS) == -signal.SIGKILL
        self.kill()


def write_crash_config(
    folder: Path, provider: ProviderSimulator, platform: ChatPlatform, more: str = ""
) -> Path:
    """Write the configuration of a gateway with one channel, whose turns run one by one."""
    channel = (
        f'name = "chat"\n{platform.config}\nurl = "{platform.simulator.url}"\n'
        f'{OPEN}\non_busy = "enqueue"\n{more}'
    )
    return write_config(folder, provider, channel)


@contextmanager
def simulators(platform: ChatPlatform) -> Iterator[ProviderSimulator]:
    """Run a provider whose answers take a second, and the platform."""
    with ProviderSimulator() as provider, platform.simulator:
        provider.add_fault("slow", between_seconds=0.1)
        yield provider


def kill_at_call(gateway: CrashingGateway, platform: ChatPlatform, point: KillPoint) -> None:
    """Kill the gateway while the platform handles its n-th call of a method."""
    left = [point.number]

    def fault(method: str, body: dict[str, Any]) -> PlatformAnswer | None:
        is_confirmation = method != "getUpdates" or "offset" in body
        if method != point.name or not is_confirmation:
            return None
        left[0] -= 1
        if left[0] != 0:
            return None
        gateway.shoot()
        return PlatformAnswer(is_cut=True, takes_effect=point.side == "after")

    platform.simulator.fail(fault)


def outbox(user: HttpUser) -> list[dict[str, Any]]:
    """Return the whole outbox, oldest first."""
    rows: list[dict[str, Any]] = user.get("/v1/outbox?limit=100")["data"]
    return rows[::-1]


def wait_until_settled(user: HttpUser, messages: Sayings) -> list[dict[str, Any]]:
    """Return the outbox once every message has a sent answer."""
    while True:
        rows = outbox(user)
        if len(rows) >= len(messages) and all(row["state"] == "sent" for row in rows):
            return rows


def judge(
    user: HttpUser, platform: ChatPlatform, messages: Sayings, rows: list[dict[str, Any]]
) -> None:
    """Check that each message is one turn, none is lost, order is kept, duplicates are marked."""
    for person in {person for person, _ in messages}:
        said = [text for one, text in messages if one == person]
        session = user.session(platform.session_key(person))
        turns = user.get(f"/v1/sessions/{session['id']}/turns?order=asc")["data"]
        assert [turn["status"] for turn in turns] == ["completed"] * len(said)
        mine = [row for row in rows if row["session_id"] == session["id"]]
        doubts = sum(row["is_maybe_duplicate"] for row in mine)
        seen = platform.answers(person)
        final = [text.partition("Last text: ")[2] for text in seen if not text.endswith("…")]
        assert list(dict.fromkeys(final)) == said, f"each answered, in order: {seen}"
        repeated = sum(count > 1 for count in Counter(final).values())
        left_over = sum(text.endswith("…") for text in seen)
        assert repeated + left_over <= doubts, f"{seen} without a doubt"
        assert len(mine) == len(said)


@contextmanager
def crashed(
    store_url: str,
    folder: Path,
    platform: ChatPlatform,
    point: KillPoint,
    act: Callable[[CrashingGateway], None],
) -> Iterator[HttpUser]:
    """Kill a gateway at a point during `act`; run another one for a block."""
    with simulators(platform) as provider:
        config = write_crash_config(folder, provider, platform)
        gateway = CrashingGateway(store_url, config, point)
        gateway.start()
        if not point.is_commit:
            kill_at_call(gateway, platform, point)
        try:
            act(gateway)
            gateway.until_dead()
        finally:
            gateway.kill()
        successor = CrashingGateway(store_url, config)
        successor.start()
        try:
            yield HttpUser(successor)
        finally:
            successor.kill()


def crash_and_judge(store_url: str, folder: Path, platform: ChatPlatform, point: KillPoint) -> None:
    """Kill a gateway at a point while people write; start another one and check the result."""

    def act(_: CrashingGateway) -> None:
        for person, text in MESSAGES:
            platform.say(text, person)

    with crashed(store_url, folder, platform, point, act) as user:
        judge(user, platform, MESSAGES, wait_until_settled(user, MESSAGES))


def crash_with_file(store_url: str, folder: Path, platform: ChatPlatform, point: KillPoint) -> None:
    """Kill a gateway while it sends an operator's text and file; both arrive, in order."""
    files = [{"name": "a.txt", "data": base64.b64encode(b"content").decode()}]
    body = {"to": platform.chat(7), "text": "Look:", "files": files}

    def act(gateway: CrashingGateway) -> None:
        with contextlib.suppress(httpx.RemoteProtocolError):  # it may die before it answers
            httpx.post(f"{gateway.url}/v1/channels/chat/messages", json=body)

    with crashed(store_url, folder, platform, point, act) as user:
        rows = wait_until_settled(user, ((7, "Look:"), (7, "file")))
        seen = platform.answers(7)
        assert list(dict.fromkeys(seen)) == ["Look:", "[a.txt]"], seen
        assert len(seen) - 2 <= sum(row["is_maybe_duplicate"] for row in rows), seen
