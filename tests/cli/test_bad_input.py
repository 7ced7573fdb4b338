"""What cannot be done is refused in one line: what, the value, a remedy. No traceback, nothing on stdout."""

from __future__ import annotations

import os

import pytest

from mppfl.game import MECHANISMS

HEADER = "name,quadratic_cost,linear_cost,noise_harm"
BINARY = bytes(range(256)) * 8


def refused(answer, *fragments):
    """The answer is one line of error that holds all fragments, and ends as a sentence."""
    line = answer.error
    for fragment in fragments:
        assert fragment in line
    assert line[-1] in ".?"
    assert "Traceback" not in line
    assert "fault in mppfl" not in line


# ---- the clients file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "fragments"),
    [
        ([HEADER, "ann,nan,0,1"], ["line 2", "quadratic_cost of client 'ann' is 'nan'", "must be a number above 0"]),
        ([HEADER, "ann,0,0,1"], ["quadratic_cost of client 'ann' is '0'", "above 0"]),
        ([HEADER, "ann,inf,0,1"], ["quadratic_cost of client 'ann' is 'inf'", "above 0"]),
        ([HEADER, "bob,1,0,1", "ann,1,nan,1"], ["line 3", "linear_cost of client 'ann' is 'nan'", "at least 0"]),
        ([HEADER, "ann,1,-0.5,1"], ["linear_cost of client 'ann' is '-0.5'", "at least 0"]),
        ([HEADER, "ann,1,0,0"], ["noise_harm of client 'ann' is '0'", "above 0"]),
        ([HEADER, "ann,1,1e300,1"], ["line 2", "linear_cost of client 'ann' is 1e+300", "Choose other units"]),
        ([HEADER, "ann,1e-200,0,1"], ["quadratic_cost of client 'ann' is 1e-200", "between 1e-100 and 1e+100"]),
        ([HEADER, "ann,1,0,much"], ["noise_harm of client 'ann' is 'much'", "must be a number"]),
        ([HEADER, "ann,1,0,"], ["noise_harm of client 'ann' is nothing", "must be a number"]),
        ([HEADER, "ann,1_0,0,1"], ["quadratic_cost of client 'ann' is '1_0'", "must be a number"]),
        ([HEADER, "ann,1,0,1", "bob,1,0,1", "ann,1,0,1"], ["line 4", "'ann' stands already on line 2", "Keep one"]),
        ([HEADER, "ann,1,0,1", "bobb,1,0,1"], ["line 3", "client 'bobb' is not in the network", "mean 'bob'?"]),
        ([HEADER, "ann,1,0,1"], ["1 of the network's 2 clients have no line: 'bob'", "Add them"]),
        ([HEADER, "ann,1,0"], ["line 2", "3 fields where the header has 4", "Complete the line"]),
        ([HEADER, 'ann,1,0,"1'], ["line 2", "not a line of CSV", "Close quotes"]),
        ([], ["empty", "must be a header: name, quadratic_cost, linear_cost, noise_harm"]),
        (["name,quadratic_cost,linear_cost", "ann,1,0"], ["line 1", "column 'noise_harm' is missing"]),
        ([HEADER.replace("harm", "harms"), "ann,1,0,1"], ["unknown column 'noise_harms'", "mean 'noise_harm'?"]),
        ([f"{HEADER},colour", "ann,1,0,1,red"], ["unknown column 'colour'", "Known: name, quadratic_cost"]),
        ([f"{HEADER},name", "ann,1,0,1,ann"], ["column 'name' stands twice", "Keep one"]),
        ([HEADER.replace(",", ";"), "ann;1;0;1"], ["unknown column", "Separate columns by commas"]),
        ([f"{HEADER},budget_max", "ann,1,0,1,nan", "bob,1,0,1,1"], ["budget_max of client 'ann' is 'nan'", "or inf"]),
        (
            [f"{HEADER},budget_min,budget_max", "ann,1,0,1,2,1", "bob,1,0,1,0,1"],
            ["line 2", "budget_max=1 of client 'ann' is below budget_min=2", "correct"],
        ),
    ],
)
def test_a_clients_file_with_a_fault_is_refused_with_its_place_and_a_remedy(mppfl, friends, write, lines, fragments):
    refused(mppfl("solve", *friends, "--clients", write("people.csv", *lines), "--json"), "people.csv", *fragments)


@pytest.mark.parametrize("mechanism", ["mppfl", "personalised", "mppfl_noise_aware", "sarda_like", "noiseless"])
def test_nobody_can_take_part_under_any_mechanism_if_no_budget_may_be_positive(mppfl, friends, write, mechanism):
    path = write("people.csv", f"{HEADER},budget_max", "ann,1,0,1,0", "bob,1,0,1,0")
    told = ("budget_max is 0 for all 2 clients", "nobody can participate", "Raise budget_max")
    refused(mppfl("solve", *friends, "--clients", path, "--mechanism", mechanism), *told)


