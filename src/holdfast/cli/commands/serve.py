"""`holdfast serve`: run the gateway as a process."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.app import connection_limits, open_application
from holdfast.cli.output.masking import create_key_hint, mask_url
from holdfast.cli.output.terminal import note_target
from holdfast.core.errors import InvalidSetting, StoreError
from holdfast.engine.logging import configure_logging, log
from holdfast.http.app import Application
from holdfast.http.server.run import Server, open_listener, server_config
from holdfast.providers.demo import DEMO_MODEL
from holdfast.providers.settings import UpstreamSettings
from holdfast.settings import ServerSettings, Settings
from holdfast.settings.running import RunningGateway, announced
from holdfast.settings.target import server_url
from holdfast.stores.open import sqlite_path

MALLOPT_MMAP_THRESHOLD = -3
"""The option's number in glibc's <malloc.h>."""
LARGE_BLOCK_BYTES = 1024 * 1024
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


def run(settings: Settings) -> None:
    """Serve on the fastest available event loop."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(settings))
    except StoreError:
        note_target(f"store {mask_url(settings.store.url)}")
        raise
    except KeyboardInterrupt:
        # Interrupted before the server had installed its signal handlers.
        raise SystemExit(130) from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's event loop; None selects asyncio's."""
    try:
        import uvloop
    except ImportError:  # not available on Windows and PyPy
        return None
    return uvloop.new_event_loop


async def serve(settings: Settings) -> None:
    """Serve until stopped; print the URL and examples once requests are accepted."""
    configure_logging(settings.log.level, settings.log.format, settings.log.area_levels())
    _warn_missing_upstream_keys(settings.upstreams)
    listener = _listen(settings.server.host, settings.server.port)
    is_new = _is_new_file(settings.store.url)
    host, port = listener.getsockname()[:2]
    grace = settings.server.grace_seconds
    try:
        async with open_application(settings) as application:
            await _require_keys_beyond_loopback(settings, application)
            config = server_config(
                application,
                connection_limits(settings),
                body_bytes=settings.limits.body_bytes,
                grace_seconds=grace,
            )
            server = Server(
                config,
                application,
                grace_seconds=grace,
                drain_seconds=settings.drain_seconds,
            )
            _freeze_startup_objects()
            _return_large_blocks()
            # Install the handlers first: a reader of the line below may send a signal immediately.
            with server.capture_signals(), announced(_description(host, port, settings)):
                print(f"holdfast listening on http://{host}:{port}", flush=True)
                requires_key = await application.requires_key()
                _print_examples(host, port, settings, requires_key, is_new=is_new)
                report = _log_found if settings.log.format == "json" else _print_found
                detection = asyncio.create_task(application.detect_upstreams(report))
                try:
                    await server.serve(sockets=[listener])
                finally:
                    detection.cancel()
                    await asyncio.gather(detection, return_exceptions=True)
        log.info("serve.stopped")
    finally:
        listener.close()


def _print_found(line: str) -> None:
    """Print what an upstream speaks; the reader of the output may be gone by now."""
    with contextlib.suppress(OSError):
        print(f"holdfast: {line}", flush=True)


def _log_found(line: str) -> None:
    """Log what an upstream speaks, where every line of the output has to be an event."""
    log.info("upstream.detected", found=line)


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket; an error says what to do."""
    try:
        return open_listener(host, port)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            remedy = "stop the program that uses it, or choose another port with --port"
        elif exc.errno == errno.EACCES:
            remedy = "choose a port from 1024 on with --port"
        else:
            remedy = "choose an address of this machine with --host"
        raise OSError(f"cannot listen on {host}:{port}: {exc.strerror}; {remedy}") from exc


