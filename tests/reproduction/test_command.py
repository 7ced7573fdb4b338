"""python -m reproduction: cells and figures made again, and where that stands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from reproduction.cells import Cell, arms_of
from reproduction.settings import SETTINGS
from reproduction.store import add_arms, every_training

from reproduction import __main__ as command
from reproduction import game_figures
from reproduction import measure as module
from tests.reproduction.test_cells import measured
from tests.reproduction.test_measure import NAME, SETTINGS_HERE, drawn

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reproduce(monkeypatch, capsys, tmp_path):
    """Runs `python -m reproduction ... --folder` in a folder of its own and gives exit code, stdout and stderr."""
    monkeypatch.setattr(module, "loaded", lambda setting, folder: drawn() if setting.dataset == NAME else None)
    monkeypatch.delenv("MPPFL_DATA", raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["reproduction", "--folder", str(tmp_path), *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            command.main()
        return end.value.code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table3"], "error: 'table3' is nothing to reproduce. Known: table1"),
        (["fig-phi", "--only", "svhn"], "error: --only chooses cells"),
        (["table1", "--only", "cifar"], "error: --only cifar names no cell"),
        (["table2", "--only", "svhn"], "error: --only svhn names no cell"),
        (["table1", "--seeds", "0"], "error: --seeds=0"),
        (["table1", "--device", "tpu"], "error: "),
        (["table1", "--precision", "half"], "error: --precision half must be one of"),
        (["table1", "--minutes", "-3"], "error: --minutes -3"),
        (["fig-phi", "--status"], "error: --status is about the cells"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(reproduce, arguments, message):
    code, out, err = reproduce(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_data_that_are_not_there_are_named_and_those_measured_elsewhere_are_only_not_here(reproduce, tmp_path):
    code, out, err = reproduce("table1", "--only", "svhn", "--only", "cinic-10")
    assert code == 1  # nothing was trained
    assert "error: nothing of table1 was measured: no data" in err
    assert "svhn: not measured: data not available" in err
    assert "cinic-10: not measured: data not available. Give --data DIR or set MPPFL_DATA" in out
    assert "mppfl data get cinic-10" in out
    assert "0 arms trained" in out
    code, out, _ = reproduce("table1", "--status", "--only", "svhn")
    assert out.splitlines()[0] == "svhn/iid/n20/seed0     not measurable (data not available)  unknown hours left"
    cell = Cell("cifar-100", "iid", 20, 0)
    add_arms(tmp_path, cell, SETTINGS["cifar-100"], [measured(arms_of(cell)[0], 48.0)])
    code, out, err = reproduce("table1", "--only", "cifar-100")
    assert code == 1
    assert "cifar-100: not measured: no files here" in err
    assert "cifar-100: not measured: no files here. Give --data DIR" in out


def test_status_lists_every_cell_and_what_is_left_and_for_programs_is_one_object(reproduce):
    code, out, _ = reproduce("table2", "--status", "--only", "cifar-10/iid")
    assert code == 0
    first, *_, remedy, last = out.splitlines()
    assert first == "cifar-10/iid/n20/seed0  missing (not yet trained; no files here)  unknown hours left"
    assert remedy.startswith("cifar-10: no files here. Give --data DIR or set MPPFL_DATA")
    assert last.startswith("0 measured, 0 partly, 3 missing, 0 not measurable; unknown hours")
    content = json.loads(reproduce("--status", "--json")[1])
    assert len(content["cells"]) == 30
    assert content["counts"] == {"measured": 0, "partly": 0, "missing": 30, "not measurable": 0}
    assert set(content["not_here"]) == {row["cell"].split("/")[0] for row in content["cells"]}


def test_status_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from reproduction.__main__ import main; main()"
    line = [sys.executable, "-c", code, "--status"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cifar-10/iid/n20/seed0          measured" in done.stdout


def test_cells_are_trained_and_filed(reproduce, monkeypatch, tmp_path):
    """The command's own path, on drawn pictures and with a cell of the rehearsal's size."""
    options = {"settings": SETTINGS_HERE, "at_most_arms": 2}
    monkeypatch.setattr(command, "_measured", lambda cells, folder, *rest: module.measure(cells, folder, **options))
    code, out, _ = reproduce("table1", "--only", f"{NAME}/iid", "--json")
    assert (code, json.loads(out)["arms_trained"], json.loads(out)["out_of_time"]) == (0, 2, True)
    assert len(every_training(tmp_path)) == 2


def test_curves_are_the_cells_of_cifar_100_and_tables_have_theirs():
    assert {cell.dataset for cell in command._cells("fig-curves", [], None)} == {"cifar-100"}
    assert {cell.num_clients for cell in command._cells("table1", [], None)} == {20}
    assert {cell.dataset for cell in command._cells("table2", [], None)} == {"cifar-10", "cinic-10"}
    assert command._cells("fig-cost", [], None) == []
    assert Cell("svhn", "iid", 20, 4) in command._cells("all", [], 5)


def test_a_figure_is_one_file_kept_where_it_has_as_many_seeds_and_replaced_by_more(reproduce, tmp_path, monkeypatch):
    assert "fig-cost" in reproduce("fig-cost", "--seeds", 1)[1]
    assert [path.name for path in tmp_path.glob("*.json")] == ["fig-cost.json"]
    for name in ("PHI_ROUNDS", "SIZES"):
        monkeypatch.setattr(game_figures, name, getattr(game_figures, name)[:1])
    path = tmp_path / "fig-phi.json"
    assert reproduce("fig-phi", "--seeds", 2)[1].startswith(f"{path}\n{path.with_suffix('.svg')}\nnext: ")
    before = path.read_bytes()
    for seeds in (1, 2):
        out = reproduce("fig-phi", "--seeds", seeds)[1]
        assert out == f"{path}: kept, has 2 seeds of the same games. Remove it to have it made anew.\n"
    content = json.loads(reproduce("fig-phi", "--seeds", 1, "--json")[1])
    assert (content["figures"], content["figures_kept"]) == ([], [str(path)])
    assert path.read_bytes() == before
    reproduce("fig-phi", "--seeds", 3)
    assert json.loads(path.read_text("utf-8"))["seeds"] == 3
    path.write_bytes(before.replace(b'"threshold": 0.001', b'"threshold": 0.002'))
    reproduce("fig-phi", "--seeds", 1)
    assert json.loads(path.read_text("utf-8"))["configuration"]["threshold"] == 0.001
    path.write_text("cut off", "utf-8")
    assert reproduce("fig-phi", "--seeds", 1)[1].startswith(f"{path}\n")


@pytest.mark.parametrize("arguments", [["--status"], ["fig-phi"], ["table1"]])
def test_a_file_is_no_folder(reproduce, tmp_path, arguments):
    here = tmp_path / "results"
    here.write_text("not a folder", "utf-8")
    for folder in (here, here / "within"):
        code, out, err = reproduce(*arguments, "--folder", folder)
        assert (code, out) == (1, "")
        assert err == f"error: --folder={str(folder)!r}: {here} is no folder. Name one, there or to be made.\n"


def test_the_results_are_a_page_too_which_needs_a_name_and_something_to_show(reproduce, tmp_path):
    page, results = tmp_path / "paper.html", ROOT / "reproduction" / "results"
    refusals = {"paper.pdf": "must end in .html", ".": "is a directory", "paper.html": "holds no results of the paper"}
    for name, message in refusals.items():
        code, _, err = reproduce("--page", tmp_path / name)
        assert (code, message in err, page.exists()) == (1, True, False)
    code, out, _ = reproduce("--folder", results, "--page", page, "--json")
    assert (code, json.loads(out)["folder"]) == (0, str(results))
    assert all(words in page.read_text("utf-8") for words in ("Tables 1 and 2", "Accuracy round by round"))
