"""The flows of the console in a real browser: sessions, the model's view, operation, access."""

import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.gateway_process import running_gateway
from tests.clients.environments import node_with
from tests.console.conftest import ARTEFACTS, Gateway, hold, release, show
from tests.store_urls import sqlite_url

AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AXE = {
    "light": {"runOnly": AXE_RULES, "resultTypes": ["violations"]},
    # Everything but the colours is the same in the dark.
    "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}},
}
WIDTHS = {"narrow": 360, "medium": 820, "wide": 1440}


@pytest.fixture(scope="module")
def axe() -> str:
    """The accessibility rules, as a script."""
    folder = node_with(Path(__file__).parent / "package.json")
    return (folder / "axe-core/axe.min.js").read_text()


@pytest.fixture(scope="module")
def story(gateway: Gateway) -> str:
    """A session with a heal, an edit and a compaction; returns its id."""
    gateway.model.answers["Plan my week"] = (
        "## Your week\n\n1. **Monday**: write the report\n2. Review with "
        "[Ada](https://example.com)\n\n```python\nprint('hello')\n```\n\n"
        "| day | task |\n|---|---|\n| Wed | rest |\n"
    )
    gateway.say("story", "Plan my week " + "in detail " * 40)
    for text in ("Plan my week", "What about Friday?"):
        assert gateway.say("story", text).status_code == 200
    gateway.model.forget()
    assert gateway.say("story", "Do you still know me?").status_code == 200
    session = str(gateway.session("story")["id"])
    gateway.post(f"/v1/sessions/{session}/compact")
    assert gateway.say("story", "And now?").status_code == 200
    return session


def violations(page: Page, axe: str, theme: str) -> list[str]:
    """Return what axe-core finds on the page."""
    if not page.evaluate("'axe' in window"):
        # The policy forbids foreign scripts to the page, not to the test.
        page.evaluate(axe)
    found = page.evaluate(f"axe.run(document, {json.dumps(AXE[theme])})")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]


def routes(gateway: Gateway, session: str) -> dict[str, str]:
    """Return every page by name."""
    turns = gateway.get(f"/v1/sessions/{session}/turns", order="desc")["data"]
    return {
        "sessions": "/sessions",
        "session": f"/sessions/{session}",
        "timeline": f"/sessions/{session}/timeline",
        "generations": f"/sessions/{session}/generations",
        "compactions": f"/sessions/{session}/compactions",
        "metadata": f"/sessions/{session}/metadata",
        "turn": f"/turns/{turns[0]['id']}",
        "compare": f"/compare/{turns[1]['id']}/{turns[0]['id']}",
        "chat": f"/chat/{session}",
        "operations": "/operations",
        "usage": "/usage",
        "keys": "/keys",
    }


def test_the_list_shows_sessions_and_follows_them_live(page: Page, gateway: Gateway) -> None:
    gateway.say("first", "hello")
    show(page, gateway, "/sessions")
    expect(page.get_by_role("link", name="first", exact=True)).to_be_visible()
    expect(page.locator(".live-dot.on")).to_be_visible()
    gateway.say("while-watching", "hello")
    expect(page.get_by_role("link", name="while-watching")).to_be_visible()
    row = page.get_by_role("row", name=re.compile("while-watching"))
    expect(row.get_by_role("cell", name="gpt-4.1")).to_be_visible()
    expect(row.get_by_text("idle")).to_be_visible()


def test_a_running_turn_and_its_queue_are_seen_live(page: Page, gateway: Gateway) -> None:
    show(page, gateway, "/sessions")
    gateway.model.gate.clear()
    gateway.model.has_begun.clear()
    answer = gateway.say("busy", "a long story please", stream=False, background=True)
    assert answer.status_code == 200
    row = page.get_by_role("row", name=re.compile("busy"))
    expect(row.get_by_text("running")).to_be_visible()
    gateway.say("busy", "and another", background=True)
    expect(row.get_by_role("cell", name="1", exact=True).first).to_be_visible()
    gateway.model.gate.set()
    expect(row.get_by_text("idle")).to_be_visible()


