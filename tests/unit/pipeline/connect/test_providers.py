"""Configuration providers: placeholders are resolved, and only the task receives the values."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kavka.pipeline.connect import worker as workers
from kavka.pipeline.connect.api import Context, Source
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.herder import Herder, RestError
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.providers import ConfigProvider, ProviderError, Providers, Secrets
from kavka.pipeline.connect.stores import ConfigStore, MemoryTable, OffsetStore, StatusStore
from kavka.pipeline.connect.tasks import Worker
from kavka.pipeline.connect.worker import run_standalone
from tests.support.processes import wait_until

JAVA = "org.apache.kafka.common.config.provider"
PASSWORD = "open sesame"
DECLARED = Declared(frozenset({__name__}), file_connectors=True)
TEXT = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secrets.properties").write_text(f"password={PASSWORD}\nempty=\nnumber=abcd\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "user").write_text("me\n")
    return tmp_path


@pytest.fixture
def providers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Providers:
    monkeypatch.setenv("FOO_V", "foo")
    monkeypatch.setenv("BAR_V", "bar")
    monkeypatch.delenv("NOPE_V", raising=False)
    return Providers.of(
        {
            "config.providers": "file, fa,dir,env,ea",
            "config.providers.file.class": f"{JAVA}.FileConfigProvider",
            "config.providers.fa.class": f"{JAVA}.FileConfigProvider",
            "config.providers.fa.param.allowed.paths": f"{folder}/d",
            "config.providers.dir.class": f"{JAVA}.DirectoryConfigProvider",
            "config.providers.env.class": f"{JAVA}.EnvVarConfigProvider",
            "config.providers.ea.class": "EnvVarConfigProvider",
            "config.providers.ea.param.allowlist.pattern": "FOO.*",
        }
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a${file:F:password}b${file:F:empty}c", f"a{PASSWORD}bc"),
        ("${file:F:nope}", None),
        ("${file:x}", None),
        ("${file::x}", None),
        ("${fa:F:password}", None),
        ("${fa:D/../secrets.properties:password}", None),
        ("${dir:D:user}", "me\n"),
        ("${dir:D:nope}", None),
        ("${dir:/none:user}", None),
        ("${dir:user}", None),
        ("${dir:F:user}", None),
        ("${dir:D:../secrets.properties}", None),
        ("${env:FOO_V}", "foo"),
        ("${env:NOPE_V}", None),
        ("${ea:FOO_V}", "foo"),
        ("${ea:BAR_V}", None),
        ("${ea::FOO_V}", "foo"),
        ("${what:x:y}", None),
        ("${topic}-${timestamp}", None),
        ("$${env:FOO_V}", "$foo"),
        ("${file:F:${env:FOO_V}}", None),
        ("${env:FOO_V", None),
        ("}${env:FOO_V}", "}foo"),
        ("${none}${env:FOO_V}${env:BAR_V}", "${none}foobar"),
    ],
)
def test_placeholders_resolve_as_in_kafka(providers: Providers, folder: Path, text: str, expected: str | None) -> None:
    """The results of Kafka's ConfigTransformer 3.9.1 and 4.3.0; None: the text is unchanged."""
    text = text.replace("F:", f"{folder}/secrets.properties:")
    text = text.replace("D:", f"{folder}/d:").replace("D/", f"{folder}/d/")
    assert providers.resolve({"k": text}) == {"k": text if expected is None else expected}


@pytest.mark.parametrize("text", ["${" + ":" * 200_000, "${:" * 200_000, "${" * 200_000 + "}", "}" * 400_000])
def test_hostile_placeholders_take_little_time(providers: Providers, text: str) -> None:
    start_time = time.thread_time()
    assert providers.resolve({"k": text}) == {"k": text}
    assert time.thread_time() - start_time < 5


def test_unreadable_values_are_a_one_line_error(providers: Providers, folder: Path) -> None:
    for path in ("/none", str(folder)):
        with pytest.raises(ProviderError, match=f"^Could not read properties from file {path}$"):
            providers.resolve({"k": f"${{file:{path}:x}}"})
    with pytest.raises(ProviderError, match=r"^Path is not supported for EnvVarConfigProvider, invalid value 'some'$"):
        providers.resolve({"k": "${env:some:FOO_V}"})


