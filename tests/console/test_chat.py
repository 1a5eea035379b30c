"""Chat in a real browser: streaming, stop, edit, regenerate, attachments, a restart in between."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.acceptance.gateway_process import running_gateway
from tests.console.conftest import Gateway, hold, release, show
from tests.store_urls import sqlite_url

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c63f8cfc0f01f00050001ff56c72f0d0000000049454e44ae426082"
)
STORY = "Once upon a time there was a gateway that never forgot a single word."
REQUEST_USAGE = """() => {
  const read = ({ get }) => get('/v1/usage').catch((error) => error.status);
  window.early = import('/console/js/api.js').then(read);
}"""
HOLD_ANSWERS = """() => {
  const { fetch } = window;
  const released = new Promise((resolve) => { window.release = resolve; });
  window.fetch = async (path, options) => {
    const answer = await fetch(path, options);
    if (options.method === 'POST') await released;
    return answer;
  };
}"""
"""Hold the beginnings of all answers to POST until `window.release` is called."""
PLACES_OF_CONTROLS = """(composer) => [
  composer.querySelector('select').getBoundingClientRect(),
  [...composer.querySelectorAll('button')].find(
    (one) => one.textContent.trim() === 'Send').getBoundingClientRect(),
].map(({ x, y, width, height }) => ({ x, y, width, height }))"""
"""Where the model picker and the button are."""


IS_SETTLED = """() => !document.querySelector('.live-state, .is-pending')
  && [...document.querySelectorAll('.composer button')].some(
    (one) => one.textContent.trim() === 'Send' && one.checkVisibility())"""
"""Whether no answer is on its way; all of it is read at one moment."""


def send(page: Page, text: str) -> None:
    """Write a message and send it; it is shown then."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator("main")).to_contain_text(text.splitlines()[0])


def settled(page: Page) -> None:
    """Wait until no answer is on its way."""
    page.wait_for_function(IS_SETTLED)


def chat_session(page: Page) -> str:
    """Return the session that the address names."""
    expect(page).to_have_url(re.compile("#/chat/ses_"))
    return page.url.rpartition("/")[2]


def test_a_new_chat_streams_markdown_and_stores_it_once(page: Page, gateway: Gateway) -> None:
    gateway.model.answers["list it"] = "## Plan\n\n- **first**\n- second\n\n`code`"
    show(page, gateway, "/chat")
    page.get_by_label("Model").select_option("gpt-4.1-mini")
    page.get_by_label("Session key (optional)").fill("my-chat")
    send(page, "list it")
    settled(page)
    answer = page.locator(".item.assistant")
    expect(answer).to_have_count(1)
    expect(answer.locator("li")).to_have_count(2)
    expect(answer.locator("strong")).to_have_text("first")
    session = chat_session(page)
    assert gateway.session("my-chat")["id"] == session
    assert gateway.texts(session) == ["list it", "## Plan\n\n- **first**\n- second\n\n`code`"]
    assert gateway.model.requests[-1]["model"] == "gpt-4.1-mini"
    send(page, "and again")
    settled(page)
    expect(page.locator(".item.user")).to_have_count(2)
    assert gateway.texts(session)[2:] == ["and again", "You said: and again"]


def test_an_answer_is_shown_as_it_arrives_and_can_be_stopped(page: Page, gateway: Gateway) -> None:
    gateway.model.answers["tell me a story"] = STORY
    gateway.model.gate.clear()
    show(page, gateway, "/chat")
    send(page, "tell me a story")
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    page.get_by_role("button", name="Stop").click()
    settled(page)
    gateway.model.gate.set()
    turns = gateway.get(f"/v1/sessions/{chat_session(page)}/turns")["data"]
    assert [turn["status"] for turn in turns] == ["cancelled"]
    send(page, "go on")
    settled(page)
    expect(page.locator(".item.assistant").last).to_contain_text("You said: go on")


def test_another_window_sees_the_answer_stream(page: Page, gateway: Gateway) -> None:
    gateway.say("watched", "hello")
    session = gateway.session("watched")["id"]
    show(page, gateway, f"/sessions/{session}")
    expect(page.locator(".item")).to_have_count(2)
    gateway.model.answers["tell me a story"] = STORY
    gateway.model.gate.clear()
    # A model that chains is streamed only once it has proved that it reads its own state.
    gateway.say("watched", "tell me a story", model="gpt-4.1-mini", background=True)
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    gateway.model.gate.set()
    expect(page.locator(".is-live")).to_have_count(0)
    expect(page.locator(".item")).to_have_count(4)
    expect(page.locator(".item").last).to_contain_text("a single word.")