def test_a_clients_file_that_is_binary_or_without_its_network_is_refused(mppfl, friends, write):
    path = write("people.csv", HEADER, "ann,1,0,1")
    refused(mppfl("solve", "--clients", path), "client 'ann' is not in the network")
    path.write_bytes(BINARY)
    refused(mppfl("solve", *friends, "--clients", path), "people.csv", "not UTF-8", "Save the file as UTF-8")


# ---- files that are not there, or not what they should be -------------------------------------------------------


@pytest.mark.parametrize("option", ["--graph", "--clients"])
def test_a_missing_file_and_a_directory_are_refused_by_their_names(mppfl, friends, tmp_path, option):
    refused(mppfl("solve", *friends, option, tmp_path / "nowhere.csv"), "nowhere.csv", "Check the path")
    refused(mppfl("solve", *friends, option, tmp_path), str(tmp_path), "irectory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("option", ["--graph", "--clients"])
def test_a_file_that_may_not_be_read_is_refused(mppfl, friends, write, option):
    path = write("secret.csv", "ann,bob")
    path.chmod(0)
    refused(mppfl("solve", *friends, option, path), "secret.csv", "permissions")


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        *((content, []) for content in (b"", b"# nothing but a comment\n", b"\n\n", BINARY, b"\x1f\x8b not gzip")),
        *((content, []) for content in (b"ann\n", b"ann,bob,cat,dan\n")),
        *((f"ann,bob,1\nbob,ann,{weight}\n".encode(), [weight]) for weight in ("nan", "-1", "0", "inf", "heavy")),
        (b"ann,bob\nbob,ann\nbob,bob\n", ["'bob' is connected to itself", "1 self-loop", "drop"]),
        (b"ann,bob\nbob,ann\ncat,ann\ndan,ann\n", ["2 of 4 clients are isolated", "'cat', 'dan'", "keep", "drop"]),
    ],
)
def test_a_file_that_holds_no_network_is_refused_with_its_name_and_what_is_wrong(mppfl, tmp_path, content, fragments):
    path = tmp_path / "edges.csv"
    path.write_bytes(content)
    refused(mppfl("solve", "--graph", path), "edges.csv", *fragments)


# ---- numbers that cannot be -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (["--hop-decay", "0"], ["--hop-decay 0", "(0, 1)"]),
        (["--hop-decay", "1"], ["--hop-decay 1", "(0, 1)"]),
        (["--hop-decay", "nan"], ["--hop-decay nan", "(0, 1)"]),
        (["--max-hops", "0"], ["--max-hops 0", "at least 1"]),
        (["--accuracy-weight", "0"], ["--accuracy-weight 0", "(0, 1)"]),
        (["--accuracy-weight", "1"], ["--accuracy-weight 1", "(0, 1)"]),
        (["--accuracy-weight", "nan"], ["--accuracy-weight nan", "(0, 1)"]),
        (["--externality-strength", "-0.1"], ["--externality-strength -0.1"]),
        (["--externality-strength", "nan"], ["--externality-strength nan"]),
        (["--externality-strength", "inf"], ["--externality-strength inf", "1e+100"]),
        (["--rounds", "0"], ["--rounds 0", "at least 1"]),
        (["--rounds", "99999999999999999999"], ["--rounds 99999999999999999999", "at most 10,000,000"]),
        (["--seed", "-1"], ["--seed -1", "at least 0"]),
        (["--reward-rate", "0"], ["--reward-rate 0"]),
        (["--reward-rate", "nan"], ["--reward-rate nan"]),
        (["--reward-rate", "1e160"], ["--reward-rate 1e+160 must lie in (0, 1e+100)"]),
        (["--mechanism", "mpfl"], ["--mechanism mpfl is not known", "Did you mean 'mppfl'?", "personalised"]),
        (["--mechanism", "budget_limited"], ["budget_limited needs --payment-limit"]),
        (["--mechanism", "budget_limited", "--payment-limit", "-1"], ["--payment-limit -1"]),
        (["--mechanism", "budget_limited", "--payment-limit", "nan"], ["--payment-limit nan"]),
        (["--mechanism", "personalised", "--reward-rate", "3"], ["--reward-rate 3", "personalised", "Leave it out"]),
        (["--mechanism", "noiseless", "--reward-rate", "3"], ["--reward-rate 3", "noiseless", "Leave it out"]),
        (["--payment-limit", "3"], ["--payment-limit 3", "mppfl", "budget_limited"]),
        (["--fixed-budget", "0.3"], ["--fixed-budget 0.3 means nothing to mppfl", "the mechanism dp_fedavg"]),
        (
            ["--mechanism", "budget_limited", "--payment-limit", "0.5", "--reward-rate", "2"],
            ["--reward-rate 2", "--payment-limit 0.5", "Leave one of them out"],
        ),
        (["--num-clients", "50"], ["--num-clients 50, but", "has 2 clients. Make the two agree"]),
        (["--fixed-budget", "some"], ["--fixed-budget some must be a finite number", '"min", "mean"']),
        (["--fixed-budget", "0"], ["--fixed-budget 0 must lie in (0, 1e+100)"]),
        (["--fixed-budget", "1e160"], ["--fixed-budget 1e+160 must lie in (0, 1e+100)"]),
        (["--device", "tpu"], ["is not known"]),
        (["--participation", "sometimes"], ["--participation sometimes", "everyone", "voluntary", "rational"]),
        (["--isolated", "maybe"], ["--isolated maybe", "keep", "drop"]),
        (["--self-loops", "maybe"], ["--self-loops maybe", "drop"]),
        (["--normalisation", "maybe"], ["--normalisation maybe", "row", "symmetric"]),
        (["--diagonal", "maybe"], ["--diagonal maybe", "exact", "estimate"]),
        (["--preset", "paperlike"], ["--preset paperlike", "benign", "Did you mean 'paper-like'?"]),
    ],
)
def test_an_impossible_option_is_refused_with_its_value_and_what_would_do(mppfl, friends, options, fragments):
    refused(mppfl("solve", *friends, *options, "--json"), *fragments)


