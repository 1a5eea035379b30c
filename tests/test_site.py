"""The site is built without a broken link, and its pictures are those that the source draws."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from website.building import build
from website.pictures import PICTURES

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


def test_the_site_is_built_and_every_link_in_it_leads_somewhere(tmp_path: Path) -> None:
    build(ROOT, tmp_path / "site")
    pages = {page: _links(page) for page in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 40
    for page, links in pages.items():
        for target in links.targets:
            if re.match(r"\w+:|//|#$", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / unquote(path)).resolve() if path else page
            if page.name == "404.html":
                linked = tmp_path / "site" / unquote(path).lstrip("/")
            if linked.is_dir():
                linked = linked / "index.html"
            assert linked.exists(), f"{page.name}: {target}"
            if anchor and linked in pages:
                assert unquote(anchor) in pages[linked].anchors, f"{page.name}: {target}"


def test_nothing_of_the_site_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    build(ROOT, tmp_path / "site")
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(\w+:)?//", page.read_text())
        assert loaded == [], page.name


def test_a_broken_link_keeps_the_site_from_being_built(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        (root / name).write_text("# x\n")
    (root / "README.md").write_text("[nowhere](docs/nowhere.md)\n")
    with pytest.raises(SystemExit, match="nowhere"):
        build(root, tmp_path / "site")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_source_draws(name: str) -> None:
    drawn = PICTURES[name]().svg()
    ElementTree.fromstring(drawn)
    assert (ROOT / "docs/pictures" / name).read_text() == drawn, "run `make docs`"
    pages = "".join(page.read_text() for page in ROOT.glob("docs/*/*.md"))
    assert f"pictures/{name}" in pages
