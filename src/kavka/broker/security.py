"""The security of a broker: of its listeners, and of its connections to other brokers.

Certificates are read again when their files change, and when a dynamic setting changes. New
connections use the new certificate; existing connections continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from kavka.broker.key_set_cache import URL as KEY_SET_URL
from kavka.broker.key_set_cache import KeySetCache
from kavka.broker.listener_settings import listener_values, mechanism_values
from kavka.broker.settings import Listener, Settings
from kavka.common.config import ConfigError
from kavka.common.metrics import Registry
from kavka.metadata.delegation_tokens import DelegationTokens
from kavka.metadata.scram_credentials import ScramCredentials
from kavka.network.listener_security import ListenerSecurity, Mechanism
from kavka.security.client_security import ClientSecurity, client_security
from kavka.security.jaas import JaasEntry, JaasError, parse_client_jaas
from kavka.security.json_web_tokens import SignedTokens, TokenRules, UnsecuredTokens
from kavka.security.principal import SecurityProtocol
from kavka.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SaslServer
from kavka.security.sasl.oauth_bearer import OAuthBearerServer
from kavka.security.sasl.plain import PlainPasswords, PlainServer
from kavka.security.sasl.scram import ScramServer

logger = logging.getLogger(__name__)

# How often the files of key stores and trust stores are checked for changes.
WATCH_INTERVAL_S = 1.0

_HANDLER = "sasl.server.callback.handler.class"
_SIGNED_HANDLERS = ("OAuthBearerValidatorCallbackHandler",)
_UNSECURED_HANDLER = "OAuthBearerUnsecuredValidatorCallbackHandler"
_TLS_PREFIX = "ssl."


class BrokerSecurity:
    """Owns the security of all listeners and the tasks that keep it current. Only the loop thread
    uses it."""

    def __init__(
        self,
        settings: Settings,
        credentials: ScramCredentials,
        metrics: Registry,
        run_in_worker: Callable[..., Awaitable[Any]],
        now_s: Callable[[], float] = time.time,
        tokens: DelegationTokens | None = None,
    ) -> None:
        self.listeners: dict[str, ListenerSecurity] = {}
        self._settings = settings
        self._credentials = credentials
        self._tokens = tokens
        self._run_in_worker = run_in_worker
        self._now_s = now_s
        self._key_sets: list[KeySetCache] = []
        self._inter_broker: ClientSecurity | None = None
        # The loaded certificates and the versions of their files, by listener.
        self._certificates: dict[str, Any] = {}
        self._stamps: dict[str, Any] = {}
        self._watching: asyncio.Task[None] | None = None
        self._reloading = asyncio.Lock()
        self._failures = metrics.counter(
            "kavka_failed_authentications_total", "Failed TLS handshakes and SASL authentications", ("listener",)
        )
        self._successes = metrics.counter(
            "kavka_successful_authentications_total", "Completed TLS and SASL authentications", ("listener",)
        )

    async def start(self) -> None:
        """Read all certificates and credentials. Raises ConfigError."""
        for listener in self._settings.listeners:
            self.listeners[listener.name] = await self._create(listener)
        if self._settings.in_cluster:
            await self._load_inter_broker()
        if self._certificates:
            self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        for key_set in self._key_sets:
            await key_set.stop()

    def inter_broker(self) -> ClientSecurity | None:
        """The security of connections to other brokers; None for PLAINTEXT."""
        return self._inter_broker

    # ---- listeners

    async def _create(self, listener: Listener) -> ListenerSecurity:
        protocol = SecurityProtocol(listener.protocol)
        values = listener_values(self._settings.configs.values, listener.name)
        security = ListenerSecurity(
            listener.name,
            protocol,
            max_receive_bytes=values["sasl.server.max.receive.size"],
            failure_delay_s=values["connection.failed.authentication.delay.ms"] / 1000,
            failures=self._failures.labels(listener.name),
            successes=self._successes.labels(listener.name),
        )
        with _settings_of(listener.name):
            if protocol.has_tls:
                security.context = await self._load_context(listener.name, values)
                security.certificate_name = _certificate_name(values["ssl.principal.mapping.rules"])
            if protocol.has_sasl:
                security.mechanisms = await self._mechanisms(listener.name, values)
        return security

    async def _load_context(self, name: str, values: Mapping[str, Any]) -> Any:
        """Read the certificates of a listener. Raises ConfigError, also for a certificate with
        other names than the current certificate."""
        from kavka.security.certificates import alternative_names, distinguished_name
        from kavka.security.tls import TlsSettings, server_context

        tls = TlsSettings.from_values(values)
        if not tls.key_store.is_set:
            raise ConfigError("ssl.keystore.location", "must be set for a listener with TLS")

        def load() -> tuple[Any, Any, Any]:
            stamps = tls.stamps()
            entry = tls.key_store.load_key()
            return stamps, entry.certificate, server_context(tls, entry)

        stamps, certificate, context = await self._run_in_worker(load)
        current = self._certificates.get(name)
        if current is not None:
            _check_names(
                "ssl.allow.dn.changes", values, "distinguished name",
                distinguished_name(current.subject), distinguished_name(certificate.subject),
            )  # fmt: skip
            _check_names(
                "ssl.allow.san.changes", values, "subject alternative names",
                alternative_names(current), alternative_names(certificate),
            )  # fmt: skip
        self._certificates[name] = certificate
        self._stamps[name] = stamps
        return context

    # ---- reloading

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            stamps = await self._run_in_worker(self._current_stamps)
            changed = [name for name, stamp in stamps.items() if stamp != self._stamps[name]]
            # A file that cannot be used is not read again until it changes again.
            self._stamps.update(stamps)
            if changed:
                await self._reload_all(changed)

    def _current_stamps(self) -> dict[str, Any]:
        from kavka.security.tls import TlsSettings

        values = self._settings.configs.values
        return {name: TlsSettings.from_values(listener_values(values, name)).stamps() for name in self._stamps}

    async def _reload_all(self, names: Iterable[str]) -> None:
        async with self._reloading:
            for name in names:
                try:
                    values = listener_values(self._settings.configs.values, name)
                    self.listeners[name].context = await self._load_context(name, values)
                    logger.info("Listener %s uses the changed certificates for new connections", name)
                except ConfigError as error:
                    logger.error("Listener %s keeps its previous certificates: %s", name, error)
            if self._inter_broker is not None and self._settings.inter_broker_listener in names:
                try:
                    await self._load_inter_broker()
                except ConfigError as error:
                    logger.error("Connections to other brokers keep the previous certificates: %s", error)

    def on_settings_changed(self, names: frozenset[str]) -> None:
        """Apply changed dynamic settings of TLS. The files of unchanged settings are read again,
        because Kafka's tools announce a changed file by setting the same path."""
        listeners = [
            listener
            for listener in self._certificates
            if any(name.startswith((_TLS_PREFIX, f"listener.name.{listener.lower()}.{_TLS_PREFIX}")) for name in names)
        ]
        if listeners:
            task = asyncio.ensure_future(self._reload_all(listeners))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def check_dynamic(self, values: Mapping[str, Any]) -> None:
        """Raise ConfigError if the listeners could not use these values of all settings."""
        for name in self._certificates:
            listener = listener_values(values, name)
            if _tls_values(listener) != _tls_values(listener_values(self._settings.configs.values, name)):
                certificate, stamps = self._certificates[name], self._stamps[name]
                try:
                    await self._load_context(name, listener)
                finally:
                    self._certificates[name], self._stamps[name] = certificate, stamps

    # ---- SASL

    async def _mechanisms(self, listener: str, values: Mapping[str, Any]) -> dict[str, Mechanism]:
        mechanisms: dict[str, Mechanism] = {}
        for name in values["sasl.enabled.mechanisms"]:
            if name not in MECHANISMS:
                raise ConfigError(
                    "sasl.enabled.mechanisms", f"'{name}' is not supported, it must be one of {', '.join(MECHANISMS)}"
                )
            own_values = mechanism_values(self._settings.configs.values, listener, name)
            new_exchange = await self._exchanges(name, own_values)
            mechanisms[name] = Mechanism(new_exchange, own_values["connections.max.reauth.ms"])
        if not mechanisms:
            raise ConfigError("sasl.enabled.mechanisms", "must contain at least one mechanism")
        return mechanisms

    async def _exchanges(self, mechanism: str, values: Mapping[str, Any]) -> Callable[[], SaslServer]:
        if mechanism == PLAIN:
            if values[_HANDLER]:
                raise ConfigError(_HANDLER, "custom classes are not supported for PLAIN")
            entry = _jaas(values, "PlainLoginModule")
            if entry is None:
                raise ConfigError(
                    "sasl.jaas.config", "must be set for PLAIN: PlainLoginModule with user_<name> options"
                )
            passwords = PlainPasswords(entry.options)
            return lambda: PlainServer(passwords.verify)
        if mechanism == OAUTHBEARER:
            validate = await self._token_validator(values)
            return lambda: OAuthBearerServer(validate)
        lookup = self._credentials.lookup(mechanism)
        if self._tokens is None:
            return lambda: ScramServer(mechanism, lookup)
        lookup_token = self._tokens.lookup(mechanism)
        return lambda: ScramServer(mechanism, lookup, lookup_token)

    async def _token_validator(self, values: Mapping[str, Any]) -> Any:
        entry = _jaas(values, "OAuthBearerLoginModule")
        options = {} if entry is None else entry.options
        handler = (values[_HANDLER] or "").rpartition(".")[2]
        is_unsecured = handler == _UNSECURED_HANDLER or (
            not handler and not values[KEY_SET_URL] and any(name.startswith("unsecured") for name in options)
        )
        if is_unsecured:
            logger.warning("OAUTHBEARER accepts unsecured tokens: every client can choose its user name")
            return UnsecuredTokens(_unsecured_rules(options), self._now_s).validate
        if handler and handler not in _SIGNED_HANDLERS:
            raise ConfigError(
                _HANDLER, f"'{handler}' is not supported, it must be {_SIGNED_HANDLERS[0]} or {_UNSECURED_HANDLER}"
            )
        if not values[KEY_SET_URL]:
            raise ConfigError(KEY_SET_URL, f"must be set for OAUTHBEARER, or {_HANDLER} for unsecured tokens")
        key_set = KeySetCache(values, self._run_in_worker)
        await key_set.start()
        self._key_sets.append(key_set)
        rules = TokenRules(
            values["sasl.oauthbearer.expected.issuer"],
            tuple(values["sasl.oauthbearer.expected.audience"] or ()),
            values["sasl.oauthbearer.clock.skew.seconds"],
            values["sasl.oauthbearer.scope.claim.name"],
            values["sasl.oauthbearer.sub.claim.name"],
        )
        return SignedTokens(key_set.keys, rules, self._now_s, key_set.on_unknown_key).validate

    # ---- connections to other brokers

    async def _load_inter_broker(self) -> None:
        settings = self._settings
        listener = settings.inter_broker_listener
        protocol = next(other.protocol for other in settings.listeners if other.name == listener)
        if protocol == SecurityProtocol.PLAINTEXT.value:
            return
        mechanism = settings["sasl.mechanism.inter.broker.protocol"]
        values = mechanism_values(settings.configs.values, listener, mechanism)
        security = self.listeners[listener]
        if security.protocol.has_sasl and mechanism not in security.mechanisms:
            raise ConfigError(
                "sasl.mechanism.inter.broker.protocol",
                f"'{mechanism}' is not allowed; it must be one of {', '.join(security.mechanisms)} "
                f"(sasl.enabled.mechanisms of listener {listener})",
            )
        values.update({"security.protocol": protocol, "sasl.mechanism": mechanism})
        with _settings_of(listener):
            self._inter_broker = await self._run_in_worker(lambda: client_security(values, now_s=self._now_s))


