"""Clients that are not Python, on secured listeners: Java 4.3, franz-go and kafkajs. Each produces
one record and consumes it again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from kavka.security.local_security import LocalSecurity
from tests.support import jars
from tests.support.java_client import JavaClient
from tests.support.missing import skip_loudly
from tests.support.secure_clients import NewToken, token_of

SUPPORT = jars.ROOT / "tests" / "support"
CACHE = jars.ROOT / ".cache"
JAVA_VERSION = "4.3.0"


def java(security: LocalSecurity, servers: str, user: str, mechanism: str | None, topic: str) -> None:
    config = security.client_settings(user, mechanism)
    with JavaClient(JAVA_VERSION, servers) as client:
        client.call("produce", topic=topic, records=[{"partition": 0, "value": "java"}], config=config)
        [record] = client.consume(topic, 1, config=config)
    assert record["value"] == "java"


def _settings(
    security: LocalSecurity, servers: str, user: str, mechanism: str | None, topic: str, new_token: NewToken
) -> str:
    settings = {"Servers": servers, "Topic": topic, "Mechanism": mechanism or ""}
    if security.protocol.has_tls:
        settings["Ca"] = str(security.ca_file)
        if security.client_auth != "none":
            settings["Certificate"] = str(security.client_certificate(user))
    if mechanism == "OAUTHBEARER":
        settings["Token"] = new_token(user)
    elif mechanism:
        settings |= {"User": user, "Password": security.users[user]}
    return json.dumps(settings)


def _run(argv: list[str], cwd: Path, value: str) -> None:
    environment = {**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    result = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {"value": value}


def franz_go(
    security: LocalSecurity,
    servers: str,
    user: str,
    mechanism: str | None,
    topic: str,
    new_token: NewToken = token_of,
) -> None:
    go = shutil.which("go")
    if go is None:
        skip_loudly("franz-go needs Go")
    program = CACHE / "go" / "secure"
    program.parent.mkdir(parents=True, exist_ok=True)
    build = subprocess.run(
        [str(go), "build", "-o", str(program), "./secure"],
        cwd=SUPPORT / "go",
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode != 0:
        skip_loudly(f"franz-go cannot be built: {build.stderr[-500:]}")
    _run([str(program), _settings(security, servers, user, mechanism, topic, new_token)], program.parent, "franz")


def kafkajs(
    security: LocalSecurity,
    servers: str,
    user: str,
    mechanism: str | None,
    topic: str,
    new_token: NewToken = token_of,
) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        skip_loudly("kafkajs needs Node.js")
    folder = CACHE / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "secure.js"):
        shutil.copy(SUPPORT / "node" / name, folder / name)
    if not (folder / "node_modules" / "kafkajs").exists():
        install = subprocess.run(
            [str(npm), "install", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, check=False
        )
        if install.returncode != 0:
            skip_loudly(f"npm cannot install kafkajs: {install.stderr[-300:]}")
    _run([str(node), "secure.js", _settings(security, servers, user, mechanism, topic, new_token)], folder, "kafkajs")


FOREIGN_CLIENTS = {"java": java, "franz_go": franz_go, "kafkajs": kafkajs}
