"""The file of an export: what is cut when it is continued, and what an erasure removes."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.cli.output.export_file import BLOCK_BYTES, open_export
from holdfast.cli.output.terminal import CommandFailed


def session(name: str, *texts: str) -> bytes:
    """Return the lines of a session; what clients sent may look like the line of another."""
    lines = [{"id": f"ses_{name}", "object": "session", "key": None}]
    lines += [
        {"id": '\n{"id":"ses_x","object":"session",', "object": "session.item", "key": text}
        for text in texts
    ]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def interrupted(output: Path, *pieces: bytes) -> None:
    """Leave the beginning of an export."""
    with (
        suppress(KeyboardInterrupt),
        open_export(output, resume=False, generations=False) as file,
    ):
        for piece in pieces:
            file.write(piece)
        raise KeyboardInterrupt


@pytest.mark.parametrize("filler", ["", "x" * (BLOCK_BYTES - 150), "x" * (3 * BLOCK_BYTES)])
def test_an_export_continues_after_the_last_complete_session(filler: str, tmp_path: Path) -> None:
    whole = session("a", "one"), session("b", filler), session("c", "three", filler)
    output = tmp_path / "out"
    for kept in range(len(session("c")), len(whole[2]), 1 + len(whole[2]) // 50):
        interrupted(output, whole[0], whole[1], whole[2][:kept])
        with open_export(output, resume=True, generations=False) as file:
            assert file.after == "ses_b"
            file.write(whole[2])
        assert output.read_bytes().partition(b"\n")[2] == b"".join(whole)
        assert list(tmp_path.iterdir()) == [output]


def test_an_export_with_one_session_or_none_begins_again(tmp_path: Path) -> None:
    output = tmp_path / "out"
    interrupted(output)
    assert list(tmp_path.iterdir()) == []
    interrupted(output, session("a", "one")[:-3])
    for resume in (True, False):
        with open_export(output, resume=resume, generations=True) as file:
            assert file.after is None
            file.write(session("b"))
        head, *rest = output.read_bytes().splitlines(keepends=True)
        assert json.loads(head)["generations"] is True
        assert b"".join(rest) == session("b")


def test_a_session_that_was_erased_is_removed(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with open_export(output, resume=False, generations=False) as file:
        file.write(session("a", "one") + session("b", "two"))
        file.drop("ses_b")
        file.write(session("c"))
        file.drop("ses_unknown")
    assert output.read_bytes().partition(b"\n")[2] == session("a", "one") + session("c")


def test_only_one_export_writes_to_a_file(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with open_export(output, resume=False, generations=False) as file:
        file.write(session("a"))
        with (
            pytest.raises(CommandFailed, match="another export writes"),
            open_export(output, resume=True, generations=False),
        ):
            pass
    assert output.read_bytes().endswith(session("a"))


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / ".out.part").symlink_to(target)
    with (
        pytest.raises(CommandFailed, match="cannot be written"),
        open_export(tmp_path / "out", resume=False, generations=False),
    ):
        pass
    assert target.read_text() == "mine"
