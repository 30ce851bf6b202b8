"""The pages and operations. Importing a module registers them; the order of the imports is the
order of the navigation."""

# ruff: noqa: I001
from kavka.console.pages import overview
from kavka.console.pages import brokers
from kavka.console.pages import topics, topic_advice, topic, topic_settings, topic_moves
from kavka.console.pages import messages, message_pages
from kavka.console.pages import groups
from kavka.console.pages import transactions
from kavka.console.pages import pipelines, connectors
from kavka.console.pages import alerts, audit
from kavka.console.pages import search
from kavka.console.pages import security, principals

__all__ = [
    "alerts", "audit", "brokers", "connectors", "groups", "message_pages", "messages", "overview", "pipelines",
    "principals", "search", "security", "topic", "topic_advice", "topic_moves", "topic_settings", "topics",
    "transactions",
]  # fmt: skip
