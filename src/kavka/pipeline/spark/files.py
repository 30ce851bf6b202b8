"""Files of a job on any file system that Spark supports: a local path, or `s3a://`, `hdfs://` and
so on through Hadoop.

`HadoopPath` has the methods of `pathlib.Path` that jobs use, so that code takes either. A plain
path and `file:` are on the disk of this machine, whatever Hadoop's default file system is.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A file of an object store appears when it is closed, complete, and replaces an earlier one. There
# a rename is a copy, which is not atomic.
_OBJECT_STORES = frozenset({"s3a", "s3", "gs", "oss", "cosn", "obs", "wasb", "wasbs"})


class HadoopPath:
    """A file or folder of a Hadoop file system. `session` is called when files are accessed.
    Methods raise FileNotFoundError, and OSError with the file system's message otherwise."""

    def __init__(self, uri: str, session: Callable[[], SparkSession]) -> None:
        self._uri, self._session = uri.rstrip("/"), session

    def __str__(self) -> str:
        return self._uri

    def __truediv__(self, name: str) -> HadoopPath:
        return HadoopPath(f"{self._uri}/{name}", self._session)

    @property
    def name(self) -> str:
        return self._uri.rpartition("/")[2]

    @property
    def parent(self) -> HadoopPath:
        return HadoopPath(self._uri.rpartition("/")[0], self._session)

    def exists(self) -> bool:
        with self._open() as (files, path, _):
            return bool(files.exists(path))

    def iterdir(self) -> Iterator[HadoopPath]:
        with self._open() as (files, path, _):
            return iter([self / str(status.getPath().getName()) for status in files.listStatus(path)])

    def read_text(self) -> str:
        with self._open() as (files, path, jvm):
            stream = files.open(path)
            try:
                return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
            finally:
                stream.close()

    def write_text(self, text: str) -> None:
        """Replace the file. A crash leaves either the earlier file or the new one."""
        if urlsplit(self._uri).scheme in _OBJECT_STORES:
            self._write(text)
            return
        temporary = self.parent / f".{self.name}.{uuid.uuid4().hex}.tmp"
        temporary._write(text)
        with self._open() as (files, path, jvm):
            context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(files.getUri(), files.getConf())
            rename = getattr(jvm.org.apache.hadoop.fs, "Options$Rename")
            overwrite = self._session().sparkContext._gateway.new_array(rename, 1)  # type: ignore[union-attr]
            overwrite[0] = rename.OVERWRITE
            context.rename(jvm.org.apache.hadoop.fs.Path(str(temporary)), path, overwrite)

    def _write(self, text: str) -> None:
        with self._open() as (files, path, _):
            stream = files.create(path, True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def delete(self) -> None:
        """Delete the file or folder with everything in it, if it exists."""
        with self._open() as (files, path, _):
            files.delete(path, True)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any, Any]]:
        """(file system, Hadoop's path, JVM)"""
        from py4j.protocol import Py4JJavaError

        spark = self._session()
        jvm: Any = spark.sparkContext._jvm
        try:
            path = jvm.org.apache.hadoop.fs.Path(self._uri)
            yield path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), path, jvm
        except Py4JJavaError as error:
            java = error.java_exception
            if java.getClass().getName() in ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException"):
                raise FileNotFoundError(str(self)) from None
            raise OSError(f"{self} is not accessible: {_cause(java)}") from None


AnyPath = Path | HadoopPath


def check_accessible(path: HadoopPath, timeout: float = 180.0) -> None:
    """Raise OSError unless the file system of a path responds in time. File systems retry for
    minutes themselves; a call that takes longer continues in a thread that ends with this process.
    """
    outcome: list[Exception | None] = []

    def look() -> None:
        try:
            path.exists()
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=look, name="check-file-system", daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise OSError(f"{path} does not respond after {timeout:.0f} s: check the address and the credentials")
    if outcome[0] is not None:
        raise outcome[0]


def path_of(text: str, session: Callable[[], SparkSession]) -> AnyPath:
    """The path that a user has configured."""
    url = urlsplit(text)
    if len(url.scheme) < 2:
        return Path(text)
    return Path(url.path) if url.scheme == "file" else HadoopPath(text, session)


def spark_uri(path: AnyPath) -> str:
    """The path for Spark, which resolves a plain path by Hadoop's default file system."""
    return f"file://{path.absolute()}" if isinstance(path, Path) else str(path)


def replace_text(path: AnyPath, text: str) -> None:
    """Replace a file atomically."""
    if isinstance(path, HadoopPath):
        path.write_text(text)
        return
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def delete(path: AnyPath) -> None:
    """Delete a file or folder with everything in it, if it exists."""
    if isinstance(path, HadoopPath):
        path.delete()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _cause(java: Any) -> str:
    """The first line of the innermost cause that has a message."""
    message = str(java.getMessage() or java.getClass().getSimpleName())
    for _ in range(10):
        java = java.getCause()
        if java is None:
            break
        message = str(java.getMessage() or message)
    return message.splitlines()[0] if message else "unknown error"
