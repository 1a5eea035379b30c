"""`holdfast serve`: the gateway as a process."""

import asyncio
import gc
import ipaddress
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.app import connection_limits, open_application
from holdfast.core.errors import InvalidSetting
from holdfast.engine.logging import configure_logging
from holdfast.http.app import Application
from holdfast.http.server.run import Server, open_listener, server_config
from holdfast.providers.demo import DEMO_MODEL
from holdfast.providers.settings import UpstreamSettings
from holdfast.settings import Settings
from holdfast.settings.target import DEFAULT_URL

_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


def run(settings: Settings) -> None:
    """Serve on the fastest event loop there is."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(settings))
    except KeyboardInterrupt:
        # Before anybody was told that it listens.
        raise SystemExit(130) from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest loop here; `None` is asyncio's own."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows, nor for PyPy
        return None
    return uvloop.new_event_loop


async def serve(settings: Settings) -> None:
    """Serve until told to stop; say where, and what to try, once requests are accepted."""
    configure_logging(settings.log.level, settings.log.format)
    _warn_of_missing_keys(settings.upstreams)
    listener = open_listener(settings.server.host, settings.server.port)
    host, port = listener.getsockname()[:2]
    grace = settings.server.grace_seconds
    try:
        async with open_application(settings) as application:
            await _stay_home_without_keys(settings.server.host, application)
            config = server_config(
                application,
                connection_limits(settings),
                body_bytes=settings.limits.body_bytes,
                grace_seconds=grace,
            )
            server = Server(config, application.stop, grace)
            _spare_the_collector()
            # Whoever reads that it listens may stop it at once.
            with server.capture_signals():
                print(f"holdfast listening on http://{host}:{port}", flush=True)
                _say_what_to_try(host, port, model_to_try(settings.upstreams))
                await server.serve(sockets=[listener])
    finally:
        listener.close()


def _warn_of_missing_keys(upstreams: Sequence[UpstreamSettings]) -> None:
    """Say which upstreams are asked without the key that was meant for them; some need none."""
    for one in upstreams:
        if one.key is None and one.key_env is not None and not os.environ.get(one.key_env):
            print(
                f"holdfast: upstream {one.name} is asked without a key: "
                f"the environment variable {one.key_env} is not set",
                file=sys.stderr,
                flush=True,
            )


def _spare_the_collector() -> None:
    """Have what was loaded never looked at again; a turn leaves next to no circles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(25_000, 20, 50)


async def _stay_home_without_keys(host: str, application: Application) -> None:
    """Refuse to listen to the world while nobody needs a key."""
    try:
        is_home = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_home = False
    if not is_home and not await application.requires_key():
        raise InvalidSetting(
            f"server.host = {host!r} listens beyond this machine, and there is no API key: "
            "make one with `holdfast keys create`, or listen on 127.0.0.1"
        )


def _program(name: str) -> str:
    """Return how a program of this environment is called from another terminal."""
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    is_found = found is not None and Path(found).parent.resolve() == own.parent.resolve()
    return name if is_found or not own.exists() else str(own)


def model_to_try(upstreams: Sequence[UpstreamSettings]) -> str | None:
    """Return a model that can be asked for, where the settings name one that needs no quoting."""
    if not upstreams:
        return DEMO_MODEL
    return next((name for name in upstreams[0].models if _PLAIN.fullmatch(name)), None)


def _say_what_to_try(host: str, port: int, model: str | None) -> None:
    base = f"http://{host}:{port}"
    hint = "" if model else " (for MODEL, write a model that your upstream knows)"
    model = model or "MODEL"
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"I am Ada"}}]}}'
    named = "" if base == DEFAULT_URL else f" --url {base}"
    print(
        f"""
Try, in another terminal{hint}:

  curl {base}/v1/chat/completions -H 'content-type: application/json' \\
    -H 'X-Session-Key: me' -d '{body}'

  {_program("holdfast")} chat{named}

  {_program("python")} -c 'import openai; print(openai.OpenAI(base_url="{base}/v1", api_key="none")
    .responses.create(model="{model}", input="Who am I?",
    extra_headers={{"X-Session-Key": "me"}}).output_text)'

Ctrl-C stops it; what was said stays.
""",
        flush=True,
    )
