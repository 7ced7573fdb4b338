"""Re-makes what the tutorial and the how-to pages show as printed, by running them.

python docs/make_tutorial.py                      all of them (a minute)
python docs/make_tutorial.py docs/tutorial.md     only this one

A page is run from its top to its end in an empty folder of its own. What a fenced block starts with says what it is:

    csv title="friends.csv"   a file: written into the folder, whatever the language before `title`
    console                   after "$ " a command, which is run; up to the next "$ ", what it printed
    python                    code, run with the names of the blocks above it
    text                      right after a block of code: what that printed
    sh                        only shown: commands that never end, or need what is not everywhere
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (
    *(ROOT / "docs" / name for name in ("index.md", "tutorial.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
)
BLOCK = re.compile(r"^```(?P<kind>\w+)(?P<rest>[^\n]*)\n(?P<body>.*?)^```$", flags=re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="([^"]+)"')
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", flags=re.MULTILINE)
COLUMNS = "104"  # a table this wide fits the site


@dataclass
class Reader:
    """Who follows a page: the names that its code has made so far, and what the last block of code printed."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    printed: str | None = None

    def follow(self, block: re.Match[str]) -> str:
        """Does what a block says, in the folder one is in, and returns the block as it should stand there."""
        kind, rest, body = block["kind"], block["rest"], block["body"]
        before, self.printed = self.printed, None
        titled = TITLE.search(rest)
        if titled:
            Path(titled[1]).write_text(body, encoding="utf-8")
        elif kind == "console":
            body = "".join(f"$ {line}\n{printed_by(line)}" for line in COMMAND.findall(body))
        elif kind == "python":
            self.printed = printed_by_code(body, self.names)
        elif kind == "text" and before is not None:
            body = before
        return f"```{kind}{rest}\n{body}```"


def printed_by(line: str) -> str:
    """What a command prints, errors included. Exit codes: 0, or 1 where the page shows a line with "error:"."""
    words = shlex.split(line.replace("\\\n", " "))
    if words[0] != "mppfl":
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    from mppfl.cli import main

    code = 0
    with captured() as printed, changed(sys, "argv", words):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    shown = printed.getvalue()
    if code not in (0, 1) or (code == 1) != bool(re.search(r"^error: |^verdict +fail", shown, flags=re.MULTILINE)):
        raise RuntimeError(f"{line} ended with {code}:\n{shown}")
    return tidy(shown)


def printed_by_code(code: str, names: dict[str, Any]) -> str:
    """What a block of code prints; the names it makes are added to `names`."""
    with captured() as printed:
        exec(compile(code, "<page>", "exec"), names)
    return tidy(printed.getvalue())


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield printed


@contextlib.contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def tidy(text: str) -> str:
    """Without blanks at the ends of lines, and without empty lines at the start and the end."""
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    return f"{lines}\n" if lines else ""


def followed(page: str) -> str:
    """The text of a page after somebody has followed it, in an empty folder that is gone afterwards."""
    reader = Reader()
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            return BLOCK.sub(reader.follow, page)
    finally:
        os.environ.pop("COLUMNS")
        if width is not None:
            os.environ["COLUMNS"] = width


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or PAGES:
        path.write_text(followed(path.read_text(encoding="utf-8")), encoding="utf-8")