def test_sessions_are_found_by_key_id_and_metadata(
    page: Page, gateway: Gateway, story: str
) -> None:
    gateway.say("other", "hello")
    other = gateway.session("other")["id"]
    gateway.post(f"/v1/sessions/{other}", {"metadata": {"customer": "Zanzibar Ltd"}})
    show(page, gateway, "/sessions")
    box = page.get_by_role("searchbox", name="Search sessions")
    for query, key in (("story", "story"), (story, "story"), ("zanzibar", "other")):
        box.fill(query)
        box.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text(key)
    box.fill("no such thing")
    box.press("Enter")
    expect(page.get_by_text("Nothing found")).to_be_visible()


def test_a_filtered_list_loses_what_no_longer_matches(page: Page, gateway: Gateway) -> None:
    gateway.model.gate.clear()
    gateway.say("filtered", "a long story please", background=True)
    show(page, gateway, "/sessions")
    page.get_by_label("Show", exact=True).select_option("running")
    expect(page.locator("tbody tr")).to_have_count(1)
    gateway.model.gate.set()
    expect(page.get_by_role("link", name="filtered")).to_have_count(0)


def test_the_list_shows_what_happened_while_the_feed_was_broken(
    page: Page, gateway: Gateway
) -> None:
    show(page, gateway, "/sessions")
    expect(page.locator(".live-dot.on")).to_be_visible()
    page.context.set_offline(True)
    gateway.process.kill()
    gateway.process.start()
    gateway.say("in-the-gap", "hello")
    page.context.set_offline(False)
    expect(page.get_by_role("link", name="in-the-gap")).to_be_visible()


def test_content_is_found_with_its_matches_marked(page: Page, gateway: Gateway) -> None:
    gateway.say("searched", "The \U0001f600 password of the lighthouse is heliotrope.")
    while not gateway.get("/v1/search", q="heliotrope")["data"]:
        pass  # the index follows the log; the page asks once
    held = hold(page, "**/openapi.json")
    with page.expect_request("**/openapi.json"):
        show(page, gateway, "/sessions")
    box = page.get_by_role("searchbox", name="Search sessions")
    box.fill("heliotrope")
    box.press("Enter")
    # Whoever is faster than the list of what the gateway serves searches everything as well.
    held[0].continue_()
    expect(page.get_by_role("heading", name="Found in transcripts")).to_be_visible()
    marks = page.locator("main mark")
    expect(marks.first).to_have_text("heliotrope")
    page.locator("main").get_by_role("link", name="searched").first.click()
    expect(page.locator("main h1")).to_have_text("searched")


def test_a_turn_shows_the_proven_request_and_why_it_changed(
    page: Page, gateway: Gateway, story: str
) -> None:
    show(page, gateway, f"/sessions/{story}")
    page.get_by_role("button", name="What the model was shown").last.click()
    expect(page.locator("h1")).to_contain_text("what the model was shown")
    expect(page.locator(".proof.good")).to_contain_text("Proven.")
    expect(page.get_by_text("summary of earlier items")).to_be_visible()
    expect(page.locator(".columns")).to_contain_text("replaced by a summary")
    turns = gateway.get(f"/v1/sessions/{story}/turns")["data"]
    healed = next(turn for turn in turns if turn["runs"] and turn["runs"][0]["heals"])
    page.goto(f"{gateway.url}/console#/turns/{healed['id']}")
    attempts = page.get_by_role("region", name="Attempts")
    expect(attempts).to_contain_text("previous_response_not_found")
    expect(attempts).to_contain_text("dropped state")
    expect(
        page.get_by_text("An earlier attempt used state that the provider had lost")
    ).to_be_visible()
    page.get_by_role("button", name="JSON").click()
    expect(page.locator(".code").last).to_contain_text('"input": [')
    page.get_by_role("button", name="Request 1", exact=True).click()
    expect(page.get_by_text("The provider continued from its own memory")).to_be_visible()


