"""Makes pages written for the repository fit the site: links to files outside docs/ lead to pages that show the file.

A link to a script, a test, an experiment file or a folder works in the repository as it stands. On the site each such
file becomes a page below source/, and a folder becomes a list of its files, which are copied as they are.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^ *```.*?^ *```)", flags=re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds a page for every file outside docs/ that some page links to."""
    docs = Path(config.docs_dir)
    waiting = [path for path in docs.rglob("*.md") if "hooks" not in path.parts]
    seen: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for target in outside_links(page, docs):
            if target not in seen:
                seen.add(target)
                add(target, files, config)
                waiting += [target] if target.suffix == ".md" else []


def outside_links(page: Path, docs: Path) -> list[Path]:
    """The files and folders outside docs/ that a page links to; one that is not there is left to MkDocs to report."""
    text = "".join(FENCE.split(page.read_text(encoding="utf-8"))[::2])
    found = [Path(os.path.normpath(page.parent / link)) for link, _ in LINK.findall(text)]
    return [path for path in found if not path.is_relative_to(docs) and path.exists()]


def add(target: Path, files: Files, config: MkDocsConfig) -> None:
    """The page that stands for one file or folder."""
    root = Path(config.docs_dir).parent
    name = target.relative_to(root).as_posix()
    if target.is_dir():
        inside = [path for path in sorted(target.iterdir()) if path.is_file()]
        for path in inside:
            files.append(File.generated(config, f"source/{name}/{path.name}", abs_src_path=str(path)))
        lines = "\n".join(f"- [{path.name}]({target.name}/{path.name})" for path in inside)
        content = f"# {name}\n\n{lines}\n"
    elif target.suffix == ".md":
        content = with_links(target.read_text(encoding="utf-8"), target, config)
    else:
        code = target.read_text(encoding="utf-8")
        content = f"# {target.name}\n\n`{name}`\n\n````{LANGUAGES.get(target.suffix, 'text')}\n{code}````\n"
    files.append(File.generated(config, page_of(name), content=content))


def page_of(name: str) -> str:
    return f"source/{name.removesuffix('.md')}.md"


def with_links(text: str, page: Path, config: MkDocsConfig) -> str:
    """The text of a page of the repository, its links to files outside docs/ turned to their pages on the site."""
    docs = Path(config.docs_dir)
    here = page.parent if page.is_relative_to(docs) else docs / "source" / page.parent.relative_to(docs.parent)

    def turned(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found[1]))
        if not target.exists():
            return found[0]
        if not target.is_relative_to(docs):
            target = docs / page_of(target.relative_to(docs.parent).as_posix())
        return os.path.relpath(target, here) + (found[2] or "")

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(turned, part) for part in parts[::2]]
    return "".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Called by MkDocs with the text of every page."""
    if page.file.generated_by is None:
        markdown = with_links(markdown, Path(str(page.file.abs_src_path)), config)
    return with_deeper_code(markdown)


def with_deeper_code(text: str) -> str:
    """Code inside numbered lists by MkDocs' rule of eight blanks; the repository's pages have GitHub's seven."""
    lines, in_list = [], False
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            in_list = bool(re.match(r"\d+\. ", line))
        lines.append(f" {line}" if in_list and line.startswith(" " * 7) else line)
    return "\n".join(lines)
