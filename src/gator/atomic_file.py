"""Files that are written completely or not at all: to a temporary file beside the target, which then replaces it.

Whoever reads the target meanwhile gets the old content; an error or an interrupt leaves the old content in place.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from gator.errors import FileError


def write_atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the folder of `target`, then put that file in the place of `target`.

    The file mode follows the umask. Raises FileError, which names `target`, if the folder does not exist or the operating
    system reports an error; what else `write` raises is passed on. The temporary file, `.<name of target>.<random>`, is
    removed in every case; only a process that is killed leaves it behind.

    >>> write_atomically(Path("note.txt"), lambda temporary: temporary.write_text("hello"))
    """
    if not target.parent.is_dir():
        raise FileError(f"cannot write {target}: there is no folder {target.parent}")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        temporary.open("x").close()
        mode = stat.S_IMODE(temporary.stat().st_mode)  # as the umask has it
        write(temporary)
        temporary.chmod(mode)  # safetensors puts a file of mode 0600 there
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
