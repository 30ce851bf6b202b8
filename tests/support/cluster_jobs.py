"""The jobs of the tests on a Spark cluster, in a separate folder: a job file that imports a module
beside it, which the executors do not have."""

from __future__ import annotations

from pathlib import Path

STEPS = '''
def split(line):
    return line.split(" ")


class Total:
    """A processor with a store: the sum of the numbers of a key."""

    def init(self, context):
        self.context, self.store = context, context.get_state_store("totals")

    def process(self, record):
        total = (self.store.get(record.key) or 0) + int(record.value)
        self.store.put(record.key, total)
        self.context.forward(record.with_value(total))

    def close(self):
        pass
'''

JOB = """
import os

import steps
from kavka.streams import (
    Materialized, Produced, Serdes, Stores, StreamsBuilder, TimeWindows,
)

SOURCE = os.environ["SOURCE"]
CONFIG = {"application.id": "app-" + SOURCE, "bootstrap.servers": "localhost:1",
          "processing.guarantee": "exactly_once_v2", "cache.max.bytes.buffering": 0, "max.records.per.batch": 150}
COUNTS = Produced.with_(Serdes.String(), Serdes.Long())


def build():
    builder = StreamsBuilder()
    lines = builder.stream(SOURCE)
    if "words" in os.environ["PARTS"]:
        words = lines.flat_map_values(steps.split).group_by(lambda key, word: word)
        words.count(Materialized.as_("words")).to_stream().to(SOURCE + "-words", COUNTS)
    if "windows" in os.environ["PARTS"]:
        windows = words.windowed_by(TimeWindows.of_size_with_no_grace(1000)).count(Materialized.as_("windows"))
        windows.to_stream().map(lambda window, count: (f"{window.key}@{window.window.start}", count)).to(
            SOURCE + "-windows", COUNTS
        )
    if "join" in os.environ["PARTS"]:
        table = builder.table(SOURCE + "-table", materialized=Materialized.as_("table"))
        lines.join(table, lambda line, name: f"{name}:{line}").to(SOURCE + "-joined")
    if "totals" in os.environ["PARTS"]:
        builder.add_state_store(
            Stores.key_value_store_builder(Stores.persistent_key_value_store("totals"), Serdes.String(), Serdes.Long())
        )
        lines.map_values(lambda line: "1").process(steps.Total, "totals").to(SOURCE + "-totals", COUNTS)
    return builder.build()
"""


def write_job(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "steps.py").write_text(STEPS)
    (folder / "job.py").write_text(JOB)
    return folder / "job.py"
