from __future__ import annotations

import pytest

from kavka.security.password_encoder import EncodingError, PasswordEncoder

# Written by EncryptingPasswordEncoder of Kafka 3.9.1 with the secret "broker-secret".
FROM_KAFKA = (
    "initializationVector:nnPoIKUO/yMpyFC4QJSPWA==,keyLength:128,salt:4RwfF10K+oFu08El+Vvpvr04DF9Ul7JOEPI"
    "xy443+/NV8tpV2zk5uWjtnHr/9zmIv4wPhErhl3bNsiOkQI27n/W/WLegB3393wBAz8OlLZ6GCM0n3QN13hEt6CTsd10SxRkpVlB"
    "5T3fKj3ZGug9Uw5QQpXxRUUyCbL3NES1XsCTM4AwXa3Rx/G/wtcePr/7sUTw+c/7hWT9SkaZSdD2lXm2BwPvW/UEUAdBDWDA4wOI"
    "4V3LxBWUO6olUk2usHTsP1GxUogmD/2Q9cxOQdgNEwQV5p/jKBFXmu+jzCBq4Wm5B6W7JSITw6ai5I6tUQUHcl9zT6bUaWYO2GK4"
    "WjjhKsw==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4"
    "096,passwordLength:8,encryptedPassword:+ZTNwJN8iRQFMk3a7f735Q=="
)


def test_passwords_are_encrypted() -> None:
    encoder = PasswordEncoder("broker-secret")
    for password in ("changeit", "", "pässword, with: commas"):
        text = encoder.encode(password)
        assert not password or password not in text
        assert encoder.decode(text) == password
        assert encoder.encode(password) != text
    assert "broker-secret" not in repr(encoder)


def test_a_password_that_kafka_has_written() -> None:
    assert PasswordEncoder("broker-secret").decode(FROM_KAFKA) == "changeit"


def test_the_old_secret() -> None:
    text = PasswordEncoder("old").encode("changeit")
    assert PasswordEncoder("new", "old").decode(text) == "changeit"
    for encoder in (PasswordEncoder("new"), PasswordEncoder("new", "other")):
        with pytest.raises(EncodingError):
            encoder.decode(text)


@pytest.mark.parametrize("text", ["", "changeit", "keyLength:128", "a:b,c:d"])
def test_invalid_texts(text: str) -> None:
    with pytest.raises(EncodingError):
        PasswordEncoder("secret").decode(text)


def test_hostile_texts_cost_little() -> None:
    text = PasswordEncoder("secret").encode("x").replace("iterations:4096", "iterations:2000000000")
    with pytest.raises(EncodingError):
        PasswordEncoder("secret").decode(text)
    with pytest.raises(EncodingError):
        PasswordEncoder("secret", cipher="DES/CBC").encode("x")
    with pytest.raises(EncodingError):
        PasswordEncoder("secret", key_factory="MD5").encode("x")
