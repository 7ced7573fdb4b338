"""What cannot be done is refused in one line: what, the value, a remedy. No traceback, nothing on stdout."""

from __future__ import annotations

import os
import re
import shlex

import pytest

from mppfl.game import MECHANISMS
from tests.cli.conftest import account_of_twelve, account_of_two
from tests.contract.cases import write_network, write_sample
from tests.experiment.small import small

HEADER = "name,quadratic_cost,linear_cost,noise_harm"
FILES = {  # beside the ledgers; tests/game and tests/network have what else a file may say
    "friends.csv": "ann,bob\nbob,ann\n",
    "two.csv": f"{HEADER}\nann,1,0,1\nbob,1,0,1\n",
    "path.csv": "".join(f"c{n},c{n + 1}\n" for n in range(11)),
    "bobb.csv": f"{HEADER}\nann,1,0,1\nbobb,1,0,1\n",
    "none.csv": f"{HEADER},budget_max\nann,1,0,1,0\nbob,1,0,1,0\n",
    "ann.csv": f"{HEADER}\nann,1,0,1\n",
    "self.csv": "ann,bob\nbob,ann\nbob,bob\n",
    "alone.csv": "ann,bob\nbob,ann\ncat,ann\ndan,ann\n",
    "cat.graphml": '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">'
    '<node id="ann"/><node id="bob"/><node id="cat"/><edge source="ann" target="bob"/></graph></graphml>',
    "trial.toml": "",
    "two.toml": 'mechanisms = ["mppfl", "random"]',
    "seeds.toml": "seeds = [1, 2]",
    "no_rounds.toml": "[game]\nnum_rounds = 0",
    "text.db": "no ledger",
    "few.csv": "c1,1\nc2,0\n",
    "three.csv": "ann,bob\nbob,cat\n",
}
SHORT = {
    "FRIENDS": "--graph friends.csv --clients two.csv --max-hops 1 --hop-decay 0.5 --externality-strength 0.5",
    "TRIAL": "--experiment trial.toml",
    "LONG": "compare --rounds 1000000 --seeds 1000000",  # would take days
    "OF_A_FILE": "is for a network from a file. Give --graph FILE, too.",
    "ONLY_JSON": "means nothing without --json. Give --json, too, or leave it out.",
    "NOBODY": "budget_max is 0 for all 2 clients | nobody can participate | Raise budget_max",
    "TWELVE": "ledger show client.db --graph path.csv --undirected",
    "NEEDS": "leakage_priced needs --leak-price, the price of a nat, and --attribute, a public sample. Give both.",
    "NO_LEAK": "--leak-price=1 has no leak to price. Give --attribute, a public sample, too.",
    "RING": "calibrate --graph ring.csv --attribute values.csv",
}
REFUSED = r"""
solve FRIENDS --clients bobb.csv       line 3 | client 'bobb' is not in the network | mean 'bob'?
solve FRIENDS --clients none.csv       NOBODY
solve --clients ann.csv                client 'ann' is not in the network
solve FRIENDS --graph nowhere.csv      nowhere.csv | Check the path
solve FRIENDS --graph folder.png       folder.png | irectory
solve --graph self.csv                 self.csv | 'bob' is connected to itself | 1 self-loop | drop
solve --graph alone.csv                alone.csv | 2 of 4 clients are isolated | 'cat', 'dan' | keep | drop

solve FRIENDS --hop-decay 0            --hop-decay 0 | (0, 1)
solve FRIENDS --rounds 0               --rounds 0 | at least 1
solve FRIENDS --reward-rate 1e160      --reward-rate 1e+160 must lie in (0, 1e+100)
solve FRIENDS --mechanism mpfl         --mechanism mpfl is not known | Did you mean 'mppfl'? | personalised
solve FRIENDS --mechanism budget_limited   budget_limited needs --payment-limit
solve FRIENDS --mechanism budget_limited --payment-limit 1 --reward-rate 2  --reward-rate 2 | --payment-limit 1
solve FRIENDS --mechanism personalised --reward-rate 3  --reward-rate 3 | personalised | Leave it out
solve FRIENDS --payment-limit 3        --payment-limit 3 | mppfl | budget_limited
solve FRIENDS --fixed-budget 0.3       --fixed-budget 0.3 means nothing to mppfl | the mechanism dp_fedavg
solve FRIENDS --fixed-budget some      --fixed-budget some must be a finite number | "min", "mean"
solve FRIENDS --num-clients 50         --num-clients 50, but | has 2 clients. Make the two agree
solve FRIENDS --device tpu             is not known
solve FRIENDS --participation always   --participation always | everyone | voluntary | rational
solve FRIENDS --preset paperlike       --preset paperlike | benign | Did you mean 'paper-like'?
solve --num-clients 1                  --num-clients 1 | at least 2

solve --undirected                     --undirected | OF_A_FILE
compare --isolated drop                --isolated | OF_A_FILE
solve FRIENDS --prices                 --prices ONLY_JSON
solve TRIAL --hop-decay 3              game.hop_decay=3 must lie in (0, 1).
solve TRIAL --set game.hops=3          'game.hops' is not known.
solve --set game.max_hops=3            --set game.max_hops=3 replaces a value of an experiment file.
solve --experiment two.toml            mechanisms are mppfl, random, and one is played. Choose it by --mechanism.
solve --experiment seeds.toml          seeds are 1, 2, and one is played. Choose it by --seed.
solve --experiment no_rounds.toml      game.num_rounds=0 must be a whole number of at least 1.

compare FRIENDS --seeds 3              --seeds=3 would play one game 3 times | Leave it out
compare TRIAL --preset malign          game.preset="malign" must be one of "paper-like", "benign".
compare TRIAL --mechanisms budget_limited  budget_limited needs payment_limit, payments per round.
compare TRIAL --train other.toml       --experiment means nothing with --train.
compare --mechanisms ,                 --mechanisms=',' | at least one
compare --mechanisms mppfl --fixed-budget 0.2  --fixed-budget 0.2 means nothing to mppfl
compare --figure costs.bmp             --figure='costs.bmp' | .png, .pdf or .svg
LONG --figure ann.csv/costs.png        ann.csv could not be written: ann.csv is no folder. Choose another.
LONG --figure folder.png               folder.png | is a directory
compare --report page.html             Give --train, too
compare --train trial.toml --rounds 3  --rounds means nothing with --train
compare --mechanisms mppfl,leakage_priced           NEEDS
compare TRIAL --leak-price 1           NO_LEAK
compare --attribute p.csv --leak-price -1           --leak-price=-1 must lie in [0,
compare --attribute p.csv --seeds 3    --attribute='p.csv' belongs to one network, and --seeds=3 draws
compare --attribute p.csv              p.csv: No such file or directory.
compare --attribute p.csv --train trial.toml        --attribute means nothing with --train.

risk --client 77                       client '77' is not in the network of 20 clients
risk --protect-share 0.3               --protect-share=0.3 | Give --client and --attribute
risk --round 0                         --round 0 | at least 1
risk --mechanism noiseless             noiseless uses infinite budgets | Choose a mechanism with noise
risk --mechanism dp_fedavg --leak-price 1  --leak-price=1 means nothing to dp_fedavg
graph convert nowhere.csv out.xls      'out.xls' | .csv, .csv.gz or .graphml
graph convert cat.graphml out.csv      without any edge | .graphml
graph generate erdos_reny out.csv      "erdos_reny" | Did you mean 'erdos_renyi'?
graph generate erdos_renyi out.csv --set size               --set 'size' | name=value
graph generate erdos_renyi out.csv --set rng=3              'rng' is not known | Known: probabil
graph generate barabasi_albert out.csv --set edges=3        'edges' | mean 'edges_each'?
graph generate barabasi_albert out.csv --set edges_each=few  edges_each="few" must be

ledger show none.db                    no such ledger
ledger verify text.db                  not a privacy ledger
ledger export folder.png --out x.csv   is not a file
ledger export ledger.db --out nowhere/x.csv  nowhere/x.csv could not be written | Check the folder
ledger export ledger.db --out x.txt    must end in .csv or .json
ledger epsilon ledger.db --delta=0     dp_delta
ledger epsilon ledger.db --delta 1e-5 --method exat  --method='exat' is not known. Known: exact, zcdp, rdp, pld.
ledger epsilon ledger.db --delta 1e-5 --unit client  was released per client, but per record. Leave --unit out.
ledger show ledger.db --unit client    nothing in this ledger was released per client, but per record. Leave --unit out.
ledger show ledger.db --client zoe     'zoe' is not in
ledger show ledger.db --coupling 1     --coupling is about a network
ledger show ledger.db --graph path.csv     client 'ann' is not in the network
TWELVE --attribute few.csv             at least 10
TWELVE --attribute missing.csv         missing.csv
TWELVE --coupling nan                  couplings=

audit sensitivity --client zoe           client 'zoe' is not in the network
audit sensitivity nowhere.toml           nowhere.toml: cannot be read
audit training --confidence 1            --confidence 1 must lie in (0.5, 1)
audit mechanism --budget 1 --noise-multiplier 1             Give one of them
audit neighbour --graph three.csv      either --coupling
RING --public-share 1.5                --public-share 1.5
RING --public-share 0.02               public sample has 2 known values
explore --no-browser --graph nowhere.csv   nowhere.csv does not exist
explore --no-browser --run nowhere         no such folder
train small.toml --resume              holds no training to resume
train small.toml --device tpu          training.device='tpu' is not known. Use 'cpu', 'cuda' or 'cuda:1'.
train small.toml --track wandb         track='wandb' is not known
train small.toml --set training.average_rounds=99  average_rounds=99
train small.toml --set ledger.caps={nobody=1.0}    ledger.caps: client 'nobody' is not in the network
train small.toml --output folder.png --resume      holds no training to resume
report                                 report needs a folder of a run
report nowhere                         no such folder
report folder.png                      neither a run nor a folder with runs
report folder.png --output page.pdf    must end in .html
"""


