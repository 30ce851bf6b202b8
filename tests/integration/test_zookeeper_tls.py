"""A broker with TLS to ZooKeeper and ACLs on its znodes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from kavka import Admin, NewTopic
from kavka.security.local_security import LocalSecurity
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import free_port
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]


def test_tls_and_acls(java_parts: None, tmp_path: Path) -> None:
    security = LocalSecurity(tmp_path / "security", "SSL")
    secure_port = free_port()
    client_certificate = security.client_certificate("broker")
    overrides = {
        "secureClientPort": secure_port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": security.server_file,
        "ssl.trustStore.location": security.ca_file,
        "ssl.clientAuth": "need",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    settings = {
        "zookeeper.connect": f"localhost:{secure_port}",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": client_certificate,
        "zookeeper.ssl.truststore.location": security.ca_file,
        "zookeeper.set.acl": "true",
        "offsets.topic.replication.factor": 1,
    }
    with contextlib.ExitStack() as stack:
        zookeeper = ZooKeeper(tmp_path / "zookeeper", overrides=overrides)
        stack.callback(zookeeper.kill)
        broker = KavkaProcess(tmp_path / "broker", overrides=settings)
        stack.callback(broker.kill)
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("secured", num_partitions=1)])
        outsider = KazooClient(zookeeper.connect)
        outsider.start(timeout=30)
        stack.callback(outsider.close)
        stack.callback(outsider.stop)
        data, _ = outsider.get("/brokers/topics/secured")
        assert b"partitions" in data
        acls, _ = outsider.get_acls("/brokers/topics/secured")
        assert {(acl.id.scheme, acl.id.id, acl.perms) for acl in acls} == {
            ("x509", "CN=broker,O=Kavka", 31),
            ("world", "anyone", 1),
        }
        for operation in (
            lambda: outsider.set("/brokers/topics/secured", b"{}"),
            lambda: outsider.delete("/brokers/topics/secured"),
            lambda: outsider.get_children("/config/users"),
        ):
            with pytest.raises(NoAuthError):
                operation()
