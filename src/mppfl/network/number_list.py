"""Edge lists of plain numbers, read by NumPy in blocks.

What cannot be vouched for here is left to edge_list.py, so that both read every file alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.network.edge_list import (
    BLANK,
    CONTROL,
    fields_of,
    has_column_words,
    has_titled_weight,
    is_column_order,
    is_comment,
    separator_of,
)
from mppfl.network.links import Links

_BLOCK_BYTES = 2**20
_LONGEST_PLAIN_LINE = 2**12
_IS_PLAIN = np.isin(np.arange(256), list(b"0123456789.eE+-,; \t\n"))


def links_of_numbers(stream: IO[bytes]) -> Links | None:
    """The links of a file of plain numbers with one separator, or None where a line needs a closer look."""
    top = _top_of_numbers(stream)
    if top is None:
        return None
    raw, separator, width = top
    ends, weights = [], []
    for block in _whole_lines(stream, raw):
        parsed = _numbers_of_block(block, separator, width)
        if parsed is None:
            return None
        ends.append(parsed[0])
        weights.append(parsed[1])
    positions, names = _compact(np.concatenate(ends))
    return Links(positions[0::2], positions[1::2], None if width == 2 else np.concatenate(weights), names)


def _top_of_numbers(stream: IO[bytes]) -> tuple[bytes, str, int] | None:
    """The first line with a link, its separator and number of fields, once comments and a header are passed."""
    header: tuple[str, int] | None = None
    for raw in iter(lambda: stream.readline(_LONGEST_PLAIN_LINE), b""):
        if len(raw) == _LONGEST_PLAIN_LINE:
            return None
        if is_comment(raw):
            continue
        if not raw.isascii():
            return None
        line = raw.decode("ascii").rstrip("\r\n").strip(BLANK)
        separator = separator_of(line)
        fields = fields_of(line, separator)
        if fields is None or len(fields) not in (2, 3) or CONTROL.search(line):
            return None
        if header is None and (has_column_words(fields) or has_titled_weight(fields)) and is_column_order(fields):
            header = separator, len(fields)
            continue
        return (raw, separator, len(fields)) if header in (None, (separator, len(fields))) else None
    return None


def _whole_lines(stream: IO[bytes], rest: bytes) -> Iterator[bytes]:
    """`rest` and what the stream still holds, in blocks that end with a line; NUL once a line is no plain one."""
    while more := stream.read(_BLOCK_BYTES):
        block = rest + more
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        yield block[:end] if len(rest) < _LONGEST_PLAIN_LINE else b"\0"
    yield rest


def _numbers_of_block(block: bytes, separator: str, width: int) -> tuple[IntArray, Array] | None:
    """The ends of the links, source and target in turn, and the weights; None unless every line is plainly right."""
    block = block.replace(b"\r\n", b"\n").lstrip(b" \t\n").rstrip(b" \t\r\n")
    if not block:
        return np.empty(0, dtype=np.int64), np.empty(0)
    if separator == ",":
        block = block.replace(b", ", b",")
    text = np.frombuffer(block + b"\n", dtype=np.uint8)
    if not _IS_PLAIN[text].all():
        return None
    newline = text == ord("\n")
    gap = newline | (text == ord(separator))
    if separator == " ":
        gap |= text == ord("\t")
    if gap[0]:
        return None
    turns = np.flatnonzero(gap[1:] != gap[:-1]) + 1
    starts, ends, line_ends = np.concatenate([[0], turns[1::2]]), turns[0::2], np.flatnonzero(newline)
    if len(starts) != width * len(line_ends) or (separator != " " and gap.sum() != len(starts)):
        return None  # a line too short or too long; or two separators in a row, that is an empty field
    starts, ends = starts.reshape(-1, width), ends.reshape(-1, width)
    if (starts[1:, 0] < line_ends[:-1]).any() or (ends[:, -1] > line_ends).any():
        return None  # a line too short beside one too long
    names = _whole_numbers(text, starts[:, :2].ravel(), ends[:, :2].ravel())
    weights = _positive_numbers(text, starts[:, 2], ends[:, 2]) if width == 3 else np.empty(0)
    return None if names is None or weights is None else (names, weights)


def _whole_numbers(text: Any, starts: IntArray, ends: IntArray) -> IntArray | None:
    """The integers written there; None unless all are written in digits, fit 64 bits, and do not begin with 0."""
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > 18 or ((text[starts] == ord("0")) & (lengths > 1)).any():
        return None  # "07" and "7" are two names
    values = np.zeros(len(starts), dtype=np.int64)
    for k in range(longest):
        inside = k < lengths
        digits = text[np.minimum(starts + k, len(text) - 1)] - np.uint8(ord("0"))  # wraps round for what is no digit
        if (digits[inside] > 9).any():
            return None
        values = np.where(inside, values * 10 + digits, values)
    return values


def _positive_numbers(text: Any, starts: IntArray, ends: IntArray) -> Array | None:
    """The numbers written there; None unless all are positive, finite and in at most 32 plain characters."""
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > 32:
        return None
    padded = np.concatenate([text, np.zeros(longest, dtype=np.uint8)])
    characters = np.lib.stride_tricks.sliding_window_view(padded, longest)[starts]
    characters[np.arange(longest) >= lengths[:, None]] = 0
    try:
        values = characters.view(f"S{longest}").ravel().astype(np.float64)
    except ValueError:
        return None
    return values if ((values > 0) & (values < np.inf)).all() else None


def _compact(numbers: IntArray) -> tuple[IntArray, tuple[str, ...]]:
    """Each number's place among those that occur, and their names in that order."""
    highest = int(numbers.max())
    positions: IntArray
    if highest > 4 * len(numbers) + 1_000_000:
        known, positions = np.unique(numbers, return_inverse=True)
    else:
        occurs = np.zeros(highest + 1, dtype=bool)
        occurs[numbers] = True
        known = np.flatnonzero(occurs)
        positions = (np.cumsum(occurs, dtype=np.int32) - 1)[numbers]
    return positions, tuple(map(str, known.tolist()))
