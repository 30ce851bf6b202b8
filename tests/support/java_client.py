"""Apache's Java clients and command-line tools as child processes."""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import jars
from tests.support.processes import dying_with_parent

PROBE = Path(__file__).parent / "java" / "KavkaProbe.java"
_QUICK_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

_COMMON_TOOLS = {
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
}

# The main class of each tool. 4.x has fewer classes in the Scala packages.
TOOLS: dict[str, dict[str, str]] = {
    "3.9.1": {
        "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
        "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
        "console-producer": "kafka.tools.ConsoleProducer",
        "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "dump-log": "kafka.tools.DumpLogSegments",
        "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
        "topics": "org.apache.kafka.tools.TopicCommand",
        "configs": "kafka.admin.ConfigCommand",
        "acls": "kafka.admin.AclCommand",
        "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
        "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
        "broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
        **_COMMON_TOOLS,
    },
    "4.3.0": {
        "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
        "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
        "console-producer": "org.apache.kafka.tools.ConsoleProducer",
        "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "dump-log": "org.apache.kafka.tools.DumpLogSegments",
        "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
        "topics": "org.apache.kafka.tools.TopicCommand",
        "configs": "kafka.admin.ConfigCommand",
        "acls": "org.apache.kafka.tools.AclCommand",
        "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
        "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
        "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "groups": "org.apache.kafka.tools.GroupsCommand",
        **_COMMON_TOOLS,
    },
}


def quiet_logging(version: str) -> str:
    """Return the JVM option that makes the tools log only errors, to standard error."""
    folder = jars.CACHE / "logging"
    folder.mkdir(parents=True, exist_ok=True)
    if version.startswith("3."):
        path = folder / "quiet-log4j.properties"
        text = "log4j.rootLogger=ERROR, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        text += "log4j.appender.out.layout=org.apache.log4j.PatternLayout\nlog4j.appender.out.target=System.err\n"
        option = f"-Dlog4j.configuration=file:{path}"
    else:
        path = folder / "quiet-log4j2.properties"
        text = "status = error\nrootLogger.level = ERROR\nappender.e.type = Console\nappender.e.name = e\n"
        text += "appender.e.target = SYSTEM_ERR\nrootLogger.appenderRef.e.ref = e\n"
        option = f"-Dlog4j2.configurationFile={path}"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return option


def tool_command(version: str, tool: str, *args: str, jvm: tuple[str, ...] = _QUICK_JVM) -> list[str]:
    """Return the command of one of Apache's tools. `tool` is a name in TOOLS or a main class."""
    main_class = TOOLS[version].get(tool, tool)
    cp = jars.class_path(f"server-{version}")
    return [jars.java(), *jvm, quiet_logging(version), "-cp", cp, main_class, *args]


def run_tool(
    version: str, tool: str, *args: str, stdin: str = "", timeout: float = 90.0, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one of Apache's tools and return its result. With `check`, raise AssertionError if it
    failed."""
    result = subprocess.run(
        tool_command(version, tool, *args), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check and result.returncode != 0:
        raise AssertionError(
            f"{tool} {' '.join(args)} ended with exit code {result.returncode}:\n{result.stdout}\n{result.stderr}"
        )
    return result


def probe_command(
    version: str, *args: str, jvm: tuple[str, ...] = _QUICK_JVM, source: Path = PROBE, kind: str = "clients"
) -> list[str]:
    """Return the command of a Java program of the tests. It is compiled once if there is a
    compiler, else run in single-file source-code mode. `kind` selects the class path: clients or
    server."""
    cp = jars.class_path(f"{kind}-{version}")
    java = jars.java()
    javac = shutil.which("javac")
    if javac is None:
        return [java, *jvm, "-cp", cp, str(source), *args]
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    classes = jars.CACHE / f"probe-{version}-{key}"
    if not classes.exists():
        building = jars.CACHE / f"probe-{version}-{key}.{threading.get_ident()}.tmp"
        shutil.rmtree(building, ignore_errors=True)
        subprocess.run([javac, "-cp", cp, "-d", str(building), str(source)], check=True)
        try:
            building.replace(classes)
        except OSError:
            shutil.rmtree(building, ignore_errors=True)
    return [java, *jvm, "-cp", f"{classes}:{cp}", source.stem, *args]


class JavaError(Exception):
    """An exception of the Java client. `name` is its class name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class JavaClient:
    """A running KavkaProbe, or another program with the same protocol. `bootstrap` may be changed
    between calls."""

    def __init__(
        self, version: str, bootstrap: str = "", source: Path = PROBE, jvm: tuple[str, ...] = _QUICK_JVM
    ) -> None:
        self.version = version
        self.bootstrap = bootstrap
        self._process = subprocess.Popen(
            dying_with_parent(probe_command(version, source=source, jvm=jvm)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        atexit.register(self.close)

    def call(self, op: str, **arguments: Any) -> Any:
        """Send a command and return its result. Raise JavaError if the Java client threw an
        exception."""
        command = {"op": op, "bootstrap": self.bootstrap, **arguments}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java client exited during the command {op}")
        response = json.loads(line)
        if "error" in response:
            raise JavaError(response["error"], response["message"])
        return response["result"]

    def produce(self, topic: str, records: Sequence[dict[str, Any]], **config: str) -> list[dict[str, int]]:
        """Produce records. The names in `config` have underscores instead of dots."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        result: list[dict[str, int]] = self.call("produce", topic=topic, records=list(records), config=settings)
        return result

    def consume(self, topic: str, count: int, start: dict[str, Any] | None = None, **more: Any) -> list[dict[str, Any]]:
        response = self.call("consume", topic=topic, count=count, **{"from": start or {"beginning": True}}, **more)
        records: list[dict[str, Any]] = response["records"]
        return records

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        atexit.unregister(self.close)

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