@pytest.mark.parametrize("option", [["--undirected"], ["--isolated", "drop"], ["--self-loops", "drop"]])
@pytest.mark.parametrize("command", ["solve", "compare", "risk"])
def test_options_about_a_file_are_refused_for_a_random_network(mppfl, command, option):
    refused(mppfl(command, *option), option[0], "is for a network from a file. Give --graph FILE, too.")


@pytest.mark.parametrize("option", ["--prices", "--no-budgets"])
def test_options_about_the_json_are_refused_without_it(mppfl, friends, write, option):
    told = f"{option} means nothing without --json. Give --json, too, or leave it out."
    refused(mppfl("solve", *friends, option), told)
    refused(mppfl("solve", "--experiment", write("trial.toml", ""), option), told)


def test_one_game_is_not_counted_as_several(mppfl, friends):
    refused(mppfl("compare", *friends, "--seeds", 3), "--seeds=3 would play one game 3 times", "Leave it out")


@pytest.mark.parametrize(
    ("command", "text", "options", "message"),
    [
        ("solve", "", ("--hop-decay", 3), "game.hop_decay=3 must lie in (0, 1)."),
        ("solve", "", ("--set", "game.hops=3"), "'game.hops' is not known."),
        ("solve", "", ("--mechanism", "mppfll"), "mechanism='mppfll' is not known. Did you mean 'mppfl'?"),
        ("solve", 'mechanisms = ["mppfl", "random"]', (), "mechanisms are mppfl, random, and one is played. Choose"),
        ("solve", "seeds = [1, 2]", (), "seeds are 1, 2, and one is played. Choose it by --seed."),
        ("solve", "[game]\nnum_rounds = 0", (), "game.num_rounds=0 must be a whole number of at least 1."),
        ("solve", "[game]\nnum_rounds = 10000001", (), "game.num_rounds=10000001 must be a whole number of at most"),
        ("compare", "", ("--preset", "malign"), 'game.preset="malign" must be one of "paper-like", "benign".'),
        ("compare", "", ("--mechanisms", "budget_limited"), "budget_limited needs payment_limit, payments per round."),
        ("compare", "", ("--fixed-budget", "mean"), "means nothing to mppfl. Choose the mechanism dp_fedavg"),
        ("compare", "", ("--mechanisms", "mpfl"), "mechanism='mpfl' is not known. Did you mean 'mppfl'?"),
        ("compare", "", ("--train", "other.toml"), "--experiment means nothing with --train."),
        ("compare", "", ("--rounds", 0), "rounds=0 must be a whole number of at least 1."),
    ],
)
def test_what_a_file_and_options_cannot_say_together_is_refused(mppfl, write, command, text, options, message):
    assert message in mppfl(command, "--experiment", write("trial.toml", text), *options).error


