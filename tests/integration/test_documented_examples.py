"""Every Python example in the documents of the clients runs as it stands there."""

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
def test_the_examples_of_a_document_run_one_after_the_other(servers: str, name: str) -> None:
    blocks = _BLOCK.findall((DOCS / name).read_text())
    assert blocks
    for block in blocks:
        code = compile(block.replace("localhost:9092", servers), name, "exec")
        exec(code, {"__name__": "example"})


@pytest.mark.parametrize(
    "kind", [Producer, Consumer, Admin, ConsumerThreads, HandlerPool, aio.Producer, aio.Consumer, aio.Admin]
)
def test_every_call_has_an_example(kind: type) -> None:
    examples = "".join(block for name in DOCUMENTS for block in _BLOCK.findall((DOCS / name).read_text()))
    used = set(re.findall(r"\.(\w+)\(|(?<=consumer)\.(wakeup)\b", examples))
    named = {name for pair in used for name in pair}
    calls = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    # What `async with` calls, what the consumer calls, and the way in for the producer of asyncio.
    calls -= {"start", "on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost", "try_send"}
    assert calls - named == set()
