"""Passwords appear in no error, log line, status or validate response, only in the stored
configuration."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kavka.common.config import ConfigType
from kavka.common.secret_settings import is_secret, shown_value
from kavka.pipeline.connect import worker as workers
from kavka.pipeline.connect.api import Context, Source
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.herder import Herder
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.providers import Providers, Secrets
from tests.support.connect_app import ApiClient, idle_herder
from tests.support.processes import wait_until

PLAIN, STORED = "Correct-Horse-1", "Battery-Staple-2"
"""A password in a configuration, and a password in a file."""


class Leaking(Source):
    """A source whose errors contain its configuration."""

    options = (
        Option("vault.password", ConfigType.PASSWORD, None),
        Option("plain", default=""),
        Option("moment", default="never"),
    )

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        if config["moment"] == "check":
            return {"plain": f"invalid with {dict(originals)}"}
        if config["moment"] == "crash":
            raise RuntimeError(f"crashed with {dict(originals)}")
        return {}

    def start(self, context: Context) -> None:
        logging.getLogger("leaking").warning("starting with %s", dict(context.given))
        raise ConnectError(f"failed with {dict(context.given)}") from ValueError(context["vault.password"])


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secrets.properties").write_text(f"p={STORED}\n")
    return f"${{file:{tmp_path}/secrets.properties:p}}"


@pytest.fixture
def herder(caplog: pytest.LogCaptureFixture) -> Iterator[Herder]:
    providers = Providers.of({"config.providers": "file", "config.providers.file.class": "FileConfigProvider"})
    caplog.handler.addFilter(providers.secrets)
    herder = idle_herder(Declared(frozenset({__name__})), providers=providers)
    object.__setattr__(herder.worker, "spark", lambda: None)
    yield herder
    herder.close()
    caplog.handler.removeFilter(providers.secrets)


def configs(secret: str) -> Iterator[dict[str, Any]]:
    """Configurations with the password in a password option, in a setting that is not an option,
    and in URLs and headers."""
    for moment in ("check", "crash", "never"):
        for password in (PLAIN, secret):
            config = {"connector.class": f"{__name__}.Leaking", "moment": moment}
            yield {**config, "vault.password": password}
            yield {**config, "producer.override.sasl.jaas.config": password}
            yield {**config, "plain": f"jdbc:x://user:{password}@host/d"}
            yield {**config, "plain": f"https://host/?user=u&token={password}"}
            yield {**config, "plain": f"X-A: b|Authorization: Bearer {password}|X-C: d"}
    for password in (PLAIN, secret):
        yield {"password": password}
        yield {"connector.class": "no.Such", "password": password}
        yield {"connector.class": None, "auth.token": password}
        yield {"connector.class": "HttpSink", "topics": "t", "http.api.url": "no url", "auth.bearer.token": password}
        yield {"connector.class": "HttpSink", "topics": "t", "headers": f"Authorization {password}"}
        yield {"connector.class": "HttpSink", "topics": "t", "connection.password": password, "auth.type": "?"}


def test_errors_and_validate_responses_contain_no_password(
    herder: Herder, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    api = ApiClient(herder)
    statuses = set()
    for config in configs(secret):
        name = str(config.get("connector.class")).rpartition(".")[2]
        for method, path, body in (
            ("PUT", f"/connector-plugins/{name}/config/validate", config),
            ("POST", "/connectors", {"name": "c", "config": {**config, "tasks.max": "none"}}),
            ("PUT", "/connectors/c/config", {**config, "tasks.max": "none"}),
        ):
            status, response = api(method, path, body)
            statuses.add(status)
            output = json.dumps(response) + caplog.text
            assert PLAIN not in output and STORED not in output, (status, config, response)
    assert statuses == {200, 400, 500}


def test_status_and_log_contain_no_password(herder: Herder, secret: str, caplog: pytest.LogCaptureFixture) -> None:
    herder.start()
    api = ApiClient(herder)
    names = []
    for number, config in enumerate(config for config in configs(secret) if config.get("moment") == "never"):
        names.append(f"c{number}")
        assert api("POST", "/connectors", {"name": names[-1], "config": config})[0] == 201

    def has_failed(name: str) -> bool:
        status, response = api("GET", f"/connectors/{name}/status")
        return status == 200 and [task["state"] for task in response["tasks"]] == ["FAILED"]

    for name in names:
        wait_until(lambda name=name: has_failed(name), timeout=60, what=f"{name} has failed")  # type: ignore[misc]
        _, response = api("GET", f"/connectors/{name}/status")
        assert "failed with" in response["tasks"][0]["trace"]
        assert PLAIN not in json.dumps(response) and STORED not in json.dumps(response)
    assert "starting with" in caplog.text and "failed with" in caplog.text
    assert PLAIN not in caplog.text and STORED not in caplog.text
    # The owner of a configuration can read it, as in Kafka Connect.
    assert api("GET", "/connectors/c0/config")[1]["vault.password"] == PLAIN


def test_passwords_of_the_worker_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    with workers._resolved({"sasl.jaas.config": f"required password='{PLAIN}';", "ssl.key.password": STORED}):
        assert root.handlers
        logging.getLogger("leaking").error("connecting with %s and %s", STORED, f"required password='{PLAIN}';")
    assert "connecting with [hidden] and [hidden]" in caplog.text
    assert PLAIN not in caplog.text and STORED not in caplog.text


def test_secrets_are_recognized_by_name() -> None:
    for name in ("connection.password", "auth.bearer.token", "aws.secret.access.key", "sasl.jaas.config",
                 "ssl.keystore.key", "basic.auth.credentials", "basic.auth.user.info", "API_KEY"):  # fmt: skip
        assert is_secret(name)
    for name in ("key.converter", "topics", "connection.user", "file", "pk.fields", "spark.path"):
        assert not is_secret(name)


@pytest.mark.parametrize(
    "value",
    [
        "jdbc:postgresql://me:{}@h/d",
        "jdbc:oracle:thin:scott/{}@//h:1521/d",
        "jdbc:sqlserver://h;password={{{}}};x=y",
        "https://h/x?api_key={}",
        "X-Api-Key: {}|Accept: text/plain",
        "jdbc:postgresql://${{env:HOST}}/d?password={}",
    ],
)
def test_passwords_in_urls_are_secrets(value: str) -> None:
    password = "S3cr;t-x" if "sqlserver" in value else "S3cret@x" if "//me" in value else "S3cret-x"
    config = value.format(password)
    assert password not in shown_value("connection.url", config)
    assert password not in Secrets.of({"connection.url": config}).hide(f"cannot connect: {config}")
    with_placeholder = value.format("${file:/s:x}")
    assert shown_value("connection.url", with_placeholder) == with_placeholder


def test_many_passwords_take_little_time() -> None:
    settings = {f"password{number}": f"s3cret-{number:06}" for number in range(3000)}
    start_time = time.thread_time()
    assert Secrets.of(settings).hide("it was s3cret-000007") == "it was [hidden]"
    assert time.thread_time() - start_time < 5