def test_the_time_line_names_each_heal(page: Page, gateway: Gateway, story: str) -> None:
    show(page, gateway, f"/sessions/{story}/timeline")
    expect(page.locator(".timeline li")).to_have_count(6)
    expect(page.locator(".timeline p")).to_contain_text("stale state: dropped state")


def test_a_session_is_reset_restored_and_forked(page: Page, gateway: Gateway) -> None:
    gateway.say("generations", "remember the number 7")
    first = gateway.session("generations")["id"]
    show(page, gateway, f"/sessions/{first}")
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(page.get_by_text("Nothing was said yet")).to_be_visible()
    second = gateway.session("generations")
    assert second["generation"] == 2
    page.get_by_role("link", name="Generations and forks").click()
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_text("remember the number 7", exact=True)).to_be_visible()
    assert gateway.session("generations")["id"] == first
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("heading", name="Session without a key")).to_be_visible()
    expect(page.get_by_text("remember the number 7", exact=True)).to_be_visible()
    page.goto(f"{gateway.url}/console#/sessions/{first}/generations")
    expect(page.get_by_text("fork behind item 2")).to_be_visible()
    # From another generation of the key, the fork is seen as well.
    gateway.post(f"/v1/sessions/{first}/reset")
    third = gateway.session("generations")["id"]
    page.goto(f"{gateway.url}/console#/sessions/{third}/generations")
    expect(page.locator(".graph-rows li.is-current")).to_contain_text("Generation 3")
    expect(page.get_by_text("fork behind item 2")).to_be_visible()


def test_a_late_answer_about_another_session_is_not_shown(page: Page, gateway: Gateway) -> None:
    gateway.say("left", "hello")
    gateway.say("opened", "hello")
    left, opened = gateway.session("left")["id"], gateway.session("opened")["id"]
    held = hold(page, f"**/v1/sessions/{left}")
    with page.expect_request(f"**/v1/sessions/{left}"):
        show(page, gateway, f"/sessions/{left}")
    page.evaluate("id => { location.hash = `#/sessions/${id}` }", opened)
    expect(page.get_by_role("heading", name="opened")).to_be_visible()
    release(page, held[0])
    expect(page.get_by_role("heading", name="opened")).to_be_visible()
    expect(page).to_have_title("opened · Holdfast")


def test_what_is_read_first_does_not_replace_what_is_read_later(
    page: Page, gateway: Gateway
) -> None:
    gateway.say("in-order", "hello")
    session = gateway.session("in-order")["id"]
    show(page, gateway, f"/sessions/{session}")
    expect(page.locator(".item")).to_have_count(2)
    expect(page.locator(".live-dot.on")).to_be_visible()
    held = hold(page, f"**/v1/sessions/{session}")
    with page.expect_request(f"**/v1/sessions/{session}"):
        page.evaluate("() => { document.querySelector('hf-session').load(); }")
    page.evaluate("() => { document.querySelector('hf-session').load(); }")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert len(held) == 1
    with page.expect_request(f"**/v1/sessions/{session}"):
        held[0].continue_()


def test_a_change_before_the_feed_opens_is_shown(page: Page, gateway: Gateway) -> None:
    gateway.say("long-before", "hello")
    held = hold(page, "**/v1/events?*")
    with page.expect_request("**/v1/events?*"):
        show(page, gateway, "/sessions")
    expect(page.get_by_role("link", name="long-before", exact=True)).to_be_visible()
    gateway.say("just-before", "hello")
    held[0].continue_()
    expect(page.get_by_role("link", name="just-before", exact=True)).to_be_visible()


