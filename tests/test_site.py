"""The documentation site builds strictly, loads nothing from elsewhere, and shows current pages."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from website.building import TOP_PAGES, build
from website.pictures import PICTURES

from holdfast import __version__
from tests.wheel import set_repository

ROOT = Path(__file__).parent.parent


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.anchors.add(value)
            elif value and name in ("href", "src") and tag in ("a", "img", "link", "script"):
                self.targets.append(value)


def _links(page: Path) -> _Links:
    links = _Links()
    links.feed(page.read_text())
    return links


def _sources(target: Path, repository: str) -> Path:
    """Copy what the site is built from, as a project that is published there."""
    target.mkdir()
    for name in (*TOP_PAGES, "pyproject.toml"):
        shutil.copy(ROOT / name, target)
    shutil.copytree(ROOT / "docs", target / "docs")
    set_repository(target, repository)
    return target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, with links to a repository."""
    folder = tmp_path_factory.mktemp("built")
    build(_sources(folder / "root", "https://host.test/team/holdfast/"), folder / "site")
    return folder / "site"


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {page: _links(page) for page in site.rglob("*.html")}
    assert len(pages) > 40
    for page, links in pages.items():
        for target in links.targets:
            if re.match(r"\w+:|//|#$", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / unquote(path)).resolve() if path else page
            if page.name == "404.html":
                linked = site / unquote(path).lstrip("/")
            if linked.is_dir():
                linked = linked / "index.html"
            assert linked.exists(), f"{page.name}: {target}"
            if anchor and linked in pages:
                assert unquote(anchor) in pages[linked].anchors, f"{page.name}: {target}"


def test_nothing_of_the_site_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(\w+:)?//", text)
        assert loaded == [], page.name
        assert 'class="mermaid"' not in text, "the theme fetches Mermaid from a CDN"
        assert 'data-md-component="source"' not in text, "the theme asks the host for its facts"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet.name


def test_the_site_has_a_search_index_a_version_and_edit_links(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    locations = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html"}
    assert pages <= locations | {"index.html", "docs/index.html"}
    deploy = (site / "docs/how-to/deploy.html").read_text()
    assert f"Holdfast {__version__}" in deploy
    assert "https://host.test/team/holdfast/edit/main/docs/how-to/deploy.md" in deploy
    assert 'class="language-sh highlight"' in deploy


MISTAKES = {
    "how-to/README.md": ("[nowhere](nowhere.md)", "nowhere.md"),
    "reference/README.md": ("[none](../README.md#no-such-heading)", "no-such-heading"),
    "explanation/README.md": ("```sh untested\necho\n```", "2 fence lines, 0 code blocks"),
    "invariants/README.md": ("```sh\necho", "1 fence lines"),
    "how-to/forgotten.md": ("No page of the navigation.", "how-to/forgotten.md"),
}
"""What is wrong on a page, and what is said about it."""


def test_mistakes_on_pages_keep_the_site_from_being_built(tmp_path: Path) -> None:
    root = _sources(tmp_path / "root", "")
    for name, (text, _) in MISTAKES.items():
        (root / "docs" / name).write_text(f"# A page\n\n{text}\n")
    with pytest.raises(SystemExit) as refused:
        build(root, tmp_path / "site")
    missed = [name for name, (_, words) in MISTAKES.items() if words not in str(refused.value)]
    assert missed == []
    assert f"Aborted with {len(MISTAKES)} warnings in strict mode" in str(refused.value)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_source_draws(name: str) -> None:
    drawn = PICTURES[name]().svg()
    ElementTree.fromstring(drawn)
    assert (ROOT / "docs/pictures" / name).read_text() == drawn, "run `make docs`"
    pages = "".join(page.read_text() for page in ROOT.glob("docs/*/*.md"))
    assert f"pictures/{name}" in pages
