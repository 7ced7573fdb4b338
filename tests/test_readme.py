"""The README says what its files say, and its commands and its ten lines work."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_tables_are_made_from_the_files_in_the_repository():
    sys.path.insert(0, str(ROOT / "docs"))
    from make_results import PAGES, TABLES, with_tables

    texts = [page.read_text() for page in PAGES]
    for text in texts:
        assert with_tables(text) == text, "run: python docs/make_results.py --tables"
    assert all(any(f"<!-- {name} -->" in text for text in texts) for name in TABLES)


def test_the_ten_lines_run():
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "leader_regret" in done.stdout
    assert len(block.strip().splitlines()) <= 12


def test_the_commands_it_names_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