# ---- the other commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        *((["solve", "--num-clients", size], [f"--num-clients {size}", "at least 2"]) for size in ("0", "1", "-3")),
        (["compare", "--mechanisms", "mppfl,mpfl"], ["mechanism='mpfl' is not known", "Did you mean 'mppfl'?"]),
        (["compare", "--mechanisms", ","], ["--mechanisms=','", "at least one"]),
        (["compare", "--mechanisms", "budget_limited"], ["budget_limited needs --payment-limit"]),
        (["compare", "--payment-limit", "2"], ["--payment-limit 2", "budget_limited"]),
        (["compare", "--seeds", "0"], ["--seeds 0", "at least 1"]),
        (["compare", "--seed", "-1"], ["--seed -1", "at least 0"]),
        (["compare", "--rounds", "0"], ["--rounds 0", "at least 1"]),
        (["compare", "--figure", "costs.bmp"], ["--figure='costs.bmp'", ".png, .pdf or .svg"]),
        (["compare", "--figure", "costs"], ["--figure='costs'", ".png, .pdf or .svg"]),
        (["compare", "--mechanisms", "mppfl", "--fixed-budget", "0.2"], ["--fixed-budget 0.2 means nothing to mppfl"]),
        (["risk", "--fixed-budget", "mean"], ["--fixed-budget mean means nothing to mppfl"]),
        (["compare", "--fixed-budget", "max"], ["--fixed-budget max", '"min", "mean"']),
        (["risk", "--client", "77"], ["client '77' is not in the network of 20 clients"]),
        (["risk", "--protect-share", "0.3"], ["--protect-share=0.3", "Give --client and --attribute"]),
        (["risk", "--round", "0"], ["--round 0", "at least 1"]),
        (["risk", "--top", "0"], ["--top 0", "at least 1"]),
        (["risk", "--mechanism", "noiseless"], ["noiseless uses infinite budgets", "Choose a mechanism with noise"]),
        (["risk", "--mechanism", "budget_limited"], ["budget_limited needs --payment-limit"]),
        (["risk", "--mechanism", "mpfl"], ["--mechanism mpfl is not known", "Did you mean 'mppfl'?"]),
        (["graph", "describe", "nowhere.csv"], ["nowhere.csv", "Check the path"]),
        (["graph", "convert", "nowhere.csv", "out.csv"], ["nowhere.csv", "Check the path"]),
        (["graph", "convert", "nowhere.csv", "out.xls"], ["'out.xls'", ".csv, .csv.gz or .graphml"]),
        (["graph", "generate", "erdos_reny", "out.csv"], ['"erdos_reny"', "Did you mean 'erdos_renyi'?"]),
        (["graph", "generate", "erdos_renyi", "out.txt"], ["'out.txt'", ".csv, .csv.gz or .graphml"]),
        (["graph", "generate", "erdos_renyi", "out.csv", "--seed", "-1"], ["--seed -1", "at least 0"]),
        (["graph", "generate", "erdos_renyi", "out.csv", "--set", "size"], ["--set 'size'", "name=value"]),
        (["graph", "generate", "erdos_renyi", "out.csv", "--set", "rng=3"], ["'rng' is not known", "Known: probabil"]),
        (["graph", "generate", "barabasi_albert", "out.csv", "--set", "edges=3"], ["'edges'", "mean 'edges_each'?"]),
        (["graph", "generate", "barabasi_albert", "out.csv", "--set", "edges_each=few"], ['edges_each="few" must be']),
        (["graph", "generate", "erdos_renyi", "no/such/folder/out.csv"], ["no/such/folder/out.csv", "Check"]),
    ],
)
def test_the_other_commands_refuse_in_the_same_way(mppfl, tmp_path, monkeypatch, arguments, fragments):
    monkeypatch.chdir(tmp_path)
    refused(mppfl(*arguments), *fragments)
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_cannot_be_written_is_refused_before_anything_is_computed(mppfl, write, tmp_path):
    in_the_way = write("taken", "a file, not a folder")
    (tmp_path / "folder.png").mkdir()
    long = ("compare", "--rounds", 1_000_000, "--seeds", 1_000_000)  # would take days
    refused(mppfl(*long, "--figure", in_the_way / "costs.png"), "taken/costs.png", "Choose another path")
    refused(mppfl(*long, "--figure", tmp_path / "folder.png"), "folder.png", "is a directory")


def test_an_edge_list_cannot_hold_a_client_without_edges(mppfl, tmp_path):
    path = tmp_path / "edges.graphml"
    body = '<node id="ann"/><node id="bob"/><node id="cat"/><edge source="ann" target="bob"/>'
    graph = f'<graph edgedefault="directed">{body}</graph>'
    path.write_text(f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph}</graphml>')
    refused(mppfl("graph", "convert", path, tmp_path / "edges.csv"), "without any edge", ".graphml")


# ---- usage, tracebacks, faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve", "--hop-decay"],
        ["solve", "surplus"],
        ["graph", "describe"],
        ["graph", "generate", "erdos_renyi"],
        ["audit", "mechanism", "--noise", "plain-float32"],
        ["audit", "float", "--noise", "white"],
        ["audit", "neighbour", "--budget", "much"],
        ["audit", "everything"],
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
        (("audit",), ("sensitivity", "mechanism", "float", "neighbour")),
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
