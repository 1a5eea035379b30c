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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("built") / "site"
    build(ROOT, folder)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the pages that a test may break."""
    root = tmp_path / "root"
    root.mkdir()
    for name in TOP_PAGES:
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "docs", root / "docs")
    return root


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
    assert "/edit/main/docs/how-to/deploy.md" in deploy
    assert 'class="language-sh highlight"' in deploy


def test_the_edit_links_lead_to_the_repository_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCS_REPOSITORY", "https://host.test/team/holdfast/")
    build(ROOT, tmp_path / "site")
    page = (tmp_path / "site/docs/reference/http.html").read_text()
    assert "https://host.test/team/holdfast/edit/main/docs/reference/http.md" in page


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[nowhere](nowhere.md)", "nowhere.md"),
        ("[no heading](../README.md#no-such-heading)", "no-such-heading"),
        ("```sh untested\necho\n```", "2 fence lines, 0 code blocks"),
        ("```sh\necho", "1 fence lines"),
    ],
    ids=["dead link", "dead anchor", "broken fence", "open fence"],
)
def test_a_mistake_on_a_page_keeps_the_site_from_being_built(
    text: str, complaint: str, sources: Path, tmp_path: Path
) -> None:
    page = sources / "docs/how-to/README.md"
    page.write_text(f"# How-to guides\n\n{text}\n")
    with pytest.raises(SystemExit, match=complaint):
        build(sources, tmp_path / "site")


def test_a_page_that_the_navigation_omits_keeps_the_site_from_being_built(
    sources: Path, tmp_path: Path
) -> None:
    (sources / "docs/how-to/forgotten.md").write_text("# Forgotten\n")
    with pytest.raises(SystemExit, match=r"forgotten\.md"):
        build(sources, tmp_path / "site")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_source_draws(name: str) -> None:
    drawn = PICTURES[name]().svg()
    ElementTree.fromstring(drawn)
    assert (ROOT / "docs/pictures" / name).read_text() == drawn, "run `make docs`"
    pages = "".join(page.read_text() for page in ROOT.glob("docs/*/*.md"))
    assert f"pictures/{name}" in pages
