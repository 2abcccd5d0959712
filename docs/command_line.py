# SPDX-License-Identifier: Apache-2.0
"""What ``gpucast COMMAND --help`` says, as Markdown: the same text for every Python and terminal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gpucast.cli.main import parsers


def commands() -> str:
    """A section for each command."""
    _, found = parsers()
    helps = {action.dest: action.help for action in found._choices_actions}
    lines = [f"- [gpucast {name}](#gpucast-{name}): {text}" for name, text in helps.items()]
    parts = ["\n".join(lines)]
    for name in helps:
        one = found.choices[name]
        text = one.description or f"{helps[name][0].upper()}{helps[name][1:]}."
        parts += [f"## gpucast {name}", f"```text\n{usage(one)}\n```", text, *_groups(one)]
    return "\n\n".join(part for part in parts if part)


def usage(one: argparse.ArgumentParser) -> str:
    """The command with what must be given."""
    needed = [_form(action) for action in one._actions if action.option_strings and action.required]
    places = [_value(action) for action in one._actions if not action.option_strings]
    return " ".join([one.prog, *places, *needed, "[options]"])


def _groups(one: argparse.ArgumentParser) -> Iterator[str]:
    """The places and options, by their groups; "--help" is everywhere."""
    for group in one._action_groups:
        actions = [action for action in group._group_actions if action.help not in (None, argparse.SUPPRESS)]
        actions = [action for action in actions if not isinstance(action, argparse._HelpAction)]
        if not actions:
            continue
        if group.title not in ("positional arguments", "options", "optional arguments"):
            yield f"**{group.title}**" + (f": {group.description}" if group.description else "")
        expand = one._get_formatter()._expand_help
        yield "\n".join(f"- `{_form(action)}`: {' '.join(expand(action).split())}" for action in actions)


def _form(action: argparse.Action) -> str:
    """How a place or an option is written."""
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {_value(action)}".strip()


def _value(action: argparse.Action) -> str:
    word = _word(action)
    if action.nargs == argparse.REMAINDER or word == "...":
        return "..."
    return {"*": f"[{word} ...]", "+": f"{word} [{word} ...]", "?": f"[{word}]"}.get(str(action.nargs), word)


def _word(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()
