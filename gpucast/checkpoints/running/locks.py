# SPDX-License-Identifier: Apache-2.0
"""Locks on open files, which the system lifts when a process ends, in whatever way."""

from __future__ import annotations

import contextlib
import errno
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
#: What a file system says that knows no locks.
_NONE = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def lock(file: int | IO[bytes], wait: bool, shared: bool = False) -> bool:
    """Whether the file could be locked: for this process alone, or `shared` with others that say so too.

    True as well where the file system knows no locks. OSError where it cannot be told.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EACCES:
            # As NFS may say it.
            return False
        if error.errno not in _NONE:
            raise
    return True


def unlock(file: int) -> None:
    """Lift the lock on an open file, if there is one."""
    if fcntl is not None:
        # Closing lifts it as well.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
