"""The lock of a folder: one process at a time, whoever comes and goes, and nothing is left behind."""

import multiprocessing
import os
import signal
import time

import pytest

from mppfl.errors import BadFile, MppflError
from mppfl.files import LOCK, locked


def test_folders_stay_that_were_there_or_hold_something_and_what_cannot_be_one_is_told(tmp_path):
    (tmp_path / "mine").mkdir()
    for place in ("mine", "a/b"):
        with locked(tmp_path / place):
            assert [path.name for path in (tmp_path / place).iterdir()] == [LOCK]
    with locked(tmp_path / "new" / "inner"):
        (tmp_path / "new" / "note.txt").write_text("keep me")
    for place in (tmp_path / "new" / "note.txt", tmp_path / "new" / "note.txt" / "inner"):
        with pytest.raises(BadFile, match=r"cannot be written \(Not a directory\)"), locked(place):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "new", "note.txt"]


def hold_until_killed(folder, inside):
    with locked(folder):
        inside.set()
        time.sleep(600)


def test_the_lock_of_a_process_that_was_killed_is_taken_over(tmp_path):
    context = multiprocessing.get_context("spawn")
    inside = context.Event()
    holder = context.Process(target=hold_until_killed, args=(tmp_path / "out", inside))
    holder.start()
    assert inside.wait(120)
    with pytest.raises(MppflError, match="at work there"), locked(tmp_path / "out"):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert (tmp_path / "out" / LOCK).exists()
    with locked(tmp_path / "out"):
        pass
    assert list((tmp_path / "out").iterdir()) == []


def come_and_go(folder, inside, times):
    """Enters as often as asked, and ends with 1 where anybody else was inside."""
    entered = 0
    while entered < times:
        try:
            with locked(folder):
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                entered += 1
                inside.unlink()
        except MppflError as refused:
            if "at work" not in str(refused):
                raise


def test_no_two_of_many_who_come_and_go_are_ever_inside_together(tmp_path):
    context = multiprocessing.get_context("spawn")
    work = (tmp_path / "deep" / "out", tmp_path / "inside", 300)
    crowd = [context.Process(target=come_and_go, args=work) for _ in range(6)]
    for visitor in crowd:
        visitor.start()
    for visitor in crowd:
        visitor.join(120)
    assert [visitor.exitcode for visitor in crowd] == [0] * 6
    assert not list(tmp_path.rglob(LOCK))
