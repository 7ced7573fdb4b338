"""Parts of the page as text: tags and words, and nothing in a name that a browser would run."""

from mppfl.explorer import facts, table, tag


def test_a_table_keeps_its_parts():
    assert table(["client", "ρ"], [["ann", "1"]], "Budgets") == (
        '<table><caption>Budgets</caption><thead><tr><th scope="col">client</th><th scope="col">ρ</th></tr></thead>'
        "<tbody><tr><td>ann</td><td>1</td></tr></tbody></table>"
    )
    assert tag("p", "a & b", tag("b", "c"), class_="soft") == '<p class="soft">a &amp; b<b>c</b></p>'


def test_names_are_escaped_wherever_they_stand():
    name = '<img src=x onerror="alert(1)">'
    for text in (table([name], [[name]], name), facts([(name, name)]), tag("p", name, title=name)):
        assert "<img" not in text
        assert 'onerror="' not in text
        assert "&lt;img" in text