def cases(text):
    """Command and what is said of it, from lines that have at least two blanks between them."""
    short = re.compile("|".join(SHORT))
    lines = (short.sub(lambda word: SHORT[word[0]], line) for line in text.splitlines() if line)
    return [re.split(r" {2,}", line, maxsplit=1) for line in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with all files that are named above."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "folder.png").mkdir()
    write_network(folder / "ring.csv", 100)
    write_sample(folder / "values.csv", 100)
    account_of_two(folder / "ledger.db")
    account_of_twelve(folder / "client.db")
    (folder / "small.toml").write_text(small().to_toml(), encoding="utf-8")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("line", "parts"), cases(REFUSED))
def test_what_cannot_be_is_refused_with_its_value_and_what_would_do(mppfl, place, monkeypatch, line, parts):
    if line.startswith("explore"):
        pytest.importorskip("dash", reason="the explorer is an extra")
    monkeypatch.chdir(place)
    before = files_in(place)
    refused(mppfl(*shlex.split(line)), *parts.split(" | "))
    assert files_in(place) == before


def files_in(folder):
    return {path for path in folder.rglob("*") if not path.name.endswith(("-shm", "-wal"))}  # those are SQLite's


def refused(answer, *fragments):
    """The answer is one line of error that holds all fragments, and ends as a sentence."""
    line = answer.error
    for fragment in fragments:
        assert fragment in line
    assert line[-1] in ".?"
    assert "Traceback" not in line
    assert "fault in mppfl" not in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("option", ["--graph", "--clients"])
