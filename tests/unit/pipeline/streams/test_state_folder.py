"""Whose state is read: a folder that others may write to is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kavka.pipeline.streams.state_folder import check_own_folder, create_own_folder
from kavka.streams import KafkaStreams, StreamsBuilder, StreamsException


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def application(state_dir: Path) -> KafkaStreams:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return KafkaStreams(
        builder.build(), {"application.id": "app", "bootstrap.servers": "localhost:9", "state.dir": str(state_dir)}
    )


def test_every_level_that_is_created_is_for_the_user_alone(shared: Path) -> None:
    before = os.umask(0)
    try:
        create_own_folder(shared / "kafka-streams" / "app")
    finally:
        os.umask(before)
    assert mode(shared / "kafka-streams") == mode(shared / "kafka-streams" / "app") == 0o700
    create_own_folder(shared / "kafka-streams" / "app")


def test_folders_that_an_earlier_version_created_are_used(shared: Path) -> None:
    folder = shared / "kafka-streams" / "app"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    create_own_folder(folder)
    assert mode(folder) == 0o755


@pytest.mark.parametrize("level", ["kafka-streams", "kafka-streams/app"])
def test_a_link_below_a_shared_folder_is_refused(shared: Path, tmp_path: Path, level: str) -> None:
    planted = tmp_path / "planted"
    (planted / "app").mkdir(parents=True)
    (shared / level).parent.mkdir(mode=0o700, exist_ok=True)
    (shared / level).symlink_to(planted)
    with pytest.raises(StreamsException, match=f"{level} is a symbolic link.*set state.dir"):
        create_own_folder(shared / "kafka-streams" / "app")
    # Nor does clean_up delete what a link leads to.
    with pytest.raises(StreamsException, match="is a symbolic link"):
        application(shared / "kafka-streams").clean_up()
    assert (planted / "app").exists()


def test_a_link_to_nowhere_is_refused(shared: Path) -> None:
    (shared / "kafka-streams").symlink_to(shared / "later")
    with pytest.raises(StreamsException, match="is a symbolic link"):
        create_own_folder(shared / "kafka-streams" / "app")


@pytest.mark.parametrize("level", ["kafka-streams", "kafka-streams/app"])
@pytest.mark.parametrize("others", [0o020, 0o002])
def test_a_folder_that_others_may_write_to_is_refused_with_the_command(shared: Path, level: str, others: int) -> None:
    create_own_folder(shared / "kafka-streams" / "app")
    (shared / level).chmod(0o700 | others)
    with pytest.raises(StreamsException, match=f"chmod go-w .*{level}$"):
        create_own_folder(shared / "kafka-streams" / "app")


def test_a_folder_of_another_user_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_own_folder(shared / "kafka-streams" / "app")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(StreamsException, match=r"belongs to the user with the id .*set state\.dir"):
        create_own_folder(shared / "kafka-streams" / "app")


def test_a_file_is_no_folder(shared: Path) -> None:
    (shared / "kafka-streams").touch()
    with pytest.raises(StreamsException, match="is not a folder"):
        create_own_folder(shared / "kafka-streams" / "app")


def test_links_in_a_place_of_the_user_are_followed_to_the_levels_of_their_target(shared: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "state").symlink_to(shared / "mine")
    create_own_folder(home / "state" / "app")
    assert (shared / "mine" / "app").is_dir()
    (shared / "mine").chmod(0o777)
    with pytest.raises(StreamsException, match="chmod go-w"):
        create_own_folder(home / "state" / "app")
    (home / "loop").symlink_to(home / "loop")
    with pytest.raises(StreamsException, match="too many symbolic links"):
        check_own_folder(home / "loop" / "app")


def test_an_application_does_not_start_with_a_folder_that_others_may_write_to(shared: Path) -> None:
    (shared / "kafka-streams").mkdir()
    (shared / "kafka-streams").chmod(0o777)
    streams = application(shared / "kafka-streams")
    with pytest.raises(StreamsException, match="other users may write to"):
        streams.start()
    assert streams.state() == "ERROR"
