# SPDX-License-Identifier: Apache-2.0
"""The `gpucast` command.

Exit codes: 0 done, 1 the work failed (one message on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from gpucast.cli import bench, convert, diff, dtypes, fold, info, inspect, kernel, parity, warmup
from gpucast.core import interruption
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DTYPES
from gpucast.core.errors import meant, printable, printable_lines, reason_of
from gpucast.core.version import __version__


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show only the required arguments: the usage of `convert` is a dozen lines."""

    def error(self, message: str) -> NoReturn:
        if wrong := re.match(r"argument (.*): invalid choice: '(.*?)' \(choose from (.*)\)$", message, re.DOTALL):
            option, word, known = wrong[1], wrong[2], wrong[3].replace("'", "")
            what = "a command" if option == "COMMAND" else f"a value of {option}"
            message = f"{word!r} is not {what}; expected one of {known}{meant(word, known.split(', '))}"
        usage = self._get_formatter()
        usage.add_usage(None, [action for action in self._actions if action.required or not action.option_strings], [])
        required = usage.format_help().rstrip()
        self.exit(2, f"{required} [options]\n{self.prog}: error: {message}\n(see {self.prog} --help)\n")


@exact()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    name = "gpucast"
    try:
        interruption.imported()
        with _terminable():
            args = _parsed(argv)
            name = f"gpucast {args.command}"
            if isinstance(sys.stdout, io.TextIOWrapper):
                # Names of tensors and files may hold characters that the terminal cannot show.
                sys.stdout.reconfigure(errors="backslashreplace")
            code: int = args.run(args)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        # The reader of our output has closed it. Without this, Python reports the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as stopped:
        return _fail(name, ": ".join(filter(None, ["interrupted", str(stopped)])), 130)
    except OSError as error:
        where = printable(f"{error.filename}: ") if error.filename is not None else ""
        return _fail(name, f"{where}{reason_of(error)}")
    except MemoryError as error:
        return _fail(name, f"out of memory: {error}" if str(error) else "out of memory")
    except (ValueError, TypeError, RuntimeError) as error:
        return _fail(name, str(error))


def parsers() -> tuple[argparse.ArgumentParser, Any]:
    """The parser of the command, and its subcommands."""
    parser = _Parser(
        prog="gpucast",
        description=f"Cast and quantize files in {len(DTYPES)} types, with the same bits on every machine.",
    )
    parser.add_argument("--version", action="version", version=f"gpucast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in (bench, convert, diff, dtypes, fold, info, inspect, kernel, parity, warmup):
        module.add(commands)
    return parser, commands


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    whole, commands = parsers()
    args, unknown = whole.parse_known_args(argv)
    if args.command is None:
        whole.exit(2, whole.format_help())
    if unknown:
        # By the subcommand: its help says more than the help of `gpucast`.
        command = commands.choices[args.command]
        command.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0], command._option_string_actions)}")
    return args


def _fail(name: str, message: str, code: int = 1) -> int:
    # Functions of the package begin with their own name, which may be the command's.
    message = message.removeprefix(f"{name.removeprefix('gpucast ')}: ")
    print(f"{name}: {printable_lines(message)}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that temporary files are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        # Only the main thread may set handlers.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