def test_a_file_that_may_not_be_read_is_refused(mppfl, friends, write, option):
    path = write("secret.csv", "ann,bob")
    path.chmod(0)
    refused(mppfl("solve", *friends, option, path), "secret.csv", "permissions")


# ---- usage, tracebacks, faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve", "--hop-decay"],
        ["solve", "surplus"],
        ["graph", "describe"],
        ["audit", "sensitivity", "--mechanism", "paper"],
        ["audit", "float", "--noise", "white"],
    ],
)
def test_wrong_usage_ends_with_two(mppfl, arguments):
    answer = mppfl(*arguments)
    assert (answer.code, answer.stdout) == (2, "")
    assert "Error" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["slove"], "No such command 'slove'. Did you mean 'solve'?"),
        (["solve", "--alpha", "1"], "No such option '--alpha'. Did you mean '--externality-strength'?"),
        (["solve", "--roundz", "1"], "No such option '--roundz'. Did you mean '--rounds'?"),
        (["solve", "--gamma", "1"], "No such option '--gamma'."),
    ],
)
def test_a_misspelt_command_or_option_gets_at_most_one_hint(mppfl, arguments, hint):
    shown = " ".join(mppfl(*arguments).stderr.replace("│", " ").split())
    assert hint in shown
    assert shown.count("Did you mean") == hint.count("Did you mean")


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ((), ("solve",)),
        (("audit",), ("sensitivity", "training", "mechanism", "float", "neighbour")),
        (("audit", "mechanism"), ("(default 0.5 unless --noise-multiplier is given)",)),
        (("deploy",), ("(pip install 'flwr[simulation]')",)),
        (("deploy", "simulate"), ("(pip install 'flwr[simulation]')",)),
        (("solve",), ("--max-hops", "source, target[, weight], meaning")),
    ],
)
def test_help_names_what_there_is_and_shows_square_brackets(mppfl, monkeypatch, command, texts):
    monkeypatch.setenv("COLUMNS", "240")
    for _ in range(2):  # a second time in the same process, too
        answer = mppfl(*command, "--help")
        assert (answer.code, answer.stderr) == (0, "")
        assert all(text in answer.stdout for text in texts)
        assert command != ("solve",) or set(MECHANISMS) <= set(answer.stdout.replace(",", " ").split())


def test_the_version_goes_to_stdout(mppfl):
    answer = mppfl("--version")
    assert (answer.code, answer.stderr) == (0, "")
    assert "mppfl 0." in answer.stdout


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback_wherever_it_stands(mppfl, place):
    arguments = ["solve", "--rounds", "0"]
    arguments.insert(place, "--debug")
    answer = mppfl(*arguments)
    assert (answer.code, answer.stdout) == (1, "")
    assert answer.stderr.startswith("Traceback (most recent call last):\n")
    assert answer.stderr.endswith("\nerror: --rounds 0 must be a whole number of at least 1.\n")


@pytest.mark.parametrize(
    ("failure", "fragments"),
    [
        (ZeroDivisionError("by\nnothing"), ["ZeroDivisionError: by nothing", "fault in mppfl", "--debug"]),
        (MemoryError("8 GiB"), ["not enough memory (8 GiB)", "--no-budgets"]),
        (OSError(28, "No space left on device", "/x"), ["/x: No space left on device", "free space"]),
    ],
)
def test_a_fault_of_our_own_is_one_line_too(mppfl, monkeypatch, failure, fragments):
    def fails(*_, **__):
        raise failure

    monkeypatch.setattr("mppfl.experiment.solve_all", fails)
    line = mppfl("solve", "--num-clients", 4).error
    assert all(fragment in line for fragment in fragments)