def test_a_message_is_edited_and_an_answer_regenerated(page: Page, gateway: Gateway) -> None:
    show(page, gateway, "/chat")
    page.get_by_label("Model").select_option("gpt-4.1-mini")
    for text in ("one", "two"):
        send(page, text)
        settled(page)
    session = chat_session(page)
    page.locator(".item.user").last.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Message").fill("two, better")
    dialog.get_by_role("button", name="Send").click()
    expect(page.locator(".item.assistant").last).to_contain_text("You said: two, better")
    settled(page)
    expected = ["one", "You said: one", "two, better", "You said: two, better"]
    assert gateway.texts(session) == expected
    gateway.model.answers["two, better"] = "Another answer."
    page.locator(".item.user").last.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".item.assistant").last).to_contain_text("Another answer.")
    settled(page)
    assert gateway.texts(session) == [*expected[:3], "Another answer."]
    page.get_by_role("link", name="Inspect").click()
    page.get_by_label("Show hidden items").check()
    expect(page.get_by_text("replaced by an edit or a regenerate").first).to_be_visible()


def test_an_image_and_a_file_are_attached(page: Page, gateway: Gateway, tmp_path: Path) -> None:
    picture, notes = tmp_path / "dot.png", tmp_path / "notes.txt"
    picture.write_bytes(PIXEL)
    notes.write_text("remember the milk")
    show(page, gateway, "/chat")
    page.locator("input[type=file]").set_input_files([picture, notes])
    expect(page.get_by_label("Attachments").get_by_role("listitem")).to_have_count(2)
    send(page, "what is this?")
    settled(page)
    sent = gateway.model.requests[-1]["input"][-1]["content"]
    assert [part["type"] for part in sent] == ["input_text", "input_image", "input_file"]
    assert sent[2]["filename"] == "notes.txt"
    expect(page.get_by_role("img", name="Attached image")).to_be_visible()


def test_a_restart_in_mid_answer_loses_and_doubles_nothing(page: Page, gateway: Gateway) -> None:
    gateway.model.answers["tell me a story"] = STORY
    gateway.model.gate.clear()
    show(page, gateway, "/chat")
    send(page, "tell me a story")
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    gateway.process.kill()
    expect(page.locator(".live-state")).to_contain_text("reconnecting")
    gateway.model.gate.set()
    gateway.process.start()
    expect(page.locator(".item.assistant").last).to_contain_text("a single word.")
    settled(page)
    session = chat_session(page)
    assert gateway.texts(session) == ["tell me a story", STORY]
    expect(page.locator(".item.user")).to_have_count(1)
    expect(page.locator(".item.assistant")).to_have_count(1)
    turns = gateway.get(f"/v1/sessions/{session}/turns")["data"]
    assert [turn["status"] for turn in turns] == ["completed"]
    expect(page.locator(".live-dot.on")).to_be_visible()


def test_a_message_sent_while_the_gateway_is_down_arrives_once(
    page: Page, gateway: Gateway
) -> None:
    show(page, gateway, "/chat")
    send(page, "before")
    settled(page)
    gateway.process.kill()
    send(page, "while you were away")
    expect(page.locator(".live-state")).to_contain_text("reconnecting")
    gateway.process.start()
    expect(page.locator(".item.assistant")).to_have_count(2)
    settled(page)
    expected = [
        "before",
        "You said: before",
        "while you were away",
        "You said: while you were away",
    ]
    assert gateway.texts(chat_session(page)) == expected


def test_a_new_chat_reads_no_session_when_the_gateway_comes_back(
    page: Page, gateway: Gateway
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, gateway, "/chat")
    expect(page.locator(".live-dot.on")).to_be_attached()
    gateway.process.kill()
    expect(page.locator(".live-dot.on")).to_have_count(0)
    gateway.process.start()
    expect(page.locator(".live-dot.on")).to_be_attached()
    send(page, "still here")
    settled(page)
    assert [url for url in asked if "/v1/sessions//" in url] == []
    expect(page.get_by_role("alert")).to_have_count(0)


