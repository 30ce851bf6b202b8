"""The examples of docs/streams.md and of examples/ do what they say, in the test driver."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from kavka.streams import Serdes, TestRecord, TopologyTestDriver

ROOT = Path(__file__).resolve().parents[4]


def test_the_documented_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "streams.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, object] = {"__name__": "example"}
    built = {}
    for number, block in enumerate(blocks):
        exec(compile(block, "streams.md", "exec"), names)
        built[number] = names["builder"]
    with TopologyTestDriver(built[2].build()) as driver:  # type: ignore[attr-defined]
        driver.create_input_topic("card-payments", value_serde=Serdes.Json()).pipe_input("c", {"amount": 2.5}, 61_000)
        out = driver.create_output_topic("spent-by-minute", value_serde=Serdes.Double())
        assert out.read_key_value() == ("c@60000", 2.5)


def test_the_fraud_alert_reports_the_fourth_payment_of_a_minute() -> None:
    topology = runpy.run_path(str(ROOT / "examples" / "fraud_alert.py"))["build"]()
    with TopologyTestDriver(topology) as driver:
        payments = driver.create_input_topic("card-payments", value_serde=Serdes.Json())
        payments.pipe_record_list([TestRecord("c1", {"amount": 10.0}, at * 1000) for at in (1, 2, 3, 4, 61)])
        alerts = driver.create_output_topic("fraud-alerts", value_serde=Serdes.Json())
        assert alerts.read_key_values_to_list() == [("c1", {"count": 4, "total": 40.0})]


def test_orders_are_joined_with_customers() -> None:
    topology = runpy.run_path(str(ROOT / "examples" / "orders_with_customers.py"))["build"]()
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("customers", value_serde=Serdes.Json()).pipe_input("7", {"name": "Ada"}, 0)
        orders = driver.create_input_topic("orders", value_serde=Serdes.Json())
        orders.pipe_key_value_list([("7", {"item": "tea"}), ("8", {"item": "salt"})])
        named = driver.create_output_topic("orders-named", value_serde=Serdes.Json())
        assert named.read_key_values_to_list() == [("7", {"item": "tea", "customer": "Ada"})]


def test_the_word_count_counts() -> None:
    topology = runpy.run_path(str(ROOT / "examples" / "word_count.py"))["build"]()
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("streams-plaintext-input").pipe_value("To be or not to be")
        counts = driver.create_output_topic("streams-plaintext-output", value_serde=Serdes.Long())
        assert counts.read_key_values_to_map() == {"to": 2, "be": 2, "or": 1, "not": 1}
