"""What is measured in one process of Spark, whichever Spark it is: run by the interpreter that has it.

    python spark_jobs.py JOB FORMAT JARS SERVERS ROUNDS ARGUMENT…

prints RESULT and a JSON list with a figure for each round. Imports nothing of the project but the source itself."""

import json
import os
import sys
import tempfile
import time

os.environ["PYSPARK_PYTHON"] = sys.executable


def session(form, jars, cores):
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.noDataProgressEventInterval", "3600000")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if form == "kavka":
        from kavka.pipeline.spark import register

        register(spark)
    return spark


def source(form, jars, servers, rounds, topic, count, tasks):
    """Records/s from a topic to nowhere."""
    spark = session(form, jars, int(tasks))
    rates = []
    for _ in range(rounds):
        frame = (
            spark.read.format(form)
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("minPartitions", tasks)
            .load()
        )
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(int(count) / (time.perf_counter() - began))
    return rates


def sink(form, jars, servers, rounds, topic, count, exactly_once):
    """Records/s of 1000 bytes into a topic, made by Spark itself."""
    spark = session(form, jars, 1)
    rates = []
    for _ in range(rounds):
        rows = spark.range(0, int(count), 1, 1).selectExpr("repeat(chr(65 + cast(id % 26 as int)), 1000) AS value")
        writer = rows.write.format(form).option("kafka.bootstrap.servers", servers).option("topic", topic)
        if exactly_once == "true":
            writer = writer.option("exactlyOnce", "true")
        began = time.perf_counter()
        writer.mode("append").save()
        rates.append(int(count) / (time.perf_counter() - began))
    return rates


def latency(form, jars, servers, rounds, source_topic, sink_topic):
    """Milliseconds of a batch, from Spark's own account, of a stream from topic to topic under a light load."""
    spark = session(form, jars, 2)
    query = (
        spark.readStream.format(form)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source_topic)
        .load()
        .selectExpr("key", "upper(cast(value AS STRING)) AS value")
        .writeStream.format(form)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", sink_topic)
        .option("checkpointLocation", tempfile.mkdtemp())
        .start()
    )
    found, last = [], -1
    print("READY", flush=True)
    while len(found) < rounds + 10:
        if query.exception() is not None:
            sys.exit(str(query.exception()))
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last and progress["numInputRows"]:
            last = progress["batchId"]
            found.append(progress["durationMs"]["triggerExecution"])
        time.sleep(0.005)
    query.stop()
    return found[10:]


def word_count(form, jars, servers, rounds, topic, count, kind):
    """Lines/s of a word count from its start to its last result: as Kafka Streams says it, or written by hand for the
    same source and sink. One output for each word and micro-batch; counts as text in the one, as Kafka's Long in the
    other."""
    spark = session(form, jars, 2)
    run = {"streams": _word_count_of_streams, "by-hand": _word_count_by_hand}[kind]
    rates = []
    for number in range(rounds):
        folder = tempfile.mkdtemp()
        began = time.perf_counter()
        run(spark, servers, topic, f"{topic}-{kind}-{number}", folder)
        rates.append(int(count) / (time.perf_counter() - began))
        print(kind, number, f"{rates[-1]:,.0f}", file=sys.stderr, flush=True)
    return rates


def _word_count_by_hand(spark, servers, topic, output, folder):
    """Spark lets no sink written in Python take a stream of updates: each batch is written as a batch."""

    def write(frame, number):
        frame.write.format("kavka").option("kafka.bootstrap.servers", servers).option("topic", output).mode(
            "append"
        ).save()

    query = (
        spark.readStream.format("kavka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("explode(split(lower(CAST(value AS STRING)), ' ')) AS word")
        .groupBy("word")
        .count()
        .selectExpr("word AS key", "CAST(count AS STRING) AS value")
        .writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _word_count_of_streams(spark, servers, topic, output, folder):
    from kavka.streams import KafkaStreams, Produced, Serdes, StreamsBuilder

    builder = StreamsBuilder()
    (
        builder.stream(topic)
        .flat_map_values(lambda line: line.lower().split(" "))
        .group_by(lambda key, word: word)
        .count()
        .to_stream()
        .to(output, Produced.with_(Serdes.String(), Serdes.Long()))
    )
    settings = {"bootstrap.servers": servers, "application.id": output, "state.dir": folder}
    with KafkaStreams(builder.build(), settings, spark) as streams:
        streams.process_all_available()


if __name__ == "__main__":
    job, form, jars, servers, rounds, *arguments = sys.argv[1:]
    print("RESULT " + json.dumps(globals()[job](form, jars, servers, int(rounds), *arguments)), flush=True)