def test_unresolved_placeholders_are_logged(
    providers: Providers, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    providers.resolve({"k": "${env:NOPE_V}${what:x:y}${env:FOO_V}"}, "Connector c")
    assert caplog.messages == [
        "Connector c: ${env:NOPE_V} is not resolved by provider env: the provider has no NOPE_V",
        "Connector c: ${what:x:y} is not resolved by provider what: it is not in config.providers",
    ]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "Missing required configuration"),
        ({"class": "com.example.Vault"}, "could not be found"),
        ({"class": f"{JAVA}.Vault"}, "available are DirectoryConfigProvider"),
        ({"class": "pathlib.Path"}, "the module pathlib is not declared as a plugin: set plugin.modules=pathlib"),
        ({"class": "FileConfigProvider", "param.allowed.paths": "rel"}, "Path rel is not absolute"),
        ({"class": "FileConfigProvider", "param.allowed.paths": "/no/such"}, "Path /no/such does not exist"),
        ({"class": "EnvVarConfigProvider", "param.allowlist.pattern": "("}, "is not a regular expression"),
    ],
)
def test_an_invalid_provider_is_rejected(settings: dict[str, str], message: str) -> None:
    properties = {"config.providers": "p", **{f"config.providers.p.{name}": value for name, value in settings.items()}}
    with pytest.raises(ConfigErrors, match=message):
        Providers.of(properties)


