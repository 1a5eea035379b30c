"""`holdfast search`: hits with their place, the words that matched marked."""

import json
from pathlib import Path

import httpx
import pytest

from tests.acceptance.gateway_process import running_gateway
from tests.cli.terminals import in_process
from tests.store_urls import sqlite_url


def test_items_are_found_by_their_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        body = {"model": "holdfast-demo", "input": "My dog Rex\x1b[31m is red"}
        httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"X-Session-Key": "agent:a"})
        found = in_process(capsys, "search", "rex", "dog", "--url", gateway.url, "--json")
        while not json.loads(found.out)["data"]:
            found = in_process(capsys, "search", "rex", "dog", "--url", gateway.url, "--json")
        options = ("--role", "user", "--key-prefix", "agent:", "--url", gateway.url)
        shown = in_process(capsys, "search", "rex", "dog", *options)
        some = in_process(capsys, "search", "rex", "unicorn", *options)
        none = in_process(capsys, "search", "unicorn", *options)
    assert json.loads(found.out)["matches"] == "all"
    heading, snippet = shown.out.splitlines()
    assert "user  agent:a (generation 1) #1" in heading
    assert snippet.strip() == "My **dog** **Rex**\\x1b[31m is red"
    assert "no item has all words" in some.out
    assert none.out == "nothing found\n"