def test_keys_are_created_used_to_sign_in_and_kept_out_of_the_address(
    page: Page, tmp_path: Path
) -> None:
    with running_gateway(sqlite_url(tmp_path)) as process:
        page.goto(f"{process.url}/console#/keys")
        expect(page.get_by_text("No keys yet")).to_be_visible()
        held = hold(page, "**/v1/usage")
        with page.expect_request("**/v1/usage"):
            page.evaluate(REQUEST_USAGE)
        page.get_by_label("Name").fill("ops")
        page.get_by_role("button", name="Create").click()
        key = page.locator(".new-key").inner_text()
        assert key.startswith("hf_")
        # The refusal of a request that was sent without the key does not hide it.
        held[0].continue_()
        assert page.evaluate("window.early") == 401
        expect(page.locator(".new-key")).to_have_text(key)
        expect(page.get_by_role("region", name="API keys")).to_contain_text("ops")
        page.reload()
        expect(page.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
        for wrong, reason in (
            ("hf_wrong", "this API key is not valid"),
            ("hf_\u2026 copied with an ellipsis", "This is no API key"),
        ):
            page.get_by_label("API key").fill(wrong)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("alert")).to_contain_text(reason)
            expect(page.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
        page.get_by_label("API key").fill(key)
        page.get_by_label("Keep it until this tab is closed").check()
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("region", name="API keys")).to_be_visible()
        page.reload()
        expect(page.get_by_role("region", name="API keys")).to_be_visible()
        assert key not in page.url
        assert page.evaluate("localStorage.length") == 0
        page.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("no longer accepted")
        page.goto("about:blank")


def begin_story(page: Page, gateway: Gateway) -> str:
    """Start an answer that stops after its first words; return its session."""
    gateway.model.answers["tell me a story"] = STORY
    gateway.model.gate.clear()
    show(page, gateway, "/chat")
    send(page, "tell me a story")
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    return chat_session(page)


def test_an_answer_stays_in_its_own_session(page: Page, gateway: Gateway) -> None:
    gateway.say("elsewhere", "hello from elsewhere")
    other = gateway.session("elsewhere")["id"]
    session = begin_story(page, gateway)
    page.evaluate(f"location.hash = '#/chat/{other}'")
    expect(page.locator(".item.user")).to_contain_text("hello from elsewhere")
    gateway.model.gate.set()
    page.evaluate(f"location.hash = '#/chat/{session}'")
    expect(page.locator(".item.assistant")).to_contain_text("a single word.")
    page.evaluate(f"location.hash = '#/chat/{other}'")
    expect(page.locator(".item.user")).to_contain_text("hello from elsewhere")
    expect(page.locator("main")).not_to_contain_text("Once upon")


def test_a_new_chat_can_be_started_while_an_answer_streams(page: Page, gateway: Gateway) -> None:
    session = begin_story(page, gateway)
    page.get_by_role("link", name="New chat").click()
    expect(page.get_by_text("Write the first message below.")).to_be_visible()
    gateway.model.gate.set()
    send(page, "something else")
    settled(page)
    assert chat_session(page) != session
    assert gateway.texts(chat_session(page)) == ["something else", "You said: something else"]
    page.get_by_role("link", name="New chat").click()
    expect(page.get_by_text("Write the first message below.")).to_be_visible()


def test_a_new_chat_shows_nothing_of_the_chat_before(page: Page, gateway: Gateway) -> None:
    gateway.say("before", "hello", model="gpt-4.1-mini")
    show(page, gateway, f"/chat/{gateway.session('before')['id']}")
    expect(page.locator("main h1")).to_have_text("before")
    page.get_by_role("link", name="New chat").click()
    expect(page.locator("main h1")).to_have_text("New chat")
    expect(page).to_have_title("Chat · Holdfast")


def test_the_composer_has_one_row_of_controls_on_a_phone(page: Page, gateway: Gateway) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    show(page, gateway, "/chat")
    expect(page.get_by_label("Model").locator("option[value='gpt-4.1-mini']")).to_be_attached()
    # Both places are read at once: what loads above the composer moves it down.
    picker, button = page.locator(".composer").evaluate(PLACES_OF_CONTROLS)
    assert button["x"] > picker["x"] + picker["width"]
    assert abs(button["y"] - picker["y"]) < picker["height"]


def test_an_answer_can_be_stopped_after_a_reload(page: Page, gateway: Gateway) -> None:
    session = begin_story(page, gateway)
    page.reload()
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    page.get_by_role("button", name="Stop").click()
    settled(page)
    gateway.model.gate.set()
    turns = gateway.get(f"/v1/sessions/{session}/turns")["data"]
    assert [turn["status"] for turn in turns] == ["cancelled"]
    expect(page.locator(".turn-end")).to_contain_text("stopped")


