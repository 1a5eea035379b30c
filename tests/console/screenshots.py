"""Take pictures of every page at three widths, light and dark, to be looked at.

`python -m tests.console.screenshots [NAME…]` writes them to `build/console/screens`.
"""

import sys
import tempfile
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from tests.acceptance.gateway_process import free_port, running_gateway
from tests.console.browser import chromium_path
from tests.console.conftest import ARTEFACTS, Gateway
from tests.console.story_model import running_model
from tests.store_urls import sqlite_url

WIDTHS = (390, 1100, 1920)
HEIGHT = 900
CONFIG = """
[[upstream]]
name = "openai"
url = "{url}"
key_env = "STORY_KEY"
models = ["gpt-4.1"]
state = "chain"
[[upstream]]
name = "replay"
url = "{url}"
key_env = "STORY_KEY"
models = ["*"]
[[mcp]]
name = "files"
command = "{python}"
args = ["{server}", "{state}"]
"""
WEEK = """Here is a plan that leaves **two mornings** free:

| Day | Morning | Hours |
|---|:---:|---:|
| Monday | report | 3.5 |
| Wednesday | review with [Ada](https://example.com) | 12 |

1. Write the first draft on Monday
2. Ask for comments
   - by mail
   - or in the chat

```python
from datetime import date

def days_left(until: date) -> int:
    \"\"\"Return the days that are left.\"\"\"
    return (until - date.today()).days  # negative if it is late
```
"""
TALKS = {
    "agent:main:week": [("Plan my week, please.", WEEK)],
    "agent:main:telegram:ada": [
        ("Plan my week, please. I have a report to write.", WEEK),
        ("How many days are left until Friday?", "Four days. The draft needs two of them."),
    ],
    "support:ticket:4711": [
        ("My invoice from October has the wrong address.", "Sorry. Which one should be on it?"),
        ("Lovelace Street 12, London.", "Done. The corrected invoice is on its way to you."),
    ],
    "agent:coder:grace": [
        ("Why does the nightly job fail?", "It runs before the backup has ended: move it."),
    ],
}  # fmt: skip


def fill(gateway: Gateway) -> dict[str, str]:
    """Create sessions that show what the pages have; return the address of each page."""
    model = gateway.model
    for key, turns in TALKS.items():
        for question, answer in turns:
            model.answers[question] = answer
            gateway.say(key, question)
    ada = gateway.session("agent:main:telegram:ada")["id"]
    week = gateway.session("agent:main:week")["id"]
    for number in range(4):
        gateway.say("agent:main:telegram:ada", f"And on day {number + 1}?")
    model.forget()
    gateway.say("agent:main:telegram:ada", "Do you still know my plan?")
    model.failures["Send it now."] = "Incorrect API key provided: sk-…1234."
    gateway.say("agent:coder:grace", "Send it now.")
    fork = gateway.post(f"/v1/sessions/{ada}/fork", {"after_item": 4})["id"]
    headers = {"X-Session-Id": fork}
    body = {"model": "gpt-4.1-mini", "input": "What if Monday is a holiday?"}
    httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers)
    gateway.post(f"/v1/sessions/{fork}/fork")
    [*_, before, last] = gateway.get(f"/v1/sessions/{ada}/turns", limit=100)["data"]
    return {
        "sessions": "/sessions", "search": "/sessions?q=invoice", "session": f"/sessions/{ada}",
        "timeline": f"/sessions/{ada}/timeline", "forks": f"/sessions/{ada}/generations",
        "turn": f"/turns/{last['id']}", "chat": f"/chat/{week}",
        "compare": f"/compare/{before['id']}/{last['id']}",
        "compare-fork": f"/compare/{ada}/{fork}", "operations": "/operations", "usage": "/usage",
        "keys": "/keys",
    }  # fmt: skip


def take(page: Page, gateway: Gateway, routes: dict[str, str], theme: str) -> None:
    """Take the pictures of one theme."""
    folder = ARTEFACTS / "screens"
    folder.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        for name, route in routes.items():
            page.goto("about:blank")
            page.goto(f"{gateway.url}/console#{route}")
            page.locator("main h1").wait_for()
            page.wait_for_function("() => !document.querySelector('.state.loading')")
            page.wait_for_timeout(1100)
            page.screenshot(path=folder / f"{name}-{width}-{theme}.png")


def main(names: list[str]) -> None:
    """Take the pictures of the named pages, or of all."""
    with tempfile.TemporaryDirectory() as temporary, running_model() as model:
        folder = Path(temporary)
        config = folder / "holdfast.toml"
        server = Path(__file__).parents[1] / "tools/odd_mcp_server.py"
        config.write_text(
            CONFIG.format(
                url=model.url, python=sys.executable, server=server, state=folder / "calls"
            )
        )
        arguments = ("--config", str(config), "--port", str(free_port()))
        with running_gateway(
            sqlite_url(folder), *arguments, env={"STORY_KEY": "sk-story"}
        ) as process:
            gateway = Gateway(process, model)
            routes = fill(gateway)
            wanted = {name: routes[name] for name in names or routes}
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium_path(), args=["--no-sandbox", "--disable-gpu"]
                )
                for theme in ("light", "dark"):
                    context = browser.new_context(
                        color_scheme="light" if theme == "light" else "dark"
                    )
                    take(context.new_page(), gateway, wanted, theme)
                    context.close()
                browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
