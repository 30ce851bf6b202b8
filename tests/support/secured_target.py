"""A broker, Kavka or Apache Kafka, with a listener for each way in which clients are secured."""

from __future__ import annotations

from pathlib import Path

from kavka import Admin
from kavka.security.jaas import SCRAM_MODULE
from kavka.security.local_security import LocalSecurity
from tests.support import targets
from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST, ApacheKafka
from tests.support.kavka_process import KavkaProcess

USER = "alice"
PASSWORD = 'se,c"re=t \\'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
CASES = ("SSL", "mTLS", *MECHANISMS, "SASL_PLAINTEXT")
# The listener of each case.
_LISTENERS = {"SSL": "SSL", "MTLS": "SSL", "SASL_SSL": "SASL_SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT"}


class SecuredTarget:
    """The brokers' own listener is PLAINTEXT. `settings` are those of a client, by case."""

    def __init__(self, name: str, folder: Path, overrides: dict[str, object] | None = None) -> None:
        self.security = LocalSecurity(folder / "security", "SASL_SSL", mechanisms=MECHANISMS, users={USER: PASSWORD})
        settings = {**self._settings(name), **(overrides or {})}
        if name == targets.KAVKA:
            broker: targets.Target = KavkaProcess(folder / "broker", overrides=settings, start=False)
        else:
            version = {targets.APACHE: NEWEST, targets.APACHE_39: LAST_WITH_ZOOKEEPER}[name]
            broker = ApacheKafka(folder / "broker", version=version, overrides=settings, start=False)
        self.broker = broker
        self._ports = broker.add_listeners(_LISTENERS)
        broker.start()
        try:
            with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                admin.alter_user_scram_credentials({USER: dict.fromkeys(SCRAM, PASSWORD)})
        except BaseException:
            broker.close()
            raise

    def _settings(self, name: str) -> dict[str, object]:
        settings: dict[str, object] = {
            # A properties file removes one level of backslashes.
            key: value.replace("\\", "\\\\")
            for key, value in self.security.broker_settings().items()
        }
        if name != targets.KAVKA:
            for mechanism in SCRAM:
                settings[f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config"] = f"{SCRAM_MODULE} required;"
        settings["listener.name.mtls.ssl.client.auth"] = "required"
        for key in list(settings):
            if key.startswith("listener.name.sasl_ssl."):
                settings[key.replace("sasl_ssl", "sasl_plaintext")] = settings[key]
        return settings

    def close(self) -> None:
        self.broker.close()

    def settings(self, case: str) -> dict[str, str]:
        """The settings of a client. SASL_PLAINTEXT is with SCRAM-SHA-256."""
        if case in MECHANISMS:
            return self._at("SASL_SSL", self.security.client_settings(USER, case))
        if case == "SASL_PLAINTEXT":
            settings = self.security.client_settings(USER, "SCRAM-SHA-256")
            return self._at(case, {**settings, "security.protocol": case})
        settings = {
            name: value for name, value in self.security.client_settings(USER).items() if not name.startswith("sasl.")
        }
        settings["security.protocol"] = "SSL"
        if case == "mTLS":
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.security.client_certificate(USER)),
            }
        return self._at(case.upper(), settings)

    def _at(self, listener: str, settings: dict[str, str]) -> dict[str, str]:
        return {"bootstrap.servers": f"127.0.0.1:{self._ports[listener]}", **settings}