@contextlib.contextmanager
def _settings_of(listener: str) -> Any:
    """Add the name of the listener to a ConfigError of its settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.name, f"{error.reason} (listener {listener})") from None


def _certificate_name(rules: str) -> Callable[[bytes], str]:
    from kavka.security.certificates import subject_of
    from kavka.security.principal_mapping import SETTING, MappingError, PrincipalMapper

    try:
        mapper = PrincipalMapper(rules)
    except MappingError as error:
        raise ConfigError(SETTING, str(error)) from None
    return lambda certificate: mapper.name_of(subject_of(certificate))


def _check_names(setting: str, values: Mapping[str, Any], what: str, current: Any, new: Any) -> None:
    if current != new and not values[setting]:
        raise ConfigError(
            "ssl.keystore.location", f"the new certificate has another {what}; set {setting}=true to allow this"
        )


def _tls_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name.startswith(_TLS_PREFIX)}


def _jaas(values: Mapping[str, Any], module: str) -> JaasEntry | None:
    text = values["sasl.jaas.config"]
    if not text:
        return None
    try:
        entry = parse_client_jaas(text)
    except JaasError as error:
        raise ConfigError("sasl.jaas.config", str(error)) from None
    if entry.module_name != module:
        raise ConfigError("sasl.jaas.config", f"the login module must be {module}, not {entry.module_name}")
    return entry


def _unsecured_rules(options: Mapping[str, str]) -> TokenRules:
    """The rules of Kafka's handler for unsecured tokens, from the options of the JAAS entry."""
    get = options.get
    try:
        skew_s = float(get("unsecuredValidatorAllowableClockSkewMs", "0")) / 1000
    except ValueError:
        raise ConfigError("sasl.jaas.config", "unsecuredValidatorAllowableClockSkewMs must be a number") from None
    return TokenRules(
        clock_skew_s=skew_s,
        scope_claim=get("unsecuredValidatorScopeClaimName", "scope"),
        subject_claim=get("unsecuredValidatorPrincipalClaimName", "sub"),
        required_scope=frozenset(get("unsecuredValidatorRequiredScope", "").split()),
    )