def test_a_compaction_is_listed_with_its_summary_and_undone(page: Page, gateway: Gateway) -> None:
    for number in range(3):
        gateway.say("compacted", f"message {number} " + "with many words " * 40)
    session = gateway.session("compacted")["id"]
    gateway.post(f"/v1/sessions/{session}/compact")
    show(page, gateway, f"/sessions/{session}/compactions")
    expect(page.get_by_text("in force", exact=True)).to_be_visible()
    expect(page.get_by_text("Sent to the model instead")).to_be_visible()
    page.get_by_text("What it replaced").click()
    expect(page.locator(".card .item").first).to_contain_text("message 0 with many words")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("undone", exact=True)).to_be_visible()


def test_metadata_is_edited_and_the_session_exported(page: Page, gateway: Gateway) -> None:
    gateway.say("annotated", "hello")
    session = gateway.session("annotated")["id"]
    show(page, gateway, f"/sessions/{session}/metadata")
    page.get_by_role("button", name="Add").click()
    page.get_by_label("Name").fill("owner")
    page.get_by_label("Value").fill("ops")
    page.get_by_role("button", name="Add").click()
    page.get_by_label("Name").last.fill("owner")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("the name “owner” is used twice")).to_be_visible()
    page.get_by_role("button", name="Remove owner").last.click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The metadata was saved")).to_be_visible()
    assert gateway.session("annotated")["metadata"] == {"owner": "ops"}
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    exported = json.loads(download.value.path().read_text())
    assert exported["session"]["id"] == session
    assert [entry["item"]["role"] for entry in exported["items"]] == ["user", "assistant"]
    assert len(exported["turns"]) == 1


def test_an_item_is_deleted_for_the_model_and_another_erased(page: Page, gateway: Gateway) -> None:
    gateway.say("items", "the secret word is abracadabra")
    session = gateway.session("items")["id"]
    show(page, gateway, f"/sessions/{session}")
    answer, question = page.locator(".item.assistant"), page.locator(".item.user")
    answer.get_by_label("Actions for item 2").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Delete for the model…")).to_have_count(0)
    expect(answer.get_by_label("Actions for item 2")).to_be_focused()
    answer.get_by_label("Actions for item 2").click()
    answer.get_by_role("button", name="Delete for the model…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete item").click()
    expect(answer).to_have_count(0)
    page.get_by_label("Show hidden items").check()
    expect(answer).to_contain_text("hidden: hidden")
    question.get_by_label("Actions for item 1").click()
    question.get_by_role("button", name="Erase content…").click()
    page.get_by_role("dialog").get_by_role("button", name="Erase item").click()
    expect(page.get_by_text("The item was erased")).to_be_visible()
    log = gateway.get(f"/v1/sessions/{session}/items", view="log")
    assert "You said" in json.dumps(log)
    assert log["data"][0]["item"].get("content") != "the secret word is abracadabra"
    assert "is abracadabra" not in json.dumps(log["data"][0])


def test_a_session_that_is_erased_elsewhere_leaves_the_screen(page: Page, gateway: Gateway) -> None:
    gateway.say("vanishing", "a private matter")
    session = gateway.session("vanishing")["id"]
    show(page, gateway, f"/sessions/{session}")
    expect(page.get_by_text("a private matter", exact=True)).to_be_visible()
    assert httpx.delete(f"{gateway.url}/v1/sessions/{session}").status_code == 200
    page.evaluate("document.querySelector('hf-session').load()")
    expect(page.get_by_text("session_not_found")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("a private matter")


def test_a_session_is_erased_only_after_its_name_was_typed(page: Page, gateway: Gateway) -> None:
    gateway.say("doomed", "hello")
    session = gateway.session("doomed")["id"]
    show(page, gateway, f"/sessions/{session}")
    page.get_by_role("button", name="Erase…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Erase for good")).to_be_disabled()
    page.keyboard.press("Escape")
    assert gateway.session("doomed")["id"] == session
    page.get_by_role("button", name="Erase…").click()
    dialog.get_by_role("textbox").fill("doomed")
    dialog.get_by_role("button", name="Erase for good").click()
    expect(page).to_have_url(re.compile("#/sessions$"))
    assert gateway.get("/v1/sessions", key="doomed")["data"] == []


