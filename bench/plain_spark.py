"""A plain Spark query, run by the Python of Spark 4.0.0 with its Kafka connector: the sum by key
that bench.streams_jobs computes with Streams. It prints READY when all input is done, and runs
until its standard input ends.

    python plain_spark.py JARS SERVERS FOLDER INTERVAL OUTPUT
"""

import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable


def serve(jars, servers, folder, interval, output):
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", folder)
        .config("spark.jars", jars)
        # As many as the partitions of the topic, as in Streams.
        .config("spark.sql.shuffle.partitions", "4")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "numbers")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "CAST(conv(hex(value), 16, 10) AS BIGINT) AS value")
        .groupBy("key")
        .sum("value")
        .selectExpr("key", "CAST(`sum(value)` AS STRING) AS value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", output)
        .option("checkpointLocation", os.path.join(folder, "checkpoint"))
        .outputMode("update")
        .trigger(processingTime=f"{interval} milliseconds")
        .start()
    )
    query.processAllAvailable()
    print("READY", flush=True)
    sys.stdin.read()
    query.stop()


if __name__ == "__main__":
    serve(*sys.argv[1:])
