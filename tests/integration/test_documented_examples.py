"""The Python examples in the docs of the clients run as written, and use every public method."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kavka import Admin, Consumer, Producer, aio
from kavka.parallel import ConsumerThreads, HandlerPool

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


DOCUMENTS = ("producer.md", "consumer.md", "admin.md", "parallel.md", "serializers.md")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_examples_of_a_document_run(servers: str, name: str) -> None:
    blocks = _BLOCK.findall((DOCS / name).read_text())
    assert blocks
    for block in blocks:
        code = compile(block.replace("localhost:9092", servers), name, "exec")
        exec(code, {"__name__": "example"})


@pytest.mark.parametrize(
    "client_class", [Producer, Consumer, Admin, ConsumerThreads, HandlerPool, aio.Producer, aio.Consumer, aio.Admin]
)
def test_every_public_method_has_an_example(client_class: type) -> None:
    examples = "".join(block for name in DOCUMENTS for block in _BLOCK.findall((DOCS / name).read_text()))
    matches = set(re.findall(r"\.(\w+)\(|(?<=consumer)\.(wakeup)\b", examples))
    used_names = {name for match in matches for name in match}
    methods = {name for name in dir(client_class) if not name.startswith("_") and callable(getattr(client_class, name))}
    # Called by `async with`, by the consumer, or by the asyncio producer, not by applications.
    methods -= {"start", "on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost", "try_send"}
    assert methods - used_names == set()
