"""A browser, a gateway with a scripted model, and a page that must not report errors."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from tests.acceptance.gateway_process import GatewayProcess, free_port, running_gateway
from tests.console.browser import chromium_path
from tests.console.story_model import StoryModel, running_model
from tests.store_urls import sqlite_url

Json = dict[str, Any]
MODEL = "gpt-4.1"
SHOWS_ROUTE = """async (route) => {
  const app = document.querySelector('hf-app');
  if (!app?.route || `/${app.route.join('/')}` !== route) return false;
  await app.updateComplete;
  return true;
}"""
"""Whether the console shows the page of an address."""
SECONDS_TO_HOLD = 30.0
NETWORK_ERROR = "Failed to load resource"
"""A browser reports this for any failed request, such as one to a gateway that restarts."""


class Gateway:
    """A gateway's process, and requests to it."""

    def __init__(self, process: GatewayProcess, model: StoryModel) -> None:
        self.process = process
        self.model = model

    @property
    def url(self) -> str:
        """The base URL."""
        return self.process.url

    def say(self, key: str, text: Any, **more: Any) -> httpx.Response:
        """Send one turn with a session key."""
        headers = {"X-Session-Key": key, **more.pop("headers", {})}
        body = {"model": MODEL, "input": text, **more}
        return httpx.post(f"{self.url}/v1/responses", json=body, headers=headers)

    def get(self, path: str, **query: Any) -> Json:
        """Return the JSON reply of a path."""
        answer = httpx.get(self.url + path, params=query)
        assert answer.status_code == 200, answer.text
        value: Json = answer.json()
        return value

    def post(self, path: str, body: Json | None = None) -> Json:
        """Post to a path."""
        answer = httpx.post(self.url + path, json=body or {})
        assert answer.status_code == 200, answer.text
        value: Json = answer.json()
        return value

    def session(self, key: str) -> Json:
        """Return the live session of a key."""
        [found] = self.get("/v1/sessions", key=key)["data"]
        session: Json = found
        return session

    def texts(self, session_id: str) -> list[str]:
        """Return the texts of a session's visible messages."""
        items = self.get(f"/v1/sessions/{session_id}/items", limit=100)["data"]
        return ["".join(part.get("text", "") for part in item["content"]) for item in items]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser; it is closed with its module, because it occupies the thread's event loop."""
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for the tests of a module."""
    folder = tmp_path_factory.mktemp("gateway")
    with running_model() as model:
        config = folder / "holdfast.toml"
        config.write_text(
            f'[[upstream]]\nname = "openai"\nurl = "{model.url}"\nkey_env = "STORY_KEY"\n'
            'models = ["gpt-4.1"]\nstate = "chain"\n'
            f'[[upstream]]\nname = "replay"\nurl = "{model.url}"\nkey_env = "STORY_KEY"\n'
            'models = ["*"]\n[heals]\nfirst_pause_seconds = 0.05\n'
        )
        arguments = ("--config", str(config), "--port", str(free_port()))
        with running_gateway(
            sqlite_url(folder), *arguments, env={"STORY_KEY": "sk-story"}
        ) as process:
            yield Gateway(process, model)


class Watch:
    """The errors of a page, and the hosts that it sent requests to."""

    def __init__(self, page: Page, url: str) -> None:
        self._host = urlsplit(url).hostname
        self.complaints: list[str] = []
        self.strangers: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and NETWORK_ERROR not in message.text:
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https") and address.hostname != self._host:
            self.strangers.append(request.url)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"


@pytest.fixture
def page(browser: Browser, gateway: Gateway) -> Iterator[Page]:
    """A page in a fresh profile. It must raise no error and send requests only to the gateway."""
    context = browser.new_context(viewport={"width": 1200, "height": 850}, accept_downloads=True)
    page = context.new_page()
    watch = Watch(page, gateway.url)
    yield page
    gateway.model.gate.set()
    context.close()
    assert watch.complaints == []
    assert watch.strangers == []


def show(page: Page, gateway: Gateway, route: str) -> None:
    """Open a page of the console."""
    page.goto(f"{gateway.url}/console#{route}")
    # The previous page stays visible until the new address was read.
    page.wait_for_function(SHOWS_ROUTE, arg=route)
    expect(page.locator("main h1")).to_be_visible()


class HeldRequests:
    """Requests of a page that are held back, in the order in which they were sent."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page = page
        self._routes: list[Route] = []

        def keep(route: Route) -> None:
            self._routes.append(route)

        page.route(pattern, keep)

    def __len__(self) -> int:
        return len(self._routes)

    def __getitem__(self, place: int) -> Route:
        """Return a request once it is held: that is noticed later than that it was sent."""
        until = time.monotonic() + SECONDS_TO_HOLD
        while len(self._routes) <= place:
            assert time.monotonic() < until, f"request {place} was not sent"
            # The handler runs only while the page is waited for.
            self._page.wait_for_timeout(10)
        return self._routes[place]


def hold(page: Page, pattern: str) -> HeldRequests:
    """Hold requests back from now on, and return them."""
    return HeldRequests(page, pattern)


def release(page: Page, held: Route) -> None:
    """Continue a request, and wait until the page has rendered its answer."""
    with page.expect_response(lambda answer: answer.request == held.request) as answered:
        held.continue_()
    answered.value.finished()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


ARTEFACTS = Path(__file__).parents[2] / "build" / "console"
"""Where screenshots are stored."""
