"""Why did my agent forget? The five stories of the project, each with the screen that answers it.

The pictures of docs/how-to/find-out-why-an-agent-forgot.md are taken here.
"""

import threading

import httpx
from playwright.sync_api import Page, expect

from tests.console.conftest import ARTEFACTS, Gateway, show


def picture(page: Page, name: str, *, height: int) -> None:
    """Keep a picture of the upper part of the page."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size({"width": 1100, "height": height})
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=ARTEFACTS / f"{name}.png")


def turn_ids(gateway: Gateway, session: str) -> list[str]:
    turns = gateway.get(f"/v1/sessions/{session}/turns", limit=100)["data"]
    return [str(turn["id"]) for turn in turns]


def test_story_0_the_provider_forgot_and_the_turn_was_healed(page: Page, gateway: Gateway) -> None:
    key = "agent:main:direct:ada"
    gateway.model.answers |= {
        "My dog is called Kepler.": "Kepler is a lovely name for a dog.",
        "What is my dog called?": "Your dog is called Kepler.",
    }
    gateway.say(key, "My dog is called Kepler.")
    gateway.model.forget()
    assert gateway.say(key, "What is my dog called?").status_code == 200
    session = gateway.session(key)["id"]
    show(page, gateway, f"/turns/{turn_ids(gateway, session)[-1]}")
    attempts = page.get_by_role("region", name="Attempts")
    expect(attempts).to_contain_text("previous_response_not_found")
    expect(attempts).to_contain_text("dropped state")
    expect(page.locator(".proof.good")).to_be_visible()
    expect(page.get_by_text("The whole history was sent: 3 items.")).to_be_visible()
    picture(page, "0-stale-provider-state", height=900)


def test_story_1_no_assistant_item_is_missing(page: Page, gateway: Gateway) -> None:
    key = "agent:main:direct:grace"
    for number in range(1, 5):
        gateway.say(key, f"Question {number}")
    session = gateway.session(key)["id"]
    show(page, gateway, f"/turns/{turn_ids(gateway, session)[-1]}")
    expect(page.locator("hf-turn .item")).to_have_count(7)
    page.get_by_text("5 items as before").click()
    kinds = page.locator("hf-turn .item .item-kind").all_inner_texts()
    assert [kind.lower() for kind in kinds] == ["user", "assistant"] * 3 + ["user"]
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    request = page.locator("hf-turn > section").filter(has_text="The request")
    request.screenshot(path=ARTEFACTS / "1-vanishing-items.png")


def test_story_2_an_idle_key_keeps_its_generation(page: Page, gateway: Gateway) -> None:
    key = "agent:main:direct:michael"
    gateway.say(key, "Shall I book the table for eight?")
    gateway.say(key, "yes")
    session = gateway.session(key)
    show(page, gateway, f"/sessions/{session['id']}/generations")
    expect(page.locator(".graph-rows li")).to_have_count(1)
    expect(page.locator(".graph-rows")).to_contain_text("Generation 1")
    # What amnesia looks like: somebody asked for a reset, and it is one click to take it back.
    gateway.post(f"/v1/sessions/{session['id']}/reset", {"reason": "daily"})
    second = gateway.session(key)["id"]
    page.goto(f"{gateway.url}/console#/sessions/{second}/generations")
    expect(page.locator(".graph-rows li")).to_have_count(2)
    expect(page.get_by_role("button", name="Restore")).to_be_visible()
    picture(page, "2-amnesia-after-idling", height=480)
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_text("Shall I book the table for eight?", exact=True)).to_be_visible()


def test_story_3_two_requests_with_a_new_key_share_one_session(
    page: Page, gateway: Gateway
) -> None:
    key = "agent:main:direct:linus"
    gateway.model.gate.clear()
    gateway.model.has_begun.clear()
    model = {"model": "gpt-4.1-mini"}
    first = gateway.say(key, "Remember the number 7.", background=True, **model)
    assert gateway.model.has_begun.wait(60)
    second: list[httpx.Response] = []
    request = threading.Thread(
        target=lambda: second.append(gateway.say(key, "Which number?", **model))
    )
    request.start()
    show(page, gateway, "/sessions")
    row = page.get_by_role("row", name=key)
    expect(row.get_by_text("running")).to_be_visible()
    expect(row.locator("td").nth(1)).to_have_text("1")
    gateway.model.gate.set()
    request.join()
    assert second[0].headers["x-session-id"] == first.headers["x-session-id"]
    page.goto(f"{gateway.url}/console#/sessions/{first.headers['x-session-id']}/timeline")
    expect(page.locator(".timeline li")).to_have_count(2)
    waited = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="Turn 2"))
    expect(waited.locator(".piece.queued")).to_have_count(1)
    picture(page, "3-forked-identity", height=540)


def test_story_4_a_reset_stays_a_reset(page: Page, gateway: Gateway) -> None:
    key = "agent:main:direct:barbara"
    gateway.model.gate.clear()
    gateway.model.has_begun.clear()
    gateway.say(key, "Start the long report.", model="gpt-4.1-mini", background=True)
    assert gateway.model.has_begun.wait(60)
    old = gateway.session(key)["id"]
    gateway.post(f"/v1/sessions/{old}/reset", {"expected_session_id": old})
    gateway.model.gate.set()
    fresh = gateway.session(key)
    assert (fresh["status"], fresh["item_count"], fresh["turn_count"]) == ("idle", 0, 0)
    show(page, gateway, f"/sessions/{old}/timeline")
    expect(page.locator(".timeline li")).to_contain_text("cancelled")
    expect(page.locator(".timeline li")).to_contain_text("session_reset")
    picture(page, "4-reset-undone", height=520)
    page.goto(f"{gateway.url}/console#/sessions/{fresh['id']}")
    expect(page.get_by_text("Nothing was said yet")).to_be_visible()
