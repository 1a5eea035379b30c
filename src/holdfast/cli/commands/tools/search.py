"""`holdfast search`: find items by their words."""

from typing import Annotated, Any

import typer

from holdfast.cli.options import ConfigFlag, JsonFlag, UrlFlag, connect
from holdfast.cli.output.terminal import format_time, highlight, print_json, print_line, printable


def search(
    words: Annotated[
        list[str], typer.Argument(help='Words, "a phrase" or a prefix*; all must match.')
    ],
    key_prefix: Annotated[
        str | None, typer.Option(help="Only sessions whose key begins like this.")
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="user, assistant, system, developer or tool.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only items from this time on (ISO).")] = None,
    until: Annotated[str | None, typer.Option(help="Only items before this time (ISO).")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number.")] = 20,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Search all sessions, also retired generations, for words."""
    page = connect(url, config).get(
        "/v1/search",
        q=" ".join(words),
        key_prefix=key_prefix,
        role=role or None,
        since=since,
        until=until,
        limit=limit,
    )
    if as_json:
        print_json(page)
        return
    if not page["data"]:
        print_line("nothing found")
    elif page["matches"] == "any":
        print_line("no item has all words; these have some of them:\n")
    for hit in page["data"]:
        print_line(_heading(hit))
        snippet = hit["snippet"]
        print_line(f"  {highlight(snippet['text'], snippet['highlights'])}")


def _heading(hit: dict[str, Any]) -> str:
    name = printable(hit["key"] or hit["session_id"])
    place = f"{name} (generation {hit['generation']}) #{hit['seq']}"
    return f"{format_time(hit['created_at'])}  {hit['role']}  {place}"
