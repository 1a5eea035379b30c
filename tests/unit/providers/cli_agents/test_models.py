"""The models that an agent lists are names that it serves."""

import pytest

from holdfast.engine.clock import RandomIds
from holdfast.ports.provider import ModelCall
from holdfast.providers.routing import UpstreamRouter
from holdfast.providers.settings import UpstreamSettings


@pytest.mark.parametrize(
    ("patterns", "listed"),
    [
        (("coder/*",), ["coder/default"]),
        (("claude-code/*",), ["claude-code/default"]),
        (("*",), ["claude-code/default"]),
        (("coder/opus",), ["coder/opus"]),
        (("coder/opus", "coder/*"), ["coder/opus", "coder/default"]),
        (("else-*",), []),
    ],
)
async def test_every_name_that_an_agent_lists_is_accepted(
    patterns: tuple[str, ...], listed: list[str]
) -> None:
    settings = UpstreamSettings(
        name="coder", url="", api="claude-code", command="claude", models=patterns
    )
    router = UpstreamRouter([settings], RandomIds().new)
    try:
        names = [model["id"] for model in (await router.models()).models]
        assert names == listed
        for name in names:
            router.provider(name).check(ModelCall(model=name, items=()))
    finally:
        await router.close()
