"""The contract: what the doors answer, held against numbers written down before the code behind them moved.

A case calls a door as a user does (a command, a page, a wheel) and hands what came back to `golden.check`. The golden
file of a case is made once by `MPPFL_WRITE_GOLDEN=1 pytest tests/contract`; after that it changes only with a sentence
in the commit that says why the new number is right. Numbers of the game agree to 1e-12. Numbers of a training were
summed in float32, which another processor adds in another order: they agree to `FLOAT32`, and to 1e-12 where
`MPPFL_CONTRACT_EXACT=1` says that the machine is the one that wrote them.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXACT = 1e-12
FLOAT32 = 2e-3  # some hundred float32 steps of a small network, each 6e-8 and amplified by the steps after it
NOT_COMPARED = {"seconds", "wall_seconds", "commit", "machine", "versions", "created", "started", "finished"}


def command(*arguments: object, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """One call of the command line in a process of its own, with its exit code asserted."""
    line = [str(Path(sys.executable).with_name("mppfl")), *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == code, (
        f"{' '.join(line)}\nexit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    return done


def json_of(*arguments: object, cwd: Path | None = None) -> Any:
    """The one JSON object that a command prints."""
    return json.loads(command(*arguments, "--json", cwd=cwd).stdout)


class Golden:
    """Golden numbers of one case, in golden/<name>.json."""

    def __init__(self, name: str) -> None:
        self.path = HERE / "golden" / f"{name}.json"

    def check(self, answer: Any, relative: float = EXACT, noise: dict[str, float] | None = None) -> None:
        """`answer` equals the golden one, numbers to `relative`; a key of `noise` is only held below its bound.

        `noise` is for residuals and regrets: what is left of a solution is rounding, and only its size means anything.
        """
        plain = json.loads(json.dumps(answer))
        if os.environ.get("MPPFL_WRITE_GOLDEN"):
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text(
                json.dumps(plain, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
            )
        if os.environ.get("MPPFL_CONTRACT_EXACT"):
            relative = EXACT
        differences = list(
            _differences(json.loads(self.path.read_text(encoding="utf-8")), plain, relative, noise or {}, "")
        )
        assert not differences, "\n".join(differences[:20])


def _differences(golden: Any, answer: Any, relative: float, noise: dict[str, float], place: str) -> Any:
    """What differs, a line each: keys, lengths, texts, and numbers by more than `relative` of themselves."""
    if isinstance(golden, dict) and isinstance(answer, dict):
        if golden.keys() != answer.keys():
            gone, new = sorted(golden.keys() - answer.keys()), sorted(answer.keys() - golden.keys())
            yield f"{place}: keys {gone} gone, {new} new"
        for key in golden.keys() & answer.keys() - NOT_COMPARED:
            if key in noise:
                if not abs(answer[key]) <= noise[key]:
                    yield f"{place}.{key}: {answer[key]} is above {noise[key]}"
            else:
                yield from _differences(golden[key], answer[key], relative, noise, f"{place}.{key}")
    elif isinstance(golden, list) and isinstance(answer, list):
        if len(golden) != len(answer):
            yield f"{place}: {len(golden)} entries, now {len(answer)}"
        for index, (old, new) in enumerate(zip(golden, answer, strict=False)):
            yield from _differences(old, new, relative, noise, f"{place}[{index}]")
    elif _is_number(golden) and _is_number(answer):
        if not math.isclose(golden, answer, rel_tol=relative, abs_tol=relative * 1e-3):
            yield f"{place}: {golden!r}, now {answer!r}"
    elif golden != answer:
        yield f"{place}: {golden!r}, now {answer!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
