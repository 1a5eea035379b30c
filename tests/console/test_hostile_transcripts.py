"""Content is shown, never executed: hostile text, huge items, very many items."""

import httpx
import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.console.conftest import Gateway, show

ATTACKS = [
    "<script>window.attacked = 1</script>",
    "<img src=x onerror='window.attacked = 1'>",
    "[click](javascript:window.attacked=1) and [data](data:text/html,<script>1</script>)",
    "![remote](https://tracker.example/pixel.png)",
    "<svg onload='window.attacked = 1'><style>*{display:none}</style>",
    "admin\u202etxt.exe \u2066hidden\u2069 zero\u200bwidth nul\u0000",
    "`" * 5000 + "**" * 5000 + "[" * 5000 + "_" * 3000,
    "> " * 300 + "deep",
    "${alert(1)} {{constructor.constructor('window.attacked=1')()}}",
]
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
MANY = 10_000
IN_SIGHT = """() => [...document.querySelectorAll('.item')].find((one) => {
  const { top, bottom } = one.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
})?.getAttribute('aria-label')"""
"""The first item on the screen, once there is one."""
HUGE = 5 * 1024 * 1024


def add(gateway: Gateway, session: str, texts: list[str], role: str = "assistant") -> None:
    """Store messages without a run."""
    kind = "output_text" if role == "assistant" else "input_text"
    items = [
        {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        for text in texts
    ]
    answer = httpx.post(
        f"{gateway.url}/v1/sessions/{session}/items", json={"items": items}, timeout=60
    )
    assert answer.status_code == 200, answer.text


@pytest.fixture
def session(gateway: Gateway, request: pytest.FixtureRequest) -> str:
    """A session with one turn; returns its id."""
    key = str(request.node.name)
    assert gateway.say(key, "hello").status_code == 200
    return str(gateway.session(key)["id"])


def test_hostile_text_is_shown_as_text(page: Page, gateway: Gateway, session: str) -> None:
    add(gateway, session, ATTACKS)
    add(gateway, session, ATTACKS, role="user")
    gateway.post(f"/v1/sessions/{session}", {"metadata": {"<b>x</b>": "<script>1</script>"}})
    show(page, gateway, f"/sessions/{session}")
    expect(page.get_by_text("<script>window.attacked = 1</script>").first).to_be_visible()
    items = page.locator(".items")
    expect(items.locator(".item")).to_have_count(2 + 2 * len(ATTACKS))
    expect(items).to_contain_text("admin[U+202E]txt.exe [U+2066]hidden[U+2069]")
    assert page.evaluate("window.attacked") is None
    assert items.locator("script, svg, iframe, style").count() == 0
    assert items.locator("img").count() == 0
    links = items.locator("a").evaluate_all("nodes => nodes.map(node => node.href)")
    assert set(links) == {"https://tracker.example/pixel.png"}
    relations = items.locator("a").evaluate_all("nodes => nodes.map(node => node.rel)")
    assert all("noopener" in relation for relation in relations)
    page.goto(f"{gateway.url}/console#/sessions/{session}/metadata")
    expect(page.get_by_label("Name")).to_have_value("<b>x</b>")


def test_a_hostile_key_and_a_hostile_tool_call_are_text_too(page: Page, gateway: Gateway) -> None:
    key = "<img src=x onerror=alert(1)>"
    gateway.say(key, "hello")
    session = gateway.session(key)["id"]
    call = {"type": "function_call", "call_id": "c1", "name": "<b>run</b>", "arguments": "{oops"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "<script>1</script>"}
    picture = {"type": "input_image", "image_url": "data:image/svg+xml;base64,PHN2Zz48L3N2Zz4="}
    image = {"type": "message", "role": "user", "content": [picture]}
    gateway.post(f"/v1/sessions/{session}/items", {"items": [call, output, image]})
    show(page, gateway, f"/sessions/{session}")
    expect(page.locator("h1")).to_have_text(key)
    expect(page.locator(".call-name")).to_have_text("<b>run</b>")
    expect(page.get_by_text("An image that cannot be shown")).to_be_visible()
    assert page.locator(".items img").count() == 0


def test_names_without_a_space_do_not_make_the_page_wider(page: Page, gateway: Gateway) -> None:
    long = "W" * 400
    page.set_viewport_size({"width": 360, "height": 740})
    gateway.model.failures[long] = long
    assert gateway.say(long, "hello", model=f"m{long[:200]}").status_code == 200
    assert gateway.say(long, long).status_code == 400
    session = gateway.session(long)["id"]
    call = {"type": "function_call", "call_id": "c1", "name": long, "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": long}
    items = [{**call, "status": long}, output, {"type": f"{long}\u202e", "x": long}]
    gateway.post(f"/v1/sessions/{session}/items", {"items": items})
    for route in (f"/sessions/{session}", f"/chat/{session}"):
        show(page, gateway, route)
        expect(page.locator(".item-kind").last).to_have_text(f"{long}[U+202E]")
        assert page.evaluate(TOO_WIDE) <= 0, route
    page.get_by_label("Message", exact=True).fill("with a file")
    page.locator("input[type=file]").set_input_files(
        FilePayload(name=f"{long[:200]}.txt", mimeType="text/plain", buffer=b"hi")
    )
    expect(page.get_by_label("Attachments").get_by_role("listitem")).to_have_count(1)
    assert page.evaluate(TOO_WIDE) <= 0
    page.evaluate(f"location.hash = '#/sessions/{long}'")
    expect(page.get_by_role("alert")).to_contain_text(long)
    assert page.evaluate(TOO_WIDE) <= 0


def test_an_item_of_five_megabytes_is_shown_in_steps(
    page: Page, gateway: Gateway, session: str
) -> None:
    add(gateway, session, ["x" * HUGE])
    show(page, gateway, f"/sessions/{session}")
    more = page.get_by_role("button", name="Show more (5.0 MB left)")
    expect(more).to_be_visible()
    shown = page.locator(".item").last.locator(".item-body")
    assert len(shown.inner_text()) < 30_000
    more.click()
    expect(page.get_by_role("button", name="Show more (4.8 MB left)")).to_be_visible()


def test_ten_thousand_items_scroll_with_few_elements(
    page: Page, gateway: Gateway, session: str
) -> None:
    for start in range(0, MANY, 1000):
        add(gateway, session, [f"note {number}" for number in range(start, start + 1000)])
    show(page, gateway, f"/sessions/{session}")
    expect(page.locator(".item").first).to_be_visible()
    # Older items come by themselves as one scrolls towards them.
    count = "document.querySelector('hf-transcript').entries.length"
    assert page.evaluate(count) == 50
    page.mouse.move(600, 600)
    page.mouse.wheel(0, -100_000)
    page.wait_for_function(f"() => {count} > 50")
    loaded = page.evaluate(count)
    assert loaded < MANY / 2
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_function(f"() => {count} > {loaded}")
    # Load everything at once, as a person would who never stops to press the button.
    page.evaluate(
        "async () => { const list = document.querySelector('hf-transcript');"
        " while (list.hasOlder) await list.readOlder(); await list.updateComplete; }"
    )
    assert page.evaluate("document.querySelector('hf-transcript').entries.length") == MANY + 2
    height = page.evaluate("document.documentElement.scrollHeight")
    seen = set()
    for share in (0, 0.25, 0.5, 0.75, 1):
        page.evaluate(f"window.scrollTo(0, {height * share})")
        on_screen = page.wait_for_function(IN_SIGHT)
        seen.add(on_screen.json_value())
        # Only what is near the screen is in the document.
        assert page.locator(".item").count() < 400
    assert len(seen) == 5


def test_stacked_marks_and_invisible_characters_stay_in_their_item(
    page: Page, gateway: Gateway, session: str
) -> None:
    add(gateway, session, ["a" + "\u0301" * 3000, "tag\U000e0041\u3164\u00adend"])
    show(page, gateway, f"/sessions/{session}")
    items = page.locator(".items")
    expect(items).to_contain_text("[+2994 marks]")
    expect(items).to_contain_text("tag[U+E0041][U+3164][U+00AD]end")
    clipped = page.locator(".item-body").evaluate_all(
        "nodes => nodes.map(node => getComputedStyle(node).overflowY)"
    )
    assert set(clipped) == {"clip"}