def _warn_missing_upstream_keys(upstreams: Sequence[UpstreamSettings]) -> None:
    """Warn about upstreams whose `key_env` is not set; some servers need no key."""
    for upstream in upstreams:
        key_env = upstream.key_env
        if upstream.key is None and key_env is not None and not os.environ.get(key_env):
            print(
                f"holdfast: upstream {upstream.name} is called without a key: "
                f"the environment variable {key_env} is not set",
                file=sys.stderr,
                flush=True,
            )


def _freeze_startup_objects() -> None:
    """Exclude objects created at start-up from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(25_000, 20, 50)


def _return_large_blocks() -> None:
    """Make the allocator return large blocks to the system when they are freed.

    By default glibc keeps blocks of up to 32 MB in its heap, so that a few large bodies would keep
    the process large. Other C libraries have no such option and need none.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(MALLOPT_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


async def _require_keys_beyond_loopback(settings: Settings, application: Application) -> None:
    """Refuse to listen beyond loopback while no API key exists."""
    server = settings.server
    if not server.is_loopback and not await application.requires_key():
        raise InvalidSetting(
            f"server.host = {server.host!r} listens beyond this machine, and there is no API key: "
            f"{create_key_hint(settings.store.url)}, or listen on 127.0.0.1"
        )


def _program(name: str) -> str:
    """Return the name or path to run a program of this environment from another terminal."""
    own = Path(sys.executable).with_name(name)
    folders = map(Path, os.get_exec_path())
    folder_with_program = next(
        (folder for folder in folders if os.access(folder / name, os.X_OK)), None
    )
    is_on_path = (
        folder_with_program is not None and folder_with_program.resolve() == own.parent.resolve()
    )
    return name if is_on_path or not own.exists() else str(own)


def example_model(upstreams: Sequence[UpstreamSettings]) -> str | None:
    """Return a configured model name without wildcards that needs no quoting."""
    if not upstreams:
        return DEMO_MODEL
    return next((name for name in upstreams[0].models if _PLAIN.fullmatch(name)), None)


def _is_new_file(store_url: str) -> bool:
    """Whether a store is a file that does not exist yet."""
    return store_url.startswith("sqlite:") and not sqlite_path(store_url).exists()


def _description(host: str, port: int, settings: Settings) -> RunningGateway:
    """Return what other commands of this user may know."""
    own = replace(settings.server, host=host, port=port)
    store = mask_url(settings.store.url)
    return RunningGateway(
        pid=os.getpid(),
        url=server_url(own),
        store=store,
        has_secret=store != settings.store.url,
    )


def _print_examples(
    host: str, port: int, settings: Settings, requires_key: bool, *, is_new: bool
) -> None:
    base = f"http://{host}:{port}"
    model = example_model(settings.upstreams)
    hint = "" if model else " (replace MODEL by a model of your upstream)"
    if requires_key:
        hint += ", after `export HOLDFAST_API_KEY=…` with your API key"
    model = model or "MODEL"
    bearer = ' -H "Authorization: Bearer $HOLDFAST_API_KEY"' if requires_key else ""
    key = 'os.environ["HOLDFAST_API_KEY"]' if requires_key else '"none"'
    python, modules = _program("python"), "openai, os" if requires_key else "openai"
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"I am Ada"}}]}}'
    flag = "" if base == server_url(ServerSettings()) else f" --url {base}"
    print(
        f"""
Try, in another terminal{hint}:

  curl {base}/v1/chat/completions -H 'content-type: application/json'{bearer} \\
    -H 'X-Session-Key: me' -d '{body}'

  {_program("holdfast")} chat{flag}

  {python} -m pip install openai
  {python} -c 'import {modules}; print(openai.OpenAI(base_url="{base}/v1", api_key={key})
    .responses.create(model="{model}", input="Who am I?",
    extra_headers={{"X-Session-Key": "me"}}).output_text)'

{f"Console: {base}/console" if settings.server.console else "The console is switched off."}
Data: {mask_url(settings.store.url)}{" (new)" if is_new else ""}
Ctrl-C stops the gateway; sessions are kept.
""",
        flush=True,
    )
