"""mppfl risk: who exposes a client, by source and hop; who is most exposed; whose leaving matters most."""

from __future__ import annotations


def test_names_are_shown_as_they_are_brackets_and_colons_included(mppfl, write):
    edges = write("br.csv", "x[a],x[b]\nx[b],x[a]\nx[/a],x[a]\nx[b],x[/a]\n:cat:,x[a]\nx[a],:cat:\n")
    shown = mppfl("risk", "--graph", edges, "--client", "x[/a]").stdout
    assert "x[/a]: own budget" in shown
    for name in ("x[a]", "x[b]", "x[/a]", ":cat:"):
        assert sum(line.split()[:1] == [name] for line in shown.splitlines()) >= 3, name


def test_the_text_explains_a_client_lists_the_others_and_says_where_budgets_answer_no_prices(mppfl):
    answer = mppfl("risk", "--num-clients", 7, "--client", 3, "--top", 2)
    assert (answer.code, answer.stderr) == (0, "")
    for text in ("3: own budget", "at hop 4", "Exposed by", "Most exposed", "Key players"):
        assert text in answer.stdout
    text = mppfl("risk", "--num-clients", 7, "--mechanism", "dp_fedavg").stdout
    assert "key players: budgets here are no best responses to prices" in text
