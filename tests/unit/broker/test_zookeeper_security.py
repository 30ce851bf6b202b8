"""The settings of the login to ZooKeeper."""

import pytest

from kavka.broker.settings import Settings
from kavka.broker.zookeeper_security import zookeeper_context, zookeeper_credentials
from kavka.common.config import ConfigError
from kavka.metadata.zookeeper import Credentials

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"


def settings(**values: str) -> Settings:
    renamed = {name.replace("_", "."): value for name, value in values.items()}
    return Settings({"listeners": "PLAINTEXT://localhost:9092", **renamed})


def test_credentials_are_read_from_jaas():
    jaas = f'{MODULE} required username="kafka" password="s;\\"x";'
    credentials = zookeeper_credentials(settings(zookeeper_sasl_jaas_config=jaas))
    assert credentials == Credentials("kafka", 's;"x')
    assert "s;" not in repr(credentials)
    assert zookeeper_credentials(settings()) is None


@pytest.mark.parametrize(
    "jaas",
    [
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="kafka" password="secret";',
        f'{MODULE} required username="kafka";',
        f'{MODULE} required user_kafka="secret";',
        f'{MODULE} required username="kafka" password="secret"',
    ],
)
def test_other_jaas_entries_are_refused(jaas):
    with pytest.raises(ConfigError) as error:
        zookeeper_credentials(settings(zookeeper_sasl_jaas_config=jaas))
    assert error.value.name == "zookeeper.sasl.jaas.config"
    assert "secret" not in str(error.value)


def test_acls_require_a_login_or_a_certificate():
    with pytest.raises(ConfigError, match=r"requires zookeeper\.sasl\.jaas\.config, or a certificate"):
        zookeeper_context(settings(zookeeper_set_acl="true"))
    with pytest.raises(ConfigError, match=r"requires zookeeper\.sasl\.jaas\.config, or a certificate"):
        zookeeper_context(settings(zookeeper_set_acl="true", zookeeper_ssl_client_enable="true"))
    jaas = f'{MODULE} required username="kafka" password="secret";'
    assert zookeeper_context(settings(zookeeper_set_acl="true", zookeeper_sasl_jaas_config=jaas)) is None
