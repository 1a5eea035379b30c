"""The console's files: served without a key, under a strict policy, small, built as committed."""

import re
import subprocess
from pathlib import Path

import httpx
import pytest

from holdfast.console.files import load_files
from tests.acceptance.gateway_process import running_gateway
from tests.clients.environments import node_with
from tests.console import vendor
from tests.store_urls import sqlite_url

HERE = Path(__file__).parent
CONSOLE = HERE.parents[1] / "src/holdfast/console"
MAX_COMPRESSED_BYTES = 190 * 1024
MAX_FIRST_BYTES = 90 * 1024
"""What the list of sessions needs, compressed."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'"
)


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """The packages that build and check the console."""
    return node_with(HERE / "package.json")


def test_the_console_is_served_without_a_key_and_under_its_policy(tmp_path: Path) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        made = httpx.post(f"{gateway.url}/v1/keys", json={"admin": True})
        assert made.status_code == 200
        assert httpx.get(f"{gateway.url}/v1/sessions").status_code == 401
        for path in ("/console", "/console/", "/console/js/app.js", "/console/vendor/lit.js"):
            answer = httpx.get(gateway.url + path)
            assert answer.status_code == 200, path
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-encoding"] == "gzip"
        plain = httpx.get(f"{gateway.url}/console", headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.text.startswith("<!doctype html>")
        again = httpx.get(
            f"{gateway.url}/console", headers={"if-none-match": plain.headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")
        root = httpx.get(gateway.url)
        assert (root.status_code, root.headers["location"]) == (302, "/console")
        for path in ("/console/unknown.js", "/console/js/../files.py", "/console/tsconfig.json"):
            assert httpx.get(gateway.url + path).status_code in (401, 404), path
        assert "/console" not in httpx.get(f"{gateway.url}/openapi.json", headers={
            "authorization": f"Bearer {made.json()['key']}"}).json()["paths"]  # fmt: skip


def test_the_console_can_be_switched_off(tmp_path: Path) -> None:
    with running_gateway(sqlite_url(tmp_path), env={"HOLDFAST_SERVER_CONSOLE": "false"}) as gateway:
        assert httpx.get(f"{gateway.url}/console").status_code == 404
        assert httpx.get(f"{gateway.url}/v1/sessions").status_code == 200


def test_all_files_together_are_small() -> None:
    files = load_files()
    assert {"index.html", "app.css", "js/app.js", "vendor/lit.js"} <= files.keys()
    assert sum(len(file.compressed) for file in files.values()) < MAX_COMPRESSED_BYTES


def test_the_page_preloads_every_module_that_it_needs_at_first() -> None:
    # Without it, modules are found one import after another, each a request later.
    files = load_files()
    page = files["index.html"].body.decode()
    modules = {name for name in files if name.startswith("js/") and name.endswith(".js")}
    preloaded = set(re.findall(r'rel="modulepreload" href="/console/([^"]+)"', page))
    # The other libraries are loaded when something is shown that needs them.
    assert preloaded | {"js/app.js"} == modules | {"vendor/lit.js"}
    first = sum(len(files[name].compressed) for name in (*preloaded, "js/app.js", "app.css"))
    assert first < MAX_FIRST_BYTES


def test_no_file_of_ours_names_another_server() -> None:
    known = {"www.w3.org"}  # the name of the SVG namespace, which nobody fetches
    for name, file in load_files().items():
        if name.startswith("vendor/"):
            continue  # libraries name their homes in comments; the policy forbids requests
        found = set(re.findall(r"https?://([\w.-]+)", file.body.decode()))
        assert found <= known, name


def test_no_script_uses_html_strings_or_inline_styles() -> None:
    for path in (CONSOLE / "static/js").glob("*.js"):
        text = path.read_text()
        for word in ("innerHTML", "unsafeHTML", "insertAdjacentHTML", "eval(", ' style="'):
            assert word not in text, path.name


def test_the_committed_libraries_are_what_their_sources_build(node_modules: Path) -> None:
    for name, content in vendor.build(node_modules).items():
        assert (vendor.VENDOR / name).read_bytes() == content, name


def test_the_scripts_are_type_checked(node_modules: Path) -> None:
    finished = subprocess.run(
        [node_modules / ".bin/tsc", "-p", CONSOLE / "tsconfig.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
