"""The folder of an application's state, to which no other user may write.

State may have pickled objects of the user (`suppress`, joins with a grace period), which run code
when they are read. So a folder that another user created or may write to is refused. Below a folder
that all users may write to, such as /tmp, every level is checked: any user can create the next one,
or a symbolic link. On other file systems (`s3a://`, `hdfs://`) the access rules of the file system
protect the state, and folders are not created.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from kavka.pipeline.spark.files import AnyPath, check_accessible
from kavka.pipeline.streams.errors import StreamsException

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40


def create_own_folder(folder: AnyPath) -> None:
    """Create the missing levels of a folder, for this user alone, and check the others."""
    if isinstance(folder, Path):
        _walk(folder, create=True)
    else:
        check_accessible(folder)


def check_own_folder(folder: AnyPath) -> None:
    """Check the existing levels of a folder."""
    if isinstance(folder, Path):
        _walk(folder, create=False)


def _walk(folder: Path, create: bool, links: int = 0) -> None:
    path = Path(os.path.abspath(folder))
    below_shared = in_shared = False
    for level in (*reversed(path.parents), path):
        if create and not os.path.lexists(level):
            # If another process created it meanwhile, it is checked as well.
            with suppress(FileExistsError):
                os.mkdir(level, 0o700)
        try:
            status = os.lstat(level)
        except FileNotFoundError:
            return
        is_last, is_link = level == path, stat.S_ISLNK(status.st_mode)
        if is_link and not is_last and not in_shared:
            if links == _MAX_LINKS:
                raise StreamsException(f"{folder} has too many symbolic links in it")
            _walk(level.parent / os.readlink(level) / path.relative_to(level), create, links + 1)
            return
        is_shared = not is_link and not is_last and bool(status.st_mode & stat.S_ISVTX)
        if below_shared or is_last:
            _check(level, status, may_belong_to_root=not is_last, may_be_shared=is_shared)
        in_shared = is_shared and bool(status.st_mode & _OTHERS_WRITE)
        below_shared = below_shared or in_shared


def _check(level: Path, status: os.stat_result, may_belong_to_root: bool, may_be_shared: bool) -> None:
    if stat.S_ISLNK(status.st_mode):
        why = "is a symbolic link"
    elif not stat.S_ISDIR(status.st_mode):
        why = "is not a folder"
    elif status.st_uid != os.geteuid() and not (may_belong_to_root and status.st_uid == 0):
        why = f"belongs to the user with the id {status.st_uid}"
    elif status.st_mode & _OTHERS_WRITE and not may_be_shared:
        raise StreamsException(
            f"other users may write to {level}, and state there could run their code: set state.dir to a private "
            f"folder; or, if no other user has written there, revoke their permission: chmod go-w {level}"
        )
    else:
        return
    raise StreamsException(
        f"{level} {why}, and state there could run the code of another user: set state.dir to a private folder"
    )
