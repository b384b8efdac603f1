"""The documentation is complete and true in what a test can see."""

import re
from pathlib import Path

import pytest

import covey

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
]
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))

LINK = re.compile(r"\[[^\]]+\]\(([^)\s#]*)(?:#([^)\s]+))?\)")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def outside_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", outside_code(page.read_text()), flags=re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.replace(" ", "-") for word in words}


def make_targets() -> set[str]:
    """Targets that `make` lists."""
    return set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("name", covey.__all__)
def test_every_public_name_is_in_the_api_reference(name):
    assert re.search(rf"\bcovey\.{name}\b", (DOCS / "api.md").read_text())


@pytest.mark.parametrize("name", covey.models.__all__)
def test_every_model_is_in_the_api_reference(name):
    assert re.search(rf"\bcovey\.(models\.)?{name}\b", (DOCS / "api.md").read_text())


@pytest.mark.parametrize("name", covey.__all__)
def test_every_public_name_has_a_docstring(name):
    assert (getattr(covey, name).__doc__ or "").strip()


@pytest.mark.parametrize("page", DECISIONS, ids=named)
def test_every_decision_page_is_linked(page):
    index = (DOCS / "decisions" / "index.md").read_text()
    assert f"({page.name})" in index  # for readers of the files
    assert re.search(rf"^{page.stem}$", index, flags=re.MULTILINE)  # for Sphinx
    assert page.read_text().startswith(f"# {page.stem[:4]}: ")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_make_target_that_is_named_exists(page):
    named_targets = set(re.findall(r"(?:^|`)make ([a-z]+)\b", page.read_text(), flags=re.MULTILINE))
    assert named_targets <= make_targets()


def test_readme_names_the_first_commands():
    readme = (ROOT / "README.md").read_text()
    assert {"track", "test", "bench", "docs"} <= set(re.findall(r"\bmake ([a-z]+)", readme))


def test_contributing_describes_every_make_target():
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    described = set(re.findall(r"^\| `make ([a-z]+)` \|", contributing, flags=re.MULTILINE))
    assert described == make_targets() - {"help"}


def test_changelog_has_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(covey.__version__)}\b", changelog, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_holds_an_absolute_path(page):
    found = re.findall(
        r"(?<![\w./:>])/(?:[\w.-]+/)+[\w.-]*|file://\S+|[A-Z]:\\\S+", page.read_text()
    )
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_between_pages_leads_somewhere(page):
    for target, anchor in LINK.findall(outside_code(page.read_text())):
        if "://" in target:
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}#{anchor}"
