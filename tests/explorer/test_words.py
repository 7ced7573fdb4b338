"""Parts as text: the same tags and words, and nothing in a name that a browser would run."""

from dash import html

from mppfl.explorer import as_text, facts, table


def test_a_table_keeps_its_parts():
    text = as_text(table(["client", "ρ"], [["ann", "1"]], "Budgets"))
    assert text == (
        '<table><caption>Budgets</caption><thead><tr><th scope="col">client</th><th scope="col">ρ</th></tr></thead>'
        "<tbody><tr><td>ann</td><td>1</td></tr></tbody></table>"
    )


def test_names_are_escaped_wherever_they_stand():
    name = '<img src=x onerror="alert(1)">'
    for part in (table([name], [[name]], name), facts([(name, name)]), html.P(name, title=name)):
        text = as_text(part)
        assert "<img" not in text
        assert 'onerror="' not in text
        assert "&lt;img" in text


def test_styles_classes_and_nothing_become_what_browsers_read():
    part = [html.Div(className="bar", style={"left": "5%", "top": "1px"}), None, "a & b"]
    assert as_text(part) == '<div class="bar" style="left:5%;top:1px"></div>a &amp; b'
