"""Approvals, channels, the outbox and schedules in a real browser."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from holdfast.simulator.platforms.telegram import TelegramSimulator
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import running_gateway
from tests.console.conftest import ARTEFACTS, Gateway, hold, release, show, wait_for
from tests.console.story_model import StoryModel
from tests.store_urls import sqlite_url

TOKEN = "42:TEST"
TOOLS = [{"type": "mcp", "server_label": "odd"}]
CONFIG = """
[[upstream]]
url = "{model}"
key_env = "STORY_KEY"
[[mcp]]
name = "odd"
command = "{python}"
args = ["{server}", "{state}"]
[[channel]]
name = "support"
kind = "telegram"
token_env = "BOT_TOKEN"
url = "{telegram}"
model = "gpt-4.1"
collect_seconds = 0
"""


@pytest.fixture(scope="module")
def telegram() -> Iterator[TelegramSimulator]:
    """A chat platform."""
    with TelegramSimulator(TOKEN) as platform:
        yield platform


@pytest.fixture(scope="module")
def gateway(
    telegram: TelegramSimulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with a channel, and tools that need an approval."""
    folder = tmp_path_factory.mktemp("operations")
    server = Path(__file__).parents[1] / "tools/odd_mcp_server.py"
    with ProviderSimulator() as provider:
        config = folder / "holdfast.toml"
        config.write_text(
            CONFIG.format(
                model=provider.base_url, python=sys.executable, server=server,
                state=folder / "calls", telegram=telegram.url,
            )
        )  # fmt: skip
        secrets = {"STORY_KEY": "sk-story", "BOT_TOKEN": TOKEN}
        with running_gateway(sqlite_url(folder), "--config", str(config), env=secrets) as process:
            yield Gateway(process, StoryModel())


def ask_for_a_tool(gateway: Gateway, key: str, text: str = "milk") -> None:
    """Begin a turn that waits for an approval."""
    answer = gateway.say(key, f'call odd__write {{"text": "{text}"}}', tools=TOOLS)
    assert "mcp_approval_request" in [item["type"] for item in answer.json()["output"]]


def test_approvals_are_answered_on_the_page(page: Page, gateway: Gateway) -> None:
    show(page, gateway, "/operations")
    expect(page.get_by_text("No approvals wait")).to_be_visible()
    ask_for_a_tool(gateway, "shopping")
    waiting = page.get_by_role("region", name="Approvals")
    expect(waiting).to_contain_text("write")
    expect(waiting).to_contain_text("milk")
    waiting.get_by_role("button", name="Allow").click()
    expect(page.get_by_text("No approvals wait")).to_be_visible()
    ask_for_a_tool(gateway, "denied")
    waiting.get_by_role("button", name="Deny").click()
    expect(page.get_by_text("No approvals wait")).to_be_visible()
    page.goto(f"{gateway.url}/console#/sessions/{gateway.session('shopping')['id']}")
    call = page.locator(".item.tool-call")
    expect(call).to_contain_text("write")
    # The output of a tool that the gateway ran is part of its call.
    expect(call.get_by_text("Output")).to_be_visible()
    expect(page.locator(".item.approval")).to_contain_text("allowed")
    page.goto(f"{gateway.url}/console#/sessions/{gateway.session('denied')['id']}")
    expect(page.locator(".item.approval")).to_contain_text("denied")


def test_an_approval_in_a_chat_lets_the_answer_go_on(page: Page, gateway: Gateway) -> None:
    ask_for_a_tool(gateway, "chatting")
    session = gateway.session("chatting")["id"]
    show(page, gateway, f"/chat/{session}")
    card = page.get_by_role("group", name="Approval")
    expect(card).to_contain_text("milk")
    card.get_by_role("button", name="Allow").click()
    expect(card).to_have_count(0)
    expect(page.locator(".item.assistant")).to_have_count(1)
    expect(page.locator(".live-state")).to_have_count(0)
    turns = f"/v1/sessions/{session}/turns"
    wait_for(lambda: [turn["status"] for turn in gateway.get(turns)["data"]] == ["completed"])
    page.goto(f"{gateway.url}/console#/sessions/{session}/timeline")
    bar = page.locator(".timeline svg")
    expect(bar).to_have_attribute("aria-label", re.compile("for tools or an approval"))
    expect(bar.locator(".piece.commit")).to_have_count(1)


def test_an_approval_is_counted_in_the_bar_and_answered_on_the_page_of_its_session(
    page: Page, gateway: Gateway
) -> None:
    ask_for_a_tool(gateway, "counted")
    show(page, gateway, "/usage")
    badge = page.get_by_role("link", name="Approvals that wait")
    expect(badge).to_be_visible()
    badge.click()
    row = page.get_by_role("row", name="counted")
    expect(row).to_contain_text("waits for approval")
    row.get_by_role("link").click()
    card = page.get_by_role("group", name="Approval")
    expect(card).to_contain_text("milk")
    card.get_by_role("button", name="Allow").click()
    expect(card).to_have_count(0)
    expect(page.locator(".item.assistant")).to_have_count(1)
    expect(page.locator(".bar-badge")).to_have_count(len(gateway.get("/v1/approvals")["data"][:1]))


def test_all_of_the_arguments_are_in_sight_before_a_call_is_allowed(
    page: Page, gateway: Gateway
) -> None:
    text = "milk " + "\u00a0" * 400 + "word " * 200 + "and the whole shop"
    ask_for_a_tool(gateway, "padded", text)
    session = gateway.session("padded")["id"]
    show(page, gateway, "/operations")
    waiting = page.get_by_role("region", name="Approvals")
    expect(waiting).to_contain_text("and the whole shop")
    show(page, gateway, f"/chat/{session}")
    card = page.get_by_role("group", name="Approval")
    arguments = card.get_by_role("group", name="Arguments")
    expect(arguments).to_contain_text("and the whole shop")
    assert arguments.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
    expect(page.get_by_text("Calls that wait for your approval: 1")).to_have_attribute(
        "role", "status"
    )
    card.get_by_role("button", name="Deny").click()
    expect(card).to_have_count(0)