def test_operations_show_health_lanes_workers_and_usage(
    page: Page, gateway: Gateway, story: str
) -> None:
    show(page, gateway, "/operations")
    expect(page.get_by_text("The store accepts writes.")).to_be_visible()
    expect(page.get_by_text("provider forgot").first).to_be_visible()
    expect(page.get_by_role("region", name="Workers")).to_contain_text("alive")
    gateway.model.gate.clear()
    gateway.say("in-a-lane", "a long story please", background=True)
    lanes = page.get_by_role("region", name="Lanes")
    expect(lanes).to_contain_text("in-a-lane")
    gateway.model.gate.set()
    expect(page.get_by_text("Nothing is running")).to_be_visible()
    page.get_by_role("link", name="Usage").click()
    expect(page.get_by_role("img", name=re.compile("^Tokens"))).to_be_visible()
    expect(page.get_by_role("region", name="Usage by model")).to_contain_text("gpt-4.1")


def test_operations_show_why_an_upstream_fails(page: Page, gateway: Gateway) -> None:
    gateway.say("answered", "hello", model="gpt-4.1-mini")
    gateway.model.failures["break"] = "The model is overloaded with poems."
    gateway.say("refused", "break")
    show(page, gateway, "/operations")
    upstreams = page.get_by_role("region", name="Upstreams")
    failing = upstreams.get_by_role("row", name="openai")
    expect(failing).to_contain_text("fails")
    expect(failing).to_contain_text("overloaded with poems")
    expect(upstreams.get_by_role("row", name="replay")).to_contain_text("answers")
    failing.get_by_role("link", name="turn").click()
    expect(page.locator("main h1")).to_contain_text("Turn 1")
    gateway.say("answered-again", "hello")
    show(page, gateway, "/operations")
    expect(failing).to_contain_text("answers")


