from __future__ import annotations

import pytest

from kavka.security.jaas import JaasError, parse_client_jaas, parse_jaas


def test_options() -> None:
    (entry,) = parse_jaas(
        "org.apache.kafka.common.security.plain.PlainLoginModule required\n"
        '  username="admin" password=\'se"c;=ret\' // the broker\n  user_alice="a\\"b\\\\c" plain=x ;'
    )
    assert entry.module_name == "PlainLoginModule"
    assert entry.options == {"username": "admin", "password": 'se"c;=ret', "user_alice": 'a"b\\c', "plain": "x"}
    assert "ret" not in repr(entry)


def test_several_modules() -> None:
    assert [entry.module for entry in parse_jaas("A required; B optional x=y;")] == ["A", "B"]
    with pytest.raises(JaasError, match="exactly one"):
        parse_client_jaas("A required; B optional x=y;")


@pytest.mark.parametrize(
    "text",
    ["", ";", "A;", "A required", "A maybe;", "A required x;", "A required x=;", 'A required x="secret', "= required;"],
)
def test_errors_do_not_contain_the_text(text: str) -> None:
    with pytest.raises(JaasError) as caught:
        parse_jaas(text)
    assert "secret" not in str(caught.value)
