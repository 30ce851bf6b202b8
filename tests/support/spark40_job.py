"""A job for Spark 4.0.0 and its Kafka connector.

`python spark40_job.py JARS SERVERS SOURCE SINK FOLDER` copies the topic SOURCE to SINK as a stream.
Then it reads SINK as a batch and prints the rows as JSON."""

import json
import sys

from pyspark.sql import SparkSession

jars, servers, source, sink, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
options = {"kafka.bootstrap.servers": servers}
query = (
    spark.readStream.format("kafka")
    .options(**options)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 60)
    .option("includeHeaders", "true")
    .load()
    .select("key", "value", "headers")
    .writeStream.format("kafka")
    .options(**options)
    .option("topic", sink)
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
rows = (
    spark.read.format("kafka")
    .options(**options)
    .option("subscribe", sink)
    .option("includeHeaders", "true")
    .option("minPartitions", 4)
    .load()
    .selectExpr("CAST(key AS STRING) AS k", "CAST(value AS STRING) AS v", "headers[0].key AS h")
    .collect()
)
print("RESULT " + json.dumps([[row.k, row.v, row.h] for row in rows]))
spark.stop()