class CustomProvider(ConfigProvider):
    def configure(self, params: Mapping[str, str]) -> None:
        self._suffix = params.get("suffix", "")

    def get(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        if path == "broken":
            raise RuntimeError(f"the vault says {PASSWORD}")
        return {key: f"{path}/{key}{self._suffix}" for key in keys}


def test_a_custom_provider_resolves_placeholders() -> None:
    properties = {"config.providers": "custom", "config.providers.custom.class": f"{__name__}.CustomProvider"}
    providers = Providers.of({**properties, "config.providers.custom.param.suffix": "!"}, DECLARED)
    assert providers.resolve({"k": "${custom:a:b} ${custom:c}"}) == {"k": "a/b! /c!"}
    with pytest.raises(ProviderError, match=r"^the configuration provider custom failed: RuntimeError$"):
        providers.resolve({"k": "${custom:broken:b}"})


def test_values_are_hidden_in_text_and_logs() -> None:
    secrets = Secrets()
    assert secrets.hide("open sesame 42") == "open sesame 42"
    for value, placeholder in ((PASSWORD, "${p}"), ("4711", "${n}"), ("true", "${t}"), ("1", "${o}")):
        secrets.add(value, placeholder)
    secrets.add("-----BEGIN-----\nabcdefghijkl\n", "${pem}")
    text = "open sesame, open%20sesame, 4711 147110 true 1 and abcdefghijkl"
    assert secrets.hide(text) == "${p}, ${p}, ${n} 147110 true 1 and ${pem}"
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.addFilter(secrets)
    logger = logging.getLogger("test.providers")
    logger.addHandler(handler)
    try:
        raise ValueError(f"not {PASSWORD}")
    except ValueError:
        logger.exception("the password is %s", PASSWORD)
    finally:
        logger.removeHandler(handler)
    assert "the password is ${p}" in output.getvalue() and "ValueError: not ${p}" in output.getvalue()
    assert "sesame" not in output.getvalue()


class Leaking(Source):
    """Fails with the password that it received."""

    options = (Option("password"),)
    passwords: list[str] = []

    def start(self, context: Context) -> None:
        Leaking.passwords.append(context["password"])
        raise ConnectError(f"{context['password']} is wrong") from ValueError(f"really: {context.given['password']}")


@pytest.fixture
def herder(providers: Providers) -> Iterator[Herder]:
    converters = {"key.converter": TEXT, "value.converter": TEXT}
    no_spark: Any = lambda: None  # noqa: E731
    worker = Worker("w:1", converters, no_spark, "points", OffsetStore(MemoryTable()), providers=providers,
                    declared=DECLARED)  # fmt: skip
    herder = Herder(worker, ConfigStore(MemoryTable()), StatusStore(MemoryTable()))
    yield herder
    herder.close()


def test_only_the_task_receives_the_value(herder: Herder, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Leaking.passwords.clear()
    placeholder = f"${{file:{folder}/secrets.properties:password}}"
    config = {"connector.class": f"{__name__}.Leaking", "password": placeholder}
    herder.start()
    herder.create("c", config, None)

    def has_failed() -> bool:
        return bool(herder.statuses.tasks("c")) and herder.status("c")["tasks"][0]["state"] == "FAILED"

    wait_until(has_failed, timeout=60, what="the failure of the task")
    assert Leaking.passwords == [PASSWORD]
    assert herder.config("c")["password"] == placeholder
    trace = herder.status("c")["tasks"][0]["trace"]
    assert f"ConnectError: {placeholder} is wrong" in trace and f"really: {placeholder}" in trace
    responses = [herder.info("c"), herder.status("c"), herder.tasks("c"), herder.validate("Leaking", config)]
    assert PASSWORD not in json.dumps(responses) and PASSWORD not in caplog.text
    # The value is resolved again at every start.
    (folder / "secrets.properties").write_text("password=another\n")
    herder.restart_task("c", 0)
    wait_until(lambda: Leaking.passwords == [PASSWORD, "another"], timeout=60, what="the restart")
    (folder / "secrets.properties").unlink()
    herder.restart_task("c", 0)
    wait_until(
        lambda: has_failed() and "Could not read properties from file" in herder.status("c")["tasks"][0]["trace"],
        timeout=60,
        what="the failure without the file",
    )


def test_validate_checks_the_value_and_shows_the_placeholder(herder: Herder, folder: Path) -> None:
    number = f"${{file:{folder}/secrets.properties:number}}"
    config = {"connector.class": "FileStreamSource", "file": "${env:FOO_V}", "topic": "t", "tasks.max": number}
    values = {info["value"]["name"]: info["value"] for info in herder.validate("FileStreamSource", config)["configs"]}
    assert values["file"]["value"] == "${env:FOO_V}" and values["file"]["errors"] == []
    assert values["tasks.max"]["value"] == number
    (error,) = values["tasks.max"]["errors"]
    assert error.startswith(f"Invalid value {number} for configuration tasks.max") and "abcd" not in error
    with pytest.raises(RestError, match="contains the following 1 error") as rejected:
        herder.create("c", config, None)
    assert "abcd" not in str(rejected.value)
    with pytest.raises(RestError, match=r"^Could not read properties from file /none$") as rejected:
        herder.validate("FileStreamSource", {**config, "file": "${file:/none:x}"})
    assert rejected.value.code == 500


def test_the_class_may_be_a_placeholder(herder: Herder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASS", "FileStreamSource")
    info = herder.create("c", {"connector.class": "${env:CLASS}", "file": "f", "topic": "t"}, "STOPPED")
    assert (info["type"], info["config"]["connector.class"]) == ("source", "${env:CLASS}")


def test_worker_settings_may_have_placeholders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETS", str(tmp_path / "offsets"))
    monkeypatch.setenv("EXACTLY", "sometimes")
    resolved: list[Any] = []

    def run(server: Any, herder: Herder, *_: Any) -> None:
        resolved.append(herder.worker.properties)

    monkeypatch.setattr(workers.Server, "run", run)
    properties = {
        "key.converter": TEXT, "value.converter": TEXT, "listeners": "http://127.0.0.1:0",
        "offset.storage.file.filename": "${env:OFFSETS}",
        "config.providers": "env", "config.providers.env.class": f"{JAVA}.EnvVarConfigProvider",
    }  # fmt: skip
    assert run_standalone(properties, []) == 0
    assert resolved[0]["offset.storage.file.filename"] == str(tmp_path / "offsets")
    with pytest.raises(ConfigErrors, match=r"Invalid value \$\{env:EXACTLY\}"):
        run_standalone({**properties, "exactly.once.source.support": "${env:EXACTLY}"}, [])