def test_usage_names_what_no_request_asked_a_model_for(page: Page, gateway: Gateway) -> None:
    for text in ("one", "two", "three"):
        gateway.say("compacted", text * 50)
    session = gateway.session("compacted")["id"]
    gateway.post(f"/v1/sessions/{session}/compact")
    show(page, gateway, "/usage")
    rows = page.get_by_role("region", name="Usage by model")
    expect(rows).to_contain_text("compactions and added items, without a model of a request")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_keeps_the_accessibility_rules(
    page: Page, gateway: Gateway, story: str, axe: str, theme: str
) -> None:
    found: dict[str, list[str]] = {}
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type] # one of its literals
    for name, route in routes(gateway, story).items():
        show(page, gateway, route)
        expect(page.locator(".state.loading")).to_have_count(0)
        if broken := violations(page, axe, theme):
            found[name] = broken
    assert found == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_sign_in_and_what_a_search_found_keep_the_accessibility_rules(
    page: Page, gateway: Gateway, story: str, axe: str, tmp_path: Path, theme: str
) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type] # one of its literals
    while not gateway.get("/v1/search", q="Friday")["data"]:
        pass  # the index follows the log
    show(page, gateway, "/sessions?q=Friday")
    expect(page.locator(".hits mark").first).to_be_visible()
    assert violations(page, axe, theme) == []
    with running_gateway(sqlite_url(tmp_path)) as process:
        httpx.post(f"{process.url}/v1/keys", json={"admin": True})
        page.goto(f"{process.url}/console")
        expect(page.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
        assert violations(page, axe, theme) == []
        page.goto("about:blank")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_its_width(page: Page, gateway: Gateway, story: str, width: str) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size({"width": WIDTHS[width], "height": 900})
    for name, route in routes(gateway, story).items():
        show(page, gateway, route)
        expect(page.locator(".state.loading")).to_have_count(0)
        page.screenshot(path=ARTEFACTS / f"{name}-{width}.png")
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, name


OVERFLOWS = "(element) => element.scrollWidth - element.clientWidth"
COUNT_LINES = """(cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return range.getClientRects().length;
}"""


def test_a_phone_shows_all_of_the_list(page: Page, gateway: Gateway) -> None:
    gateway.say("agent:main:direct:somebody-with-a-long-name@example.com", "hello")
    gateway.model.failures["break"] = "The model is overloaded with poems."
    gateway.say("ends-in-a-failure", "break")
    page.set_viewport_size({"width": 360, "height": 800})
    show(page, gateway, "/sessions")
    expect(page.get_by_text("last turn failed").first).to_be_visible()
    assert page.get_by_role("region", name="Sessions").evaluate(OVERFLOWS) <= 0
    expect(page.get_by_role("columnheader", name="Last activity")).to_be_in_viewport()


def test_the_words_in_a_table_are_not_broken(page: Page, gateway: Gateway) -> None:
    gateway.model.answers["table please"] = (
        "| day | task |\n|---|---|\n| Wednesday | " + "rest and read " * 20 + "|\n"
    )
    gateway.say("tabular", "table please")
    page.set_viewport_size({"width": 360, "height": 800})
    show(page, gateway, f"/sessions/{gateway.session('tabular')['id']}")
    cell = page.get_by_role("cell", name="Wednesday")
    expect(cell).to_be_visible()
    assert cell.evaluate(COUNT_LINES) == 1


def test_the_chosen_view_is_in_sight_on_a_phone(page: Page, gateway: Gateway, story: str) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    show(page, gateway, f"/sessions/{story}/metadata")
    expect(page.get_by_role("link", name="Metadata")).to_be_in_viewport(ratio=0.9)


def test_a_dialog_about_a_long_key_fits_a_phone(page: Page, gateway: Gateway) -> None:
    session = gateway.say("k" * 500, "hello").headers["x-session-id"]
    page.set_viewport_size({"width": 360, "height": 800})
    show(page, gateway, f"/sessions/{session}")
    page.get_by_role("button", name="Erase…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_visible()
    assert dialog.evaluate(OVERFLOWS) <= 0


def test_a_keyboard_is_enough(page: Page, gateway: Gateway) -> None:
    gateway.say("typed", "hello")
    show(page, gateway, "/sessions")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_be_focused()
    page.get_by_role("link", name="typed", exact=True).press("Enter")
    expect(page.locator("main h1")).to_have_text("typed")
    expect(page.locator("main h1")).to_be_focused()


def test_a_page_is_titled_by_what_it_shows(page: Page, gateway: Gateway, story: str) -> None:
    show(page, gateway, f"/sessions/{story}")
    expect(page).to_have_title("story · Holdfast")
    page.get_by_role("link", name="Usage").click()
    expect(page).to_have_title("Usage · Holdfast")


def test_the_browser_reports_a_first_paint(page: Page, gateway: Gateway) -> None:
    show(page, gateway, "/sessions")
    # A page can be read before it is painted.
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length === 1")


def test_a_search_looks_beyond_the_rows_of_the_list(page: Page, gateway: Gateway) -> None:
    gateway.say("agent:main:direct:hypatia", "hello")
    hidden = gateway.session("agent:main:direct:hypatia")["id"]
    gateway.post(f"/v1/sessions/{hidden}", {"metadata": {"city": "Alexandria"}})
    for number in range(51):
        gateway.post("/v1/conversations", {"metadata": {"number": str(number)}})
    show(page, gateway, "/sessions")
    expect(page.locator("tbody tr")).to_have_count(50)
    box = page.get_by_role("searchbox", name="Search sessions")
    for query in ("hypatia", "alexandria"):
        box.fill(query)
        box.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text("agent:main:direct:hypatia")
    box.fill("")
    expect(page.locator("tbody tr")).to_have_count(50)
    # The latest activity is on top, however old the session is.
    gateway.say("agent:main:direct:hypatia", "again")
    expect(page.locator("tbody tr").first).to_contain_text("agent:main:direct:hypatia")
