"""Re-makes docs/reference.md from the code: public Python names, commands and options, keys of the experiment file.

python docs/make_reference.py
"""

import ast
import inspect
import re
import textwrap
import typing
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "reference.md"
DESIGN = PAGE.with_name("design.md")
SOURCE = PAGE.parents[1] / "src" / "mppfl"
TREE_BEGINS, TREE_ENDS = "<!-- tree -->", "<!-- end tree -->"
GROUPS = {
    "network": "Networks",
    "game": "The game",
    "privacy": "Privacy",
    "data": "Data",
    "training": "Training",
    "spec": "Specs",
    "experiment": "Experiments and results",
    "errors": "Errors",
}


def reference() -> str:
    """The whole page."""
    return "\n".join([*opening(), *python_names(), *commands(), *experiment_keys()]).rstrip("\n") + "\n"


def opening() -> list[str]:
    return [
        "# Reference",
        "",
        "Public names of the Python package, commands with their options, and keys of the experiment file. This page",
        "is made from the code by `python docs/make_reference.py`; what a symbol means and which unit it has is in",
        "[the model](model.md#symbols).",
        "",
    ]


# ---- the tree of design.md -----------------------------------------------------------------------------------------


def tree() -> str:
    """Folders and files of the package with the first line of each, as design.md shows them."""
    lines = ["```", "src/mppfl/"]
    for path in sorted(
        SOURCE.rglob("*.py"), key=lambda path: (path.parent.parts, path.name != "__init__.py", path.name)
    ):
        where = path.relative_to(SOURCE)
        is_folder = path.name == "__init__.py"
        if where.name in ("__init__.py", "__main__.py") and len(where.parts) == 1:
            continue
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0].rstrip(".")
        name = f"{where.parent.name}/" if is_folder else where.name
        indent = "  " * (len(where.parts) - is_folder)
        lines.append(f"{indent + name:<28}{textwrap.shorten(first, 92, placeholder=' ...')}".rstrip())
    return "\n".join([*lines, "```"])


def with_tree(text: str) -> str:
    """The page with the tree between its marks."""
    before, _, rest = text.partition(TREE_BEGINS)
    _, _, after = rest.partition(TREE_ENDS)
    return f"{before}{TREE_BEGINS}\n{tree()}\n{TREE_ENDS}{after}"


# ---- Python ----------------------------------------------------------------------------------------------------------


def python_names() -> list[str]:
    """Every name in mppfl.__all__ by the folder it lives in, with its signature and the first paragraph of its text."""
    import mppfl

    things = {name: getattr(mppfl, name) for name in mppfl.__all__ if name != "Mechanism"}  # a type of functions
    lines = ["## Python", "", "All of these are had from `import mppfl`; the package loads each on first use.", ""]
    for folder, title in GROUPS.items():
        inside = {name: thing for name, thing in things.items() if thing.__module__.split(".")[1] == folder}
        lines += [f"### {title}", ""]
        for name, thing in inside.items():
            first, *_ = inspect.cleandoc(thing.__doc__).split("\n\n")
            lines += [f"#### {name}", "", "```python", signature(name, thing), "```", "", in_words(first), ""]
    missing = set(things) - set(re.findall(r"^#### (\w+)$", "\n".join(lines), flags=re.MULTILINE))
    if missing:
        raise ValueError(f"{sorted(missing)} live in a folder that GROUPS in {__file__} lacks. Add it there.")
    return lines


def signature(name: str, thing: Any) -> str:
    """A call as one would write it, an argument a line where it is long."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"class {name}({', '.join(base.__name__ for base in thing.__bases__)})"
    if table := getattr(thing, "TABLE", None):
        return f"class {name}(...)  # with the keys of [{table}] in the experiment file, which see"
    found = inspect.signature(thing)
    arguments, starred = [], False
    for each in found.parameters.values():
        if each.name.startswith("_"):
            continue
        if each.kind is each.KEYWORD_ONLY and not starred:
            arguments, starred = [*arguments, "*"], True
        if each.kind is each.VAR_POSITIONAL:
            starred = True
        arguments.append(shown_argument(each))
    word = "class" if inspect.isclass(thing) else "def"
    returned = "" if inspect.isclass(thing) else f" -> {shown_type(found.return_annotation)}"
    line = f"{word} {name}({', '.join(arguments)}){returned}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{word} {name}(", *(f"    {argument}," for argument in arguments), f"){returned}"])


def shown_argument(argument: inspect.Parameter) -> str:
    stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
    default = argument.default
    if type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        shown = " = ..."
    else:
        shown = "" if default is argument.empty else f" = {default!r}"
    return f"{stars}{argument.name}: {shown_type(argument.annotation)}{shown}"


def shown_type(annotation: Any) -> str:
    """A type as it is written in the code, without the modules it comes from, and without what is said of it."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def in_words(text: str) -> str:
    """Text that Markdown shows as it is: a docstring's stars and brackets are no marks, but in `code`."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([*<\[]|(?<!\w)_)", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


# ---- commands --------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Every command with what it does and its options, as `--help` tells them."""
    import typer.main

    from mppfl.cli import app

    lines = [
        "## Commands",
        "",
        "Results go to stdout, progress and notes to stderr. Exit codes: 0 done, 1 failed (one line says what, with",
        "its value and a remedy), 2 wrong usage. `--debug` shows the traceback of an error.",
        "",
    ]
    return lines + listed(typer.main.get_command(app), "mppfl")


