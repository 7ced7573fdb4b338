"""Re-makes docs/reference.md from the code: public Python names, commands and options, keys of the experiment file.

python docs/make_reference.py
"""

import ast
import dataclasses
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
    "experiment": "Experiments and results",
    "errors": "Errors",
}
# what neither a docstring nor `mppfl solve --help` says of a key
MEANINGS = {
    "any": {"seed": "own seed of this table; else drawn from the one at the top"},
    "network": {
        "source": "file of edges; left out, a random network is drawn",
        "generate": "family of the random network; left out, the paper's erdos_renyi",
        "num_clients": "size of the random network; left out, 20",
        "probability_range": "erdos_renyi: chances of links are drawn between these",
        "edges_each": "barabasi_albert: links that each newcomer makes",
        "neighbours": "watts_strogatz: neighbours of each client on the ring",
        "rewire": "watts_strogatz: chance of a link to lead elsewhere",
        "sizes": "stochastic_block: clients in each block",
        "within": "stochastic_block: chance of a link inside a block",
        "between": "stochastic_block: chance of a link between blocks",
        "num_edges": "skewed: how many edges there are",
        "popularity": "skewed: how unequal clients are in exposing others, 0 for all alike",
        "length_spread": "skewed: how unequal they are in the number who expose them",
        "weights": "of the random network's links: drawn, or all 1",
        "weight_range": "weights are drawn between these",
    },
    "game": {
        "preset": "where clients and constants come from that are not given",
        "num_rounds": "rounds, numbered from 1",
    },
    "data": {
        "name": "data set by name, or the path of an .npz file",
        "folder": "where official files lie; left out, MPPFL_DATA",
        "source": "official files, the Hugging Face hub, or whichever is there",
        "split": "how examples are dealt out to clients",
        "concentration": "of split dirichlet: small is uneven",
        "min_examples": "what every client has at least",
        "uneven": "of split iid: spread of sizes, 0 for equal ones",
    },
    "training": {
        "model": "which model is trained",
        "server_learning_rate": "step of the server's optimiser",
        "server_momentum": "of server_optimizer momentum and adam",
    },
    "ledger": {
        "cap": "ρ that any client may spend in all",
        "caps": "the same for single clients",
        "keep": "whether the account is kept as a file",
    },
    "output": {
        "folder": "where results go; left out, runs/NAME",
        "checkpoint_every": "rounds between checkpoints",
    },
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
    """A type as it is written in the code, without the modules it comes from."""
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
    if choices:
        known = ", ".join(f"`{getattr(each, 'value', each)}`" for each in choices)
        meaning = f"{meaning} One of {known}.".strip()
    return f"| {names} | {cell(meaning)} | {shown} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


# ---- the experiment file ---------------------------------------------------------------------------------------------


def experiment_keys() -> list[str]:
    """Every key of an experiment file with its type and default, table by table."""
    from mppfl.experiment import TABLES, Experiment, keys_of
    from mppfl.training import TrainingConfig

    lines = [
        "## Experiment file",
        "",
        "A TOML file for `mppfl train` and `mppfl compare --train`. Every key may be left out. An unknown one is an",
        "error that names the nearest known. `--set training.clip_norm=0.5` changes a single value. Where a meaning",
        "speaks of None, it means a key that is left out.",
        "",
        *("### At the top", "", "| key | type | default |", "| --- | --- | --- |"),
        *(key_row(name, Experiment) for name in ("name", "seeds", "mechanisms", "aggregations")),
        "",
        '`seed = 1` stands for `seeds = [1]`, and `mechanism = "mppfl"` for `mechanisms = ["mppfl"]`.',
        "",
    ]
    for table, owner in TABLES.items():
        words, explained = told_keys(owner)
        lines += [f"### [{table}]", "", words, ""]
        if table == "training":
            explained |= told_keys(TrainingConfig)[1]
        explained = MEANINGS["any"] | told_by_solve() | MEANINGS.get(table, {}) | explained
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for key in keys_of(table):
            home = owner if key in {f.name for f in dataclasses.fields(owner)} else TrainingConfig
            lines.append(f"{key_row(key, home)} {cell(in_words(explained[key]))} |")
        lines.append("")
    return lines


def told_by_solve() -> dict[str, str]:
    """What `mppfl solve --help` says of options, most of which are keys of [network] and [game] by the same names."""
    import typer.main

    from mppfl.cli import app

    options = typer.main.get_command(app).commands["solve"].params  # type: ignore[attr-defined]
    return {option.name: option.help for option in options if option.help}


def told_keys(owner: type) -> tuple[str, dict[str, str]]:
    """What a table's docstring says first, and what it says of single keys, whose lines start with their names."""
    text = inspect.cleandoc(owner.__doc__ or "")
    first, _, rest = text.partition("\nRaises:")[0].partition("\n\n")
    explained: dict[str, str] = {}
    key = ""
    for line in rest.splitlines():
        found = re.match(r"(\w+) {2,}(\S.*)", line)
        if found:
            key = found[1]
            explained[key] = found[2]
        elif key and line.startswith("  "):
            explained[key] += " " + line.strip()
    loose = " ".join(line for line in rest.splitlines() if line and not re.match(r"\w+ {2,}\S|  ", line))
    opening = in_words(first.split(":", 1)[1] if first.startswith("[") else first)
    if opening[0].isascii():  # a Greek letter stays as it is
        opening = opening[0].upper() + opening[1:]
    return " ".join(filter(None, (opening, in_words(loose)))), explained


def key_row(key: str, owner: type) -> str:
    (field,) = (f for f in dataclasses.fields(owner) if f.name == key)
    hints = typing.get_type_hints(owner)
    kind = file_type(hints[key])
    default = field.default_factory() if field.default is dataclasses.MISSING else field.default
    return f"| `{key}` | {cell(kind)} | {'' if default is None or default == {} else f'`{in_file(default)}`'} |"


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
