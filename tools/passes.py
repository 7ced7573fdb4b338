"""Which files of mppfl a command passes on its way.

    python tools/passes.py solve --num-clients 4 --rounds 1
    python tools/passes.py --until-first-ledger-row train examples/demo.toml --output OUT

A file is passed when a function in it is entered. Importing a module counts for nothing, nor does an `__init__`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src" / "mppfl"
UNTIL = "--until-first-ledger-row"


class FirstRow(BaseException):
    """The first row stands in a ledger: the walk ends here."""


def passed(command: list[str], *, until_first_row: bool) -> list[str]:
    """Files in the order in which the command entered them first."""
    files: dict[str, None] = {}

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if name.startswith(str(SOURCE)) and not name.endswith("__init__.py") and not _is_import(frame):
            files.setdefault(str(Path(name).relative_to(SOURCE)))
        return None

    if until_first_row:
        _stop_at_first_row()
    from mppfl.cli import main

    sys.argv = ["mppfl", *command]
    sys.settrace(enter)
    try:
        main()
    except (FirstRow, SystemExit):
        pass
    finally:
        sys.settrace(None)
    return list(files)


def _is_import(frame: FrameType | None) -> bool:
    """Whether a module, the body of a class, or what one of them calls as it is imported, runs here."""
    while frame is not None and "importlib" not in frame.f_code.co_filename:
        if not frame.f_code.co_flags & CO_OPTIMIZED and frame.f_code.co_filename.startswith(str(SOURCE)):
            return True
        frame = frame.f_back
    return False


def _stop_at_first_row() -> None:
    from mppfl import PrivacyLedger

    for name in ("reserve", "reserve_each"):
        reserve = getattr(PrivacyLedger, name)

        def stop(*arguments: Any, reserve: Callable[..., Any] = reserve, **options: Any) -> Any:
            reserve(*arguments, **options)
            raise FirstRow

        setattr(PrivacyLedger, name, stop)


if __name__ == "__main__":
    words = sys.argv[1:]
    walk = passed([word for word in words if word != UNTIL], until_first_row=UNTIL in words)
    print(*walk, sep="\n", file=sys.stderr)
    print(f"{len(walk)} files passed", file=sys.stderr)
