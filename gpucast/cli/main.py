# SPDX-License-Identifier: Apache-2.0
"""The `gpucast` command.

Exit codes: 0 done, 1 the work failed (one message on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from gpucast.cli import bench, convert, dtypes, fold, info, kernel, parity, warmup
from gpucast.core import interruption
from gpucast.core.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="gpucast", description="The ONNX Cast operator for files: all 26 types, every version, bit-exact."
    )
    parser.add_argument("--version", action="version", version=f"gpucast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in (bench, convert, dtypes, fold, info, kernel, parity, warmup):
        module.add(commands)
    args, unknown = parser.parse_known_args(argv)
    if args.command is None:
        parser.exit(2, parser.format_help())
    if unknown:
        # Of the subcommand, whose usage helps more than that of `gpucast`.
        commands.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of tensors and files may hold characters that the terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        interruption.imported()
        with _terminable():
            code: int = args.run(args)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        # The reader of our output has closed it. Without this, Python reports the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as stopped:
        return _fail(args, ": ".join(filter(None, ["interrupted", str(stopped)])), 130)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(args, f"{where}{error.strerror or error}")
    except MemoryError as error:
        return _fail(args, f"out of memory: {error}" if str(error) else "out of memory")
    except (ValueError, TypeError, RuntimeError) as error:
        return _fail(args, str(error))


def _fail(args: argparse.Namespace, message: str, code: int = 1) -> int:
    print(f"gpucast {args.command}: {message}", file=sys.stderr)
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