def test_a_message_waits_behind_the_answer_of_somebody_else(page: Page, gateway: Gateway) -> None:
    gateway.say("shared", "hello")
    session = gateway.session("shared")["id"]
    show(page, gateway, f"/chat/{session}")
    page.get_by_label("Model").select_option("gpt-4.1-mini")
    gateway.model.answers["tell me a story"] = STORY
    gateway.model.gate.clear()
    gateway.say("shared", "tell me a story", model="gpt-4.1-mini", background=True)
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    send(page, "my own question")
    expect(page.locator(".is-pending")).to_contain_text("my own question")
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    gateway.model.gate.set()
    # Between the two answers, none is on its way.
    expect(page.locator(".item.assistant").last).to_contain_text("You said: my own question")
    settled(page)
    expected = ["hello", "You said: hello", "tell me a story", STORY]
    expected += ["my own question", "You said: my own question"]
    assert gateway.texts(session) == expected
    assert page.locator(".item-body").all_inner_texts() == expected


def test_an_edit_keeps_the_lines_and_the_attachments(
    page: Page, gateway: Gateway, tmp_path: Path
) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(PIXEL)
    show(page, gateway, "/chat")
    page.locator("input[type=file]").set_input_files([picture])
    send(page, "first line\nsecond line")
    settled(page)
    page.locator(".item.user").get_by_role("button", name="Edit").click()
    field = page.get_by_role("dialog").get_by_label("Message")
    expect(field).to_have_value("first line\nsecond line")
    field.fill("first line\nanother line")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.locator(".item.user").last).to_contain_text("another line")
    settled(page)
    text, image = gateway.model.requests[-1]["input"][-1]["content"]
    assert text["text"] == "first line\nanother line"
    assert image["type"] == "input_image"


def test_a_failed_turn_says_why(page: Page, gateway: Gateway) -> None:
    gateway.model.failures["break"] = "The model is overloaded with poems."
    show(page, gateway, "/chat")
    send(page, "break")
    settled(page)
    failure = page.locator(".turn-end")
    expect(failure).to_contain_text("failed")
    expect(failure).to_contain_text("The model is overloaded with poems.")
    page.get_by_role("link", name="Inspect").click()
    expect(failure).to_contain_text("The model is overloaded with poems.")


def test_models_that_cannot_be_listed_are_the_reason_why_nothing_is_sent(
    page: Page, tmp_path: Path
) -> None:
    arguments = ("--upstream", "http://127.0.0.1:1/v1")
    with running_gateway(sqlite_url(tmp_path), *arguments) as process:
        page.goto(f"{process.url}/console#/chat")
        expect(page.get_by_label("Model")).to_contain_text("Choose a model")
        page.get_by_label("Message", exact=True).fill("hello")
        page.get_by_label("Message", exact=True).press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("127.0.0.1:1 cannot be reached")
        expect(page.get_by_label("Message", exact=True)).to_have_value("hello")
        page.goto("about:blank")


def test_an_answer_that_ends_while_the_gateway_stops_is_shown(page: Page, gateway: Gateway) -> None:
    session = begin_story(page, gateway)
    gateway.process.terminate()
    expect(page.locator(".live-dot.on")).to_have_count(0)
    gateway.model.gate.set()
    expect(page.locator(".live-state")).to_contain_text("saving")
    gateway.process.stop()
    gateway.process.start()
    expect(page.locator(".item.assistant")).to_contain_text("a single word.")
    settled(page)
    assert gateway.texts(session) == ["tell me a story", STORY]


def test_an_answer_whose_beginning_is_late_is_shown_once(page: Page, gateway: Gateway) -> None:
    gateway.say("late-beginning", "hello", model="gpt-4.1-mini")
    show(page, gateway, f"/chat/{gateway.session('late-beginning')['id']}")
    expect(page.get_by_label("Model")).to_have_value("gpt-4.1-mini")
    expect(page.locator(".live-dot.on")).to_be_visible()
    gateway.model.answers["tell me a story"] = STORY
    gateway.model.gate.clear()
    page.evaluate(HOLD_ANSWERS)
    send(page, "tell me a story")
    # The feed says that the turn runs before its own answer does.
    expect(page.get_by_role("article", name="user, item 3", exact=True)).to_be_visible()
    expect(page.locator(".live-state")).to_have_count(1)
    page.evaluate("window.release()")
    expect(page.locator(".is-live")).to_contain_text("Once upon")
    gateway.model.gate.set()
    settled(page)
    expect(page.locator(".item")).to_have_count(4)


