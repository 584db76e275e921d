"""Hook of mkdocs.yml: the site has the layout of the repository.

The pages link to each other and to files outside docs/ by relative paths, as GitHub needs them.
MkDocs only knows what is in docs/. So this hook gives it the pages under their paths in the
repository (``docs/faq.md``, ``README.md``), and with them every file that one of them links to.
All links then work as they are, and ``mkdocs build --strict`` checks all of them.
A link to a folder leads to its README, or else to a list of its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")
UNLISTED = {"samples.jsonl", "__pycache__"}
"""Not in the lists of files: raw samples are larger than all the rest; caches are no content."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by all that the navigation and the links need."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")]
    waiting = [*sorted(pages), *named(config.nav), *map(str, config.extra_css)]
    while waiting:
        path = waiting.pop()
        if path in files.src_uris or not (ROOT / path).exists():
            continue
        if (ROOT / path).is_dir():
            index = f"{path}/README.md"
            if (ROOT / index).exists():
                waiting.append(index)
            elif index not in files.src_uris:
                names = list(listed(ROOT / path))
                waiting += [f"{path}/{name}" for name in names]
                content = f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
                generated = File.generated(config, index, content=content)
                generated.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(generated)
            continue
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            waiting += [resolved(path, link) for link, _ in LINK.findall(text)]
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to a folder lead to its page."""
    path = page.file.src_uri

    def to_page(match: re.Match[str]) -> str:
        target = resolved(path, match[1])
        folder = (ROOT / target).is_dir()
        return f"]({match[1].rstrip('/')}/README.md)" if folder else match[0]

    return LINK.sub(to_page, markdown)


def named(nav: Any) -> Iterator[str]:
    """The pages that the navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from named(entry)


def listed(folder: Path) -> Iterator[str]:
    """The files below a folder."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not UNLISTED & set(name.parts):
            yield name.as_posix()


def resolved(page: str, link: str) -> str:
    """The path in the repository to which a page links."""
    return normpath(str(PurePosixPath(page).parent / link))
