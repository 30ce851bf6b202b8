"""Every setting of MirrorMaker 2 of Kafka 3.9 works, is refused, or is without effect and warns."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest

from kavka.common.properties import parse_properties
from kavka.pipeline.mirror.settings import flows_of
from kavka.pipeline.spark.errors import OptionError
from tests.support import jars
from tests.support.missing import skip_loudly

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]

BASE = """
clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:2
A->B.enabled = true
state.dir = /state
"""
# Values that are not the defaults, of the settings that work.
WORKING = {
    "checkpoints.topic.replication.factor": "2",
    "config.properties.blacklist": "x",
    "config.properties.exclude": "x",
    "config.property.filter.class": "tests.unit.pipeline.mirror.test_names:Ours",
    "emit.checkpoints.enabled": "false",
    "emit.checkpoints.interval.seconds": "7",
    "emit.heartbeats.enabled": "false",
    "emit.heartbeats.interval.seconds": "7",
    "emit.offset-syncs.enabled": "false",
    "group.filter.class": "tests.unit.pipeline.mirror.test_names:Ours",
    "groups": "x",
    "groups.blacklist": "x",
    "groups.exclude": "x",
    "heartbeats.replication.enabled": "false",
    "heartbeats.topic.replication.factor": "2",
    "offset-syncs.topic.location": "target",
    "offset-syncs.topic.replication.factor": "2",
    "refresh.groups.enabled": "false",
    "refresh.groups.interval.seconds": "7",
    "refresh.topics.enabled": "false",
    "refresh.topics.interval.seconds": "7",
    "replication.factor": "5",
    "replication.policy.class": "IdentityReplicationPolicy",
    "replication.policy.internal.topic.separator.enabled": "false",
    "replication.policy.separator": "_",
    "security.protocol": "SSL",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "7",
    "sync.topic.acls.enabled": "false",
    "sync.topic.acls.interval.seconds": "7",
    "sync.topic.configs.enabled": "false",
    "sync.topic.configs.interval.seconds": "7",
    "topic.filter.class": "tests.unit.pipeline.mirror.test_names:Ours",
    "topics": "x",
    "topics.blacklist": "x",
    "topics.exclude": "x",
}
REFUSED = {
    "errors.tolerance", "forwarding.admin.class", "header.converter", "key.converter", "predicates", "transforms",
    "use.defaults.from", "value.converter",
}  # fmt: skip
# Settings of the file as a whole, which the tests of the settings check.
OF_THE_FILE = {"clusters", "config.providers", "enabled"}


def kafkas_settings() -> dict[str, str]:
    """Return the settings of MirrorMaker and their defaults."""
    try:
        class_path = jars.class_path("mirror-3.9.1")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    program = Path(__file__).parents[1] / "support" / "java" / "MirrorSettings.java"
    command = [jars.java(), "-XX:TieredStopAtLevel=1", "-cp", class_path, str(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    settings = {}
    for line in result.stdout.splitlines():
        name, _, default = line.partition(" ")
        settings[name] = default
    return settings


def outcome(name: str, value: str, caplog: pytest.LogCaptureFixture) -> str:
    """Return "works", "refused", "no effect" (with a warning), or "ignored"."""
    base = parse_properties(BASE)
    caplog.clear()
    try:
        flows = flows_of({**base, "plugin.modules": "tests", "team": "x", name: value})
    except OptionError as error:
        assert f"{name} = {value} is not supported" in str(error)
        return "refused"
    messages = [record.getMessage() for record in caplog.records if record.getMessage().startswith(name)]
    if any("has no effect" in message for message in messages):
        return "no effect"
    assert not messages
    without = flows_of({**base, "plugin.modules": "tests", "team": "x"})
    return "works" if [vars(flow) for flow in flows] != [vars(flow) for flow in without] else "ignored"


def test_every_setting_of_mirrormaker_works_or_warns_or_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    settings = kafkas_settings()
    assert len(settings) > 100 and set(WORKING) | REFUSED <= {*settings, "heartbeats.replication.enabled"}
    outcomes = {
        name: outcome(name, WORKING.get(name, "sample"), caplog) for name in sorted(settings.keys() - OF_THE_FILE)
    }
    assert {name for name, result in outcomes.items() if result == "refused"} == REFUSED
    assert set(WORKING) & outcomes.keys() <= {name for name, result in outcomes.items() if result == "works"}
    assert not [name for name, result in outcomes.items() if result == "ignored"]
    # Kafka's defaults are accepted.
    for name, default in settings.items():
        if name not in OF_THE_FILE and default:
            assert outcome(name, default, caplog) != "refused"
