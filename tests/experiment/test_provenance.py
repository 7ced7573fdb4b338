"""Provenance: complete where it can be, silent about people and places, and never in the way."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

import mppfl
from mppfl.experiment import Provenance, provenance_here
from tests.homes import home

provenance = home(Provenance)

HASH = "0123456789abcdef0123456789abcdef01234567"


def test_provenance_tells_versions_machine_and_time():
    here = provenance_here()
    assert here.python == platform.python_version()
    assert all(getattr(here, name) for name in ("mppfl", "torch", "numpy", "scipy", "cpu", "source"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", here.started)
    assert here.cores >= 1
    assert here.memory_gib > 0
    assert (here.device, here.gpu, here.seconds) == ("cpu", "", 0.0)
    assert provenance_here("cuda:99", started="then", seconds=2.5).started == "then"


def test_provenance_names_no_host_user_or_folder():
    text = " ".join(map(str, asdict(provenance_here()).values()))
    assert str(Path(mppfl.__file__).parent) not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert not re.search(r"(^|\s)/\w", text)
    for word in (socket.gethostname(), os.environ.get("USER") or getpass.getuser()):
        assert not re.search(rf"\b{re.escape(word)}\b", text)


@pytest.fixture
def tree(tmp_path):
    """A work tree with a package in it, made by hand."""
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return package


def test_the_commit_is_read_from_a_branch_a_packed_branch_or_no_branch(tree):
    git = tree.parents[1] / ".git"
    assert provenance.commit_of(tree) == ""  # no commit yet
    (git / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/other\n{HASH} refs/heads/main\n")
    assert provenance.commit_of(tree) == HASH
    (git / "refs" / "heads" / "main").write_text(HASH[::-1] + "\n")
    assert provenance.commit_of(tree) == HASH[::-1]
    (git / "HEAD").write_text(HASH + "\n")
    assert provenance.commit_of(tree) == HASH
    installed = tree.parents[1] / ".venv" / "site-packages" / "mppfl"
    installed.mkdir(parents=True)
    assert provenance.commit_of(installed) == ""  # a package there belongs to no work tree
    (git / "HEAD").write_text("nonsense /home/me\n")
    assert provenance.commit_of(tree) == ""
    (git / "HEAD").write_bytes(b"\xff\xff")
    assert provenance.commit_of(tree) == ""


def test_the_commit_of_a_connected_work_tree_is_found(tree, tmp_path):
    connected = tmp_path / "connected"
    (connected / "package").mkdir(parents=True)
    own = tmp_path / ".git" / "worktrees" / "connected"
    own.mkdir(parents=True)
    (connected / ".git").write_text(f"gitdir: {own}\n")
    (own / "HEAD").write_text("ref: refs/heads/topic\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / ".git" / "refs" / "heads" / "topic").write_text(HASH)
    assert provenance.commit_of(connected / "package") == HASH


def test_the_fingerprint_follows_the_source(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    before = provenance.fingerprint(tmp_path)
    (tmp_path / "a.pyc").write_text("noise")
    assert provenance.fingerprint(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2")
    assert provenance.fingerprint(tmp_path) != before


def test_nothing_that_is_missing_stops_it(monkeypatch):
    def fails(*_, **__):
        raise OSError("no")

    monkeypatch.setattr(provenance.Path, "read_text", fails)
    monkeypatch.setattr(provenance.Path, "read_bytes", fails)
    monkeypatch.setattr(provenance.os, "sysconf", fails)
    monkeypatch.setattr(provenance.metadata, "version", fails)
    here = provenance_here("cuda")
    assert (here.commit, here.source, here.torch, here.memory_gib) == ("", "", "", 0.0)