def test_an_approval_that_is_answered_in_two_tabs_is_answered_once(
    page: Page, gateway: Gateway
) -> None:
    ask_for_a_tool(gateway, "two-tabs")
    session = gateway.session("two-tabs")["id"]
    other = page.context.new_page()
    listed: list[str] = []
    page.on("request", lambda request: listed.append(request.url))
    for tab in (page, other):
        show(tab, gateway, f"/chat/{session}")
        expect(tab.get_by_role("group", name="Approval")).to_contain_text("milk")
    # However many others wait, the chat reads its own.
    read = [url for url in listed if "/v1/approvals?session" in url]
    assert read
    assert read == [f"{gateway.url}/v1/approvals?session_id={session}"] * len(read)
    held = hold(page, "**/v1/approvals/*")
    card = page.get_by_role("group", name="Approval")
    with page.expect_request("**/v1/approvals/*"):
        card.get_by_role("button", name="Allow").click()
    expect(card.get_by_role("button", name="Allow")).to_be_disabled()
    expect(card.get_by_role("button", name="Deny")).to_be_disabled()
    other.get_by_role("group", name="Approval").get_by_role("button", name="Deny").click()
    expect(other.get_by_role("group", name="Approval")).to_have_count(0)
    expect(card).to_have_count(0)
    release(page, held[0])
    expect(page.locator(".notice")).to_contain_text("answered before")
    expect(page.locator(".item.approval")).to_contain_text("denied")
    assert len(held) == 1


def test_a_new_chat_shows_no_approval_of_the_chat_before(page: Page, gateway: Gateway) -> None:
    ask_for_a_tool(gateway, "left-waiting")
    show(page, gateway, f"/chat/{gateway.session('left-waiting')['id']}")
    expect(page.get_by_role("group", name="Approval")).to_contain_text("milk")
    page.get_by_role("link", name="New chat").click()
    expect(page.get_by_role("heading", name="New chat")).to_be_visible()
    expect(page.get_by_role("group", name="Approval")).to_have_count(0)


def test_a_pairing_is_approved_and_revoked(
    page: Page, gateway: Gateway, telegram: TelegramSimulator
) -> None:
    show(page, gateway, "/operations")
    channels = page.get_by_role("region", name="Channels")
    expect(channels).to_contain_text("receiving")
    telegram.say("may I?")
    pairings = page.get_by_role("region", name="Pairings")
    pairings.get_by_role("button", name="Approve").click()
    expect(pairings).to_contain_text("approved")
    telegram.say("hello")
    telegram.wait_for_text("Last text: hello")
    expect(page.get_by_role("region", name="Outbox")).to_contain_text("sent")
    pairings.get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("The pairing was revoked")).to_be_visible()


def test_a_message_that_cannot_be_sent_is_explained_retried_and_dropped(
    page: Page, gateway: Gateway, telegram: TelegramSimulator
) -> None:
    telegram.fail_next("sendMessage", times=2, code=403, description="bot was blocked")
    show(page, gateway, "/operations")
    path = f"{gateway.url}/v1/channels/support/messages"
    assert httpx.post(path, json={"to": "7", "text": "hello?"}).status_code == 202
    page.get_by_label("State of messages").select_option("dead")
    outbox = page.get_by_role("region", name="Outbox")
    expect(outbox).to_contain_text("bot was blocked")
    outbox.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("The message is sent again")).to_be_visible()
    wait_for(lambda: len(gateway.get("/v1/outbox", state="dead")["data"]) == 1)
    outbox.get_by_role("button", name="Drop").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    expect(page.get_by_text("No messages", exact=True)).to_be_visible()
    assert gateway.get("/v1/outbox", state="dropped")["data"] != []


def test_a_schedule_is_run_paused_and_resumed(page: Page, gateway: Gateway) -> None:
    body = {"name": "report", "prompt": "what is new?", "model": "gpt-4.1", "every": "1h"}
    gateway.post("/v1/schedules", body)
    show(page, gateway, "/operations")
    schedules = page.get_by_role("region", name="Schedules")
    expect(schedules).to_contain_text("1h")
    schedules.get_by_role("button", name="Run now").click()
    expect(schedules.get_by_role("link", name="completed")).to_be_visible()
    schedules.get_by_role("button", name="Pause").click()
    expect(schedules).to_contain_text("paused")
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTEFACTS / "automation.png", full_page=True)
    schedules.get_by_role("button", name="Resume").click()
    expect(schedules.get_by_role("button", name="Pause")).to_be_visible()
    schedules.get_by_role("link", name="completed").click()
    expect(page.locator("h1")).to_contain_text("what the model was shown")
    expect(page.locator(".facts")).to_contain_text("cron")
    page.goto(f"{gateway.url}/console#/sessions")
    expect(page.get_by_role("row", name="cron:report:")).to_contain_text("cron")


def test_operations_fit_a_phone(page: Page, gateway: Gateway) -> None:
    ask_for_a_tool(gateway, "on-a-phone")
    page.set_viewport_size({"width": 360, "height": 900})
    show(page, gateway, "/operations")
    expect(page.get_by_role("region", name="Approvals")).to_contain_text("milk")
    expect(page.get_by_role("region", name="Channels")).to_contain_text("support")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
