"""Find what one looks for: at the end of a long session, a failure, by key, id or text."""

import httpx
import pytest
from playwright.sync_api import Page, Request, expect

from tests.console.conftest import MODEL, Gateway, show

LONG = 5000
MAX_REQUESTS = 4


@pytest.fixture(scope="module")
def long_session(gateway: Gateway) -> str:
    """A session of many items whose first turn failed; returns its id."""
    gateway.model.failures["break"] = "The model is overloaded with poems."
    gateway.say("long", "break")
    session = str(gateway.session("long")["id"])
    for first in range(0, LONG, 500):
        items = [
            {"type": "message", "role": "user", "content": f"note {number}"}
            for number in range(first, first + 500)
        ]
        path = f"{gateway.url}/v1/sessions/{session}/items"
        assert httpx.post(path, json={"items": items}, timeout=60).status_code == 200
    return session


def until_indexed(gateway: Gateway, text: str) -> None:
    """Wait until a key is found by its words: the index follows the log."""
    while not gateway.get("/v1/sessions", search=text)["data"]:
        pass


def test_a_long_session_opens_at_its_end_with_few_requests(
    page: Page, gateway: Gateway, long_session: str
) -> None:
    show(page, gateway, "/keys")
    expect(page.locator(".live-dot.on")).to_be_visible()
    expect(page.get_by_text("No keys yet")).to_be_visible()
    asked: list[str] = []

    def note(request: Request) -> None:
        if long_session in request.url:
            asked.append(request.url)

    page.on("request", note)
    page.evaluate("id => { location.hash = `#/sessions/${id}`; }", long_session)
    last = page.locator(f"[data-sequence='{LONG + 1}']")
    expect(last).to_be_in_viewport()
    expect(last).to_contain_text(f"note {LONG - 1}")
    expect(page.locator("main h1")).to_be_in_viewport()
    assert len(asked) <= MAX_REQUESTS, asked
    older = page.get_by_role("button", name="Load older items")
    older.click()
    expect(page.locator(".items hf-block").first).to_be_attached()
    assert len(asked) > MAX_REQUESTS


def test_the_last_failure_is_one_click_away(page: Page, gateway: Gateway) -> None:
    gateway.model.failures["break"] = "The model is overloaded with poems."
    gateway.say("broken", "break")
    for number in range(30):
        gateway.say("broken", f"question {number}")
    show(page, gateway, f"/sessions/{gateway.session('broken')['id']}")
    expect(page.locator(".item").last).to_be_in_viewport()
    page.get_by_role("button", name="Last failure").click()
    failure = page.locator(".turn-end")
    expect(failure).to_contain_text("overloaded with poems")
    expect(failure).to_be_in_viewport()
    expect(page.locator(".item.is-found")).to_contain_text("break")


def test_a_key_is_found_by_its_words_and_back_keeps_the_search(
    page: Page, gateway: Gateway
) -> None:
    gateway.say("agent:desk:Rosalind Franklin", "the structure of a helix")
    gateway.say("agent:desk:lise", "hello")
    until_indexed(gateway, "franklin")
    show(page, gateway, "/keys")
    page.keyboard.press("/")
    box = page.get_by_role("searchbox", name="Search sessions")
    expect(box).to_be_focused()
    box.press_sequentially("franklin")
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("the structure of a helix")
    expect(row).to_contain_text("You said: the structure of a helix")
    row.get_by_role("link").click()
    expect(page.locator("main h1")).to_have_text("agent:desk:Rosalind Franklin")
    page.go_back()
    expect(box).to_have_value("franklin")
    expect(row).to_have_count(1)
    page.reload()
    expect(box).to_have_value("franklin")
    expect(row).to_have_count(1)


def test_a_turn_is_found_by_the_ids_that_logs_show(page: Page, gateway: Gateway) -> None:
    answer = gateway.say("found-by-id", "hello")
    turn = answer.headers["x-turn-id"]
    show(page, gateway, "/sessions")
    box = page.get_by_role("searchbox", name="Search sessions")
    for name in (turn, answer.json()["id"]):
        box.fill(name)
        found = page.get_by_role("link", name="Turn 1")
        expect(found).to_have_attribute("href", f"#/turns/{turn}")
        box.fill("")
        expect(found).to_have_count(0)
    box.fill(answer.headers["x-session-id"])
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("found-by-id")


def test_a_hit_in_a_transcript_leads_to_its_item(
    page: Page, gateway: Gateway, long_session: str
) -> None:
    while not gateway.get("/v1/search", q='"note 4700"')["data"]:
        pass
    show(page, gateway, "/sessions")
    page.get_by_role("searchbox", name="Search sessions").fill('"note 4700"')
    page.locator(".hits").get_by_role("link", name="long").click()
    found = page.locator(".item.is-found")
    expect(found).to_contain_text("note 4700")
    expect(found).to_be_in_viewport()


def test_the_list_is_reduced_to_what_failed(page: Page, gateway: Gateway) -> None:
    gateway.model.failures["fail now"] = "No."
    gateway.say("failed-last", "fail now")
    gateway.say("well", "hello")
    show(page, gateway, "/sessions?show=failed")
    expect(page.get_by_role("link", name="failed-last")).to_be_visible()
    expect(page.get_by_role("link", name="well", exact=True)).to_have_count(0)
    gateway.say("failed-last", "go on")
    expect(page.get_by_role("link", name="failed-last")).to_have_count(0)
    page.get_by_label("Show", exact=True).select_option("All sessions")
    expect(page.get_by_role("link", name="well", exact=True)).to_be_visible()


def test_two_requests_and_a_fork_with_its_parent_are_compared(page: Page, gateway: Gateway) -> None:
    gateway.say("compared", "one two three")
    first = gateway.session("compared")["id"]
    gateway.say("compared", "four five")
    fork = gateway.post(f"/v1/sessions/{first}/fork", {"after_item": 2})["id"]
    body = {"model": MODEL, "input": "something else"}
    httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"X-Session-Id": fork})
    again = gateway.post(f"/v1/sessions/{fork}/fork")["id"]
    show(page, gateway, f"/sessions/{first}/generations")
    # The fork of a fork is in the tree too.
    expect(page.locator(".graph-rows li")).to_have_count(3)
    expect(page.locator(f"a[href='#/sessions/{again}']")).to_be_visible()
    page.get_by_role("link", name="Compare with parent").first.click()
    expect(page.locator("main h1")).to_have_text("Compare")
    expect(page.locator(".compared ins").first).to_contain_text("something")
    expect(page.locator(".compared del").first).to_contain_text("four")
    turns = gateway.get(f"/v1/sessions/{first}/turns")["data"]
    page.goto(f"{gateway.url}/console#/turns/{turns[1]['id']}")
    page.get_by_role("link", name="Compare with the request before").click()
    added = page.locator(".compared .is-added")
    expect(added).to_have_count(2)
    expect(added.last).to_contain_text("four five")
    page.get_by_label("After", exact=True).fill(first)
    page.get_by_label("Before", exact=False).fill(again)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".compared .item").first).to_be_visible()
