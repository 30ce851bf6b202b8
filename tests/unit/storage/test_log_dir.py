from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import textwrap

import pytest

from kavka.storage.log_dir import (
    LogDir,
    LogDirError,
    MetaProperties,
    check_dir_ids,
    decode_meta,
    is_dir_failure,
    write_dir_ids,
)


def prepared_dir(path) -> LogDir:
    log_dir = LogDir(path)
    log_dir.prepare()
    return log_dir


# --- the lock


def test_a_missing_directory_is_created_and_locked(tmp_path):
    log_dir = prepared_dir(tmp_path / "a" / "b")
    log_dir.lock()
    assert (tmp_path / "a" / "b" / ".lock").exists()
    log_dir.unlock()


def test_the_lock_error_of_a_second_process_names_the_directory(tmp_path):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import sys
                from kavka.storage.log_dir import LogDir
                d = LogDir(sys.argv[1]); d.prepare(); d.lock()
                print("locked", flush=True)
                sys.stdin.read()
                """
            ),
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LogDirError, match=str(tmp_path)) as caught:
            prepared_dir(tmp_path).lock()
        assert "\n" not in str(caught.value)
    finally:
        holder.communicate(timeout=10)
    log_dir = prepared_dir(tmp_path)
    log_dir.lock()
    log_dir.unlock()


def test_a_killed_process_releases_its_lock(tmp_path):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom kavka.storage.log_dir import LogDir\n"
            "d = LogDir(sys.argv[1])\nd.lock()\nprint(1, flush=True)\ntime.sleep(60)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    holder.kill()
    holder.wait(timeout=10)
    holder.stdout.close()
    log_dir = prepared_dir(tmp_path)
    log_dir.lock()
    log_dir.unlock()


def test_a_second_lock_in_the_same_process_fails(tmp_path):
    first = prepared_dir(tmp_path)
    first.lock()
    for _ in range(2):
        with pytest.raises(LogDirError):
            prepared_dir(tmp_path).lock()
    first.unlock()
    second = prepared_dir(tmp_path)
    second.lock()
    second.unlock()


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="needs Linux's locks on open files")
def test_the_lock_excludes_record_locks_of_java_and_vice_versa(tmp_path):
    whole_file = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fd = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLK, whole_file)
        with pytest.raises(LogDirError):
            prepared_dir(tmp_path).lock()
        fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("@hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
        log_dir = prepared_dir(tmp_path)
        log_dir.lock()
        with pytest.raises(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLK, whole_file)
        log_dir.unlock()
    finally:
        os.close(fd)


# --- meta.properties


def test_version_0_has_the_format_of_zookeeper_mode(tmp_path):
    log_dir = prepared_dir(tmp_path)
    write_dir_ids([log_dir], 3, "MkU3OEVBNTcwNTJENDM2Qg")
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert lines[0] == "#" and lines[1].startswith("#")
    assert lines[2:] == ["broker.id=3", "cluster.id=MkU3OEVBNTcwNTJENDM2Qg", "version=0"]


def test_version_1_of_kraft_is_read_and_written_unchanged(tmp_path):
    (tmp_path / "meta.properties").write_text(
        "#\n#Thu Jan 01 00:00:00 UTC 2026\nnode.id=7\nversion=1\ndirectory.id=XQ\\=\\=\ncluster.id=abc\nextra=1\n"
    )
    log_dir = prepared_dir(tmp_path)
    meta = log_dir.read_meta()
    assert meta == MetaProperties(7, "abc", 1, "XQ==", {"extra": "1"})
    log_dir.write_meta(meta)
    assert log_dir.read_meta() == meta


@pytest.mark.parametrize(
    "text",
    ["", "\x00\xff\xfe!\n", "broker.id=1\n", "version=2\n", "version=x\n", "version=0\nbroker.id=x\n", "a=\\u12"],
)
def test_a_malformed_file_gives_a_clear_error(text):
    with pytest.raises(LogDirError, match=r"here/meta\.properties"):
        decode_meta(text, "here/meta.properties")


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe garbage"])
def test_the_error_of_a_damaged_file_explains_the_fix(tmp_path, content):
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(LogDirError, match="restore the file, or remove it") as raised:
        check_dir_ids([prepared_dir(tmp_path)], 1, None)
    assert "\n" not in str(raised.value)


def test_a_directory_of_another_broker_is_rejected(tmp_path):
    write_dir_ids([prepared_dir(tmp_path)], 1, "c")
    with pytest.raises(LogDirError, match=r"broker\.id 1, but 2 is configured"):
        check_dir_ids([LogDir(tmp_path)], 2, "c")


def test_a_directory_of_another_cluster_is_rejected(tmp_path):
    write_dir_ids([prepared_dir(tmp_path)], 1, "theirs")
    with pytest.raises(LogDirError, match=r"cluster\.id theirs, but ours"):
        check_dir_ids([LogDir(tmp_path)], 1, "ours")


def test_directories_with_different_ids_are_rejected(tmp_path):
    a, b = prepared_dir(tmp_path / "a"), prepared_dir(tmp_path / "b")
    write_dir_ids([a], 1, "c")
    write_dir_ids([b], 2, "c")
    with pytest.raises(LogDirError, match=str(tmp_path / "b")):
        check_dir_ids([a, b], None, None)


def test_ids_that_are_not_configured_are_taken_from_the_directories(tmp_path):
    a, b = prepared_dir(tmp_path / "a"), prepared_dir(tmp_path / "b")
    write_dir_ids([a], 5, "c")
    assert check_dir_ids([b, a], None, None) == (5, "c")
    write_dir_ids([a, b], 5, "c")
    assert b.read_meta() == MetaProperties(5, "c")


# --- clean shutdown


def test_the_clean_shutdown_file_has_kafkas_format_and_is_removed_at_the_start(tmp_path):
    log_dir = prepared_dir(tmp_path)
    assert not log_dir.take_clean_shutdown()
    log_dir.write_clean_shutdown()
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    assert log_dir.take_clean_shutdown()
    assert not log_dir.take_clean_shutdown()


def test_an_empty_clean_shutdown_file_of_an_older_kafka_is_valid(tmp_path):
    (tmp_path / ".kafka_cleanshutdown").touch()
    assert prepared_dir(tmp_path).take_clean_shutdown()


# --- failure


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        (errno.EIO, True),
        (errno.EROFS, True),
        (errno.ENOENT, True),
        (errno.ENOTDIR, True),
        (errno.EACCES, True),
        (errno.ENODEV, True),
        (errno.ENXIO, True),
        (errno.ESTALE, True),
        (errno.EUCLEAN, True),
        (errno.ENOTCONN, True),
        (errno.EBADF, False),
        (errno.EINVAL, False),
        (errno.ENAMETOOLONG, False),
        (errno.EFBIG, False),
        (errno.EISDIR, False),
        (errno.EEXIST, False),
        (errno.ENOSPC, False),
        (errno.EDQUOT, False),
        (errno.EMFILE, False),
    ],
)
def test_a_broken_disk_is_a_failure_and_a_full_disk_is_not(code, broken):
    assert is_dir_failure(OSError(code, os.strerror(code))) is broken
    try:
        try:
            raise OSError(code, os.strerror(code))
        except OSError as error:
            raise ValueError("wrapped") from error
    except ValueError as wrapped:
        assert is_dir_failure(wrapped) is broken


def test_other_errors_are_no_disk_failures():
    assert not is_dir_failure(ValueError("x"))
    assert not is_dir_failure(None)


def test_a_directory_keeps_its_first_failure(tmp_path):
    log_dir = prepared_dir(tmp_path)
    assert log_dir.online
    first = OSError(errno.EIO, "x")
    assert log_dir.fail(first)
    assert not log_dir.fail(OSError(errno.EIO, "y"))
    assert not log_dir.online and log_dir.failure is first
