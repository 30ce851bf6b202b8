"""[pure] Names in certificates: the distinguished name as Java writes it, and the alternative
names."""

from __future__ import annotations

from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

# The attributes that Java's RFC 2253 form writes by name. Java writes others by OID.
_KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED = frozenset(',+"\\<>;')


def distinguished_name(name: x509.Name) -> str:
    """Return the name in the form of Java's `X500Principal.getName()`, for example
    `CN=alice,OU=Users,O=Example,C=NL`."""
    return ",".join(
        "+".join(_attribute(attribute) for attribute in relative_name) for relative_name in reversed(list(name.rdns))
    )


def subject_of(der: bytes) -> str:
    """Return the distinguished name of a certificate's subject. Raises ValueError."""
    return _subject_of(der)


@lru_cache(1024)
def _subject_of(der: bytes) -> str:
    return distinguished_name(x509.load_der_x509_certificate(der).subject)


def alternative_names(certificate: x509.Certificate) -> frozenset[str]:
    """Return the subject alternative names, with their types."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(f"{type(name).__name__}:{name.value}" for name in extension.value)


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is not None and isinstance(attribute.value, str):
        return f"{keyword}={_escape(attribute.value)}"
    value = attribute.value if isinstance(attribute.value, bytes) else attribute.value.encode()
    size = bytes([len(value)]) if len(value) < 128 else _long_size(len(value))
    tag = bytes([attribute._type.value])
    return f"{attribute.oid.dotted_string}=#{(tag + size + value).hex()}"


def _long_size(size: int) -> bytes:
    raw = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(raw)]) + raw


def _escape(text: str) -> str:
    escaped = "".join(f"\\{character}" if character in _ESCAPED else character for character in text)
    if escaped.startswith((" ", "#")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