def test_a_late_answer_about_the_session_leaves_the_chosen_model(
    page: Page, gateway: Gateway
) -> None:
    gateway.say("decided", "hello", model="gpt-4.1-mini")
    session = gateway.session("decided")["id"]
    held = hold(page, f"**/v1/sessions/{session}")
    with page.expect_request(f"**/v1/sessions/{session}"):
        show(page, gateway, f"/chat/{session}")
    page.get_by_label("Model").select_option("gpt-4.1")
    release(page, held[0])
    expect(page.get_by_label("Model")).to_have_value("gpt-4.1")


def test_the_model_of_a_first_turn_that_still_runs_is_chosen(page: Page, gateway: Gateway) -> None:
    gateway.model.gate.clear()
    try:
        gateway.say("patient", "a long story please", model="gpt-4.1-mini", background=True)
        show(page, gateway, f"/chat/{gateway.session('patient')['id']}")
        expect(page.get_by_label("Model")).to_have_value("gpt-4.1-mini")
    finally:
        gateway.model.gate.set()
    settled(page)


def test_the_model_of_the_session_is_chosen_and_any_other_can_be_named(
    page: Page, gateway: Gateway
) -> None:
    gateway.say("picky", "hello", model="gpt-4.1-mini")
    show(page, gateway, f"/chat/{gateway.session('picky')['id']}")
    expect(page.get_by_label("Model")).to_have_value("gpt-4.1-mini")
    page.get_by_label("Model").select_option("Other model…")
    page.get_by_role("dialog").get_by_label("Model name").fill("experimental-7")
    page.get_by_role("dialog").get_by_role("button", name="Choose").click()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("experimental-7")
    send(page, "which model are you?")
    settled(page)
    assert gateway.model.requests[-1]["model"] == "experimental-7"


def test_the_system_prompt_and_the_temperature_of_a_chat_are_sent(
    page: Page, gateway: Gateway
) -> None:
    show(page, gateway, "/chat")
    page.get_by_label("Settings of this chat").click()
    page.get_by_label("System prompt").fill("Answer in verse.")
    page.get_by_label("Temperature").fill("0.3")
    send(page, "hello")
    settled(page)
    send(page, "and again")
    settled(page)
    for request in gateway.model.requests[-2:]:
        assert (request["instructions"], request["temperature"]) == ("Answer in verse.", 0.3)
    session = gateway.get(f"/v1/sessions/{chat_session(page)}")
    assert session["source"] == "console"
    assert session["last_user_activity_at"] is not None


def test_other_conversations_are_beside_the_chat_and_answers_can_be_copied(
    page: Page, gateway: Gateway
) -> None:
    gateway.say("beside", "the first words of another chat")
    gateway.model.answers["some code"] = "Here:\n\n```python\nprint('hello')\n```\n"
    show(page, gateway, "/chat")
    send(page, "some code")
    settled(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.locator(".hl-string")).to_have_text("'hello'")
    page.get_by_role("button", name="Copy code, python").click()
    expect(page.locator(".notice")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "print('hello')"
    page.locator(".item.assistant").hover()
    page.get_by_role("button", name="Copy item 2").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).includes('```')")
    beside = page.get_by_label("Conversations")
    beside.get_by_role("link", name="the first words of another chat").click()
    expect(page.locator("main h1")).to_have_text("beside")
    expect(page.locator(".item.user")).to_contain_text("the first words of another chat")


def test_markdown_keeps_its_alignment_its_order_and_its_direction(
    page: Page, gateway: Gateway
) -> None:
    arabic = "\u0645\u0631\u062d\u0628\u0627"
    gateway.model.answers["format"] = (
        f"| a | b |\n|:--|--:|\n| x | 12 |\n\n3. {arabic}\n4. {arabic}\n\n<b>no html</b>"
    )
    gateway.say("formatted", "format")
    show(page, gateway, f"/chat/{gateway.session('formatted')['id']}")
    answer = page.locator(".item.assistant")
    expect(answer.get_by_role("cell", name="12")).to_have_css("text-align", "right")
    listed = answer.locator("ol")
    expect(listed).to_have_attribute("start", "3")
    expect(listed).to_have_css("direction", "rtl")
    expect(answer).to_contain_text("<b>no html</b>")
