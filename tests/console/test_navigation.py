"""Back and forward, other sessions, other people: what was written or asked stays where it was."""

from pathlib import Path

import httpx
from playwright.sync_api import FilePayload, Page, expect

from tests.acceptance.gateway_process import running_gateway
from tests.console.conftest import Gateway, hold, show
from tests.store_urls import sqlite_url


def test_a_message_that_was_not_sent_stays_in_its_session(page: Page, gateway: Gateway) -> None:
    for key in ("first", "second"):
        gateway.say(key, f"hello {key}")
    first, second = (gateway.session(key)["id"] for key in ("first", "second"))
    message = page.get_by_label("Message", exact=True)
    show(page, gateway, f"/chat/{first}")
    message.fill("only for the first")
    page.locator("input[type=file]").set_input_files(
        FilePayload(name="first.txt", mimeType="text/plain", buffer=b"hi")
    )
    files = page.get_by_label("Attachments").get_by_role("listitem")
    expect(files).to_have_count(1)
    page.evaluate(f"location.hash = '#/chat/{second}'")
    expect(page.locator(".item.user")).to_contain_text("hello second")
    expect(message).to_have_value("")
    expect(files).to_have_count(0)
    page.get_by_role("link", name="Inspect").click()
    expect(page.locator("main h1")).to_have_text("second")
    page.go_back()
    page.go_back()
    expect(page.locator(".item.user")).to_contain_text("hello first")
    expect(message).to_have_value("only for the first")
    expect(files).to_have_count(1)
    message.press("Enter")
    expect(page.locator(".item.assistant")).to_have_count(2)
    page.get_by_role("link", name="New chat").click()
    expect(page.get_by_text("Write the first message below.")).to_be_visible()
    page.go_back()
    expect(page.locator(".item.assistant")).to_have_count(2)
    expect(message).to_have_value("")


def test_a_refused_message_comes_back_only_where_it_was_written(
    page: Page, gateway: Gateway
) -> None:
    gateway.say("refusing", "hello refusing")
    refusing = gateway.session("refusing")["id"]
    show(page, gateway, f"/chat/{refusing}")
    message = page.get_by_label("Message", exact=True)
    held = hold(page, "**/v1/responses")
    message.fill("not accepted")
    with page.expect_request("**/v1/responses"):
        message.press("Enter")
    held[0].fulfill(status=400, json={"error": {"message": "not this one", "code": "no"}})
    expect(page.get_by_role("alert")).to_contain_text("not this one")
    expect(message).to_have_value("not accepted")
    page.evaluate("location.hash = '#/chat'")
    expect(page.get_by_text("Write the first message below.")).to_be_visible()
    expect(message).to_have_value("")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_question_ends_with_the_page_that_asked_it(page: Page, gateway: Gateway) -> None:
    gateway.say("asked", "hello")
    session = gateway.session("asked")["id"]
    show(page, gateway, "/sessions")
    page.evaluate(f"location.hash = '#/sessions/{session}'")
    dialog = page.get_by_role("dialog")
    for _ in range(2):
        page.get_by_role("button", name="Reset").click()
        expect(dialog).to_be_visible()
        page.go_back()
        expect(page.locator("main h1")).to_have_text("Sessions")
        expect(dialog).to_have_count(0)
        page.go_forward()
        expect(page.locator("main h1")).to_have_text("asked")
    page.get_by_role("button", name="Reset").click()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert gateway.session("asked")["id"] == session


def test_what_is_pressed_twice_is_done_once(page: Page, gateway: Gateway) -> None:
    gateway.say("forked-once", "hello")
    session = gateway.session("forked-once")["id"]
    show(page, gateway, f"/sessions/{session}")
    forks = hold(page, "**/v1/sessions/*/fork")
    with page.expect_request("**/v1/sessions/*/fork"):
        page.get_by_role("button", name="Fork", exact=True).dblclick()
    keys = hold(page, "**/v1/keys")
    page.evaluate("location.hash = '#/keys'")
    with page.expect_request("**/v1/keys"):
        expect(page.locator("main h1")).to_have_text("API keys")
    keys[0].fulfill(json={"object": "list", "data": []})
    expect(page.get_by_text("No keys yet")).to_be_visible()
    with page.expect_request("**/v1/keys"):
        page.get_by_role("button", name="Create").dblclick()
    # A refusal lets the person try again, once more.
    keys[1].fulfill(status=400, json={"error": {"message": "not this one", "code": "no"}})
    expect(page.get_by_role("alert")).to_contain_text("not this one")
    with page.expect_request("**/v1/keys"):
        page.get_by_role("button", name="Create").click()
    assert keys[2].request.method == "POST"
    assert (len(forks), len(keys)) == (1, 3)


def test_an_address_leads_to_no_other_endpoint(page: Page, gateway: Gateway) -> None:
    show(page, gateway, "/usage")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    for dots in ("%2e%2e", "%2E.", ".."):
        page.evaluate(f"location.hash = '#/sessions/{dots}/turns'")
        expect(page.locator("main h1")).to_have_text("Session")
        expect(page.get_by_role("alert")).to_contain_text("turns")
        page.evaluate("location.hash = '#/usage'")
        expect(page.locator("main h1")).to_have_text("Usage")
    asked = {url for url in requested if "sessions" in url}
    assert asked == {f"{gateway.url}/v1/sessions/turns"}


def test_whoever_signs_in_next_sees_no_message_of_the_person_before(
    page: Page, tmp_path: Path
) -> None:
    with running_gateway(sqlite_url(tmp_path)) as process:
        keys = f"{process.url}/v1/keys"
        key = httpx.post(keys, json={"admin": True}).json()["key"]
        page.goto(f"{process.url}/console#/chat")

        def sign_in() -> None:
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Sign in").click()
            expect(page.locator("main h1")).to_have_text("New chat")

        sign_in()
        message = page.get_by_label("Message", exact=True)
        message.fill("my secret")
        # A key that is refused for a moment takes nothing away from the person who typed.
        page.evaluate("window.dispatchEvent(new CustomEvent('holdfast:unauthorized'))")
        expect(page.get_by_role("alert")).to_contain_text("no longer accepted")
        sign_in()
        expect(message).to_have_value("my secret")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
        sign_in()
        expect(message).to_have_value("")
        page.goto("about:blank")
