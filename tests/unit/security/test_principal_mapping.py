"""The examples of Kafka's documentation and of its tests."""

from __future__ import annotations

import pytest

from kavka.security.principal_mapping import MappingError, PrincipalMapper

RULES = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (RULES + "DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        (RULES + "DEFAULT", "CN=Duke,OU=SME,O=Org,L=Place,ST=S,C=US", "duke@sme"),
        (RULES + "DEFAULT", "CN=Duke", "CN=Duke"),
        ("DEFAULT", "CN=Duke", "CN=Duke"),
        ("RULE:^CN=([^,]*).*$/$1/U , DEFAULT", "CN=Duke,O=x", "DUKE"),
        (r"RULE:^CN=(.*)\/(.*)$/$2-$1/", "CN=a/b", "b-a"),
        ("RULE:^CN=(.*)$/$1$9/", "CN=a", "a$9"),
    ],
)
def test_rules(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapper(rules).name_of(name) == principal


def test_no_rule_applies() -> None:
    with pytest.raises(MappingError, match="CN=Duke"):
        PrincipalMapper("RULE:^OU=(.*)$/$1/").name_of("CN=Duke")


@pytest.mark.parametrize("rules", ["default", "DEFAULT/L", "RULE:", "RULE:(/x/", "RULE:a/b/X", "DEFAULT RULE:a/b/"])
def test_invalid_rules(rules: str) -> None:
    with pytest.raises(MappingError):
        PrincipalMapper(rules)