def listed(command: Any, name: str) -> list[str]:
    if hasattr(command, "commands"):
        return [line for word, inner in command.commands.items() for line in listed(inner, f"{name} {word}")]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    called = " ".join([name, *(argument_word(each) for each in arguments), "[OPTIONS]"])
    lines = [f"### {name}", "", in_words(inspect.cleandoc(command.help or "").split("\f")[0]), ""]
    lines += ["```text", called, "```", ""]
    told = [f"- `{argument_word(each)}`: {in_words(each.help)}" for each in arguments if getattr(each, "help", None)]
    lines += [*told, ""] if told else []
    rows = [option_row(each) for each in options if each.name != "help"]
    return [*lines, "| option | meaning | default |", "| --- | --- | --- |", *rows, ""] if rows else lines


def argument_word(argument: Any) -> str:
    word = argument.name.upper()
    if argument.nargs == -1:
        word += "..."
    return word if argument.required else f"[{word}]"


def option_row(option: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    default = option.default
    if callable(default) or default is None or default is False or type(default).__name__ == "Sentinel":
        shown = "required" if option.required else ""
    else:
        shown = f"`{getattr(default, 'value', default)}`"
    choices = getattr(option.type, "choices", None)
    meaning = in_words(option.help or "")
    if (option.metavar or "").startswith("["):  # choices that the command checks by itself
        choices = option.metavar.strip("[]").split("|")
    if choices:
        known = ", ".join(f"`{getattr(each, 'value', each)}`" for each in choices)
        meaning = f"{meaning} One of {known}.".strip()
    return f"| {names} | {cell(meaning)} | {shown} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


# ---- the experiment file ---------------------------------------------------------------------------------------------


def experiment_keys() -> list[str]:
    """Every key of an experiment file with its type, default and meaning, table by table."""
    from mppfl.spec import TABLES, Experiment, keys_of

    heading = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    lines = [
        "## Experiment file",
        "",
        "A TOML file for `mppfl train`, and for every command that plays a game (`--experiment`). Every key may be",
        "left out. An unknown one is an error that names the nearest known. `--set training.clip_norm=0.5` changes a",
        "single value. The keys of `[game]` are also the fields of `mppfl.GameSpec`, the options of `mppfl solve` and",
        "the keys of an explorer's link.",
        "",
        *("### At the top", "", *heading),
        *(key_row(name, Experiment) for name in ("name", "seeds", "mechanisms", "aggregations")),
        "",
        '`seed = 1` stands for `seeds = [1]`, and `mechanism = "mppfl"` for `mechanisms = ["mppfl"]`.',
        "",
    ]
    for table, owner in TABLES.items():
        first = in_words(inspect.cleandoc(owner.__doc__ or "").partition("\n\n")[0])
        lines += [f"### [{table}]", "", first, "", *heading, *(key_row(key, owner) for key in keys_of(table)), ""]
    return lines


def key_row(key: str, owner: type) -> str:
    from mppfl.fields import about, defaults_of, hints

    default = defaults_of(owner)[key]
    shown = "" if default in (None, {}, ()) else f"`{in_file(default)}`"
    return f"| `{key}` | {cell(file_type(hints(owner)[key]))} | {shown} | {cell(in_words(about(owner, key).help))} |"


def file_type(hint: Any) -> str:
    """A type in the words of a file."""
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    if hint in plain:
        return plain[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{in_file(each)}`" for each in arguments)
    if typing.get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            return f"list: {file_type(arguments[0])}"
        return f"{len(arguments)} numbers"
    if typing.get_origin(hint) is dict:
        return f"table of {file_type(arguments[1])}s by name"
    return " or ".join(file_type(each) for each in arguments if each is not type(None))


def in_file(value: Any) -> str:
    from mppfl.files import toml_value

    return toml_value(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    DESIGN.write_text(with_tree(DESIGN.read_text(encoding="utf-8")), encoding="utf-8")
