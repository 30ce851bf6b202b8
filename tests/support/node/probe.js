// Tests a broker with kafkajs: creates a topic, produces with every acks and with gzip, and requests offsets. Prints one
// line of JSON. The test reads the records with another client, since kafkajs consumes only in groups.
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

async function main() {
  const [bootstrap, topic] = process.argv.slice(2);
  const kafka = new Kafka({ clientId: "probe", brokers: [bootstrap], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  const created = await admin.createTopics({ topics: [{ topic, numPartitions: 2 }], waitForLeaders: true });

  const producer = kafka.producer({ allowAutoTopicCreation: false });
  await producer.connect();
  for (const acks of [1, -1, 0]) {
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
      await producer.send({
        topic,
        acks,
        compression,
        messages: [0, 1, 2].map((n) => ({
          partition: 0,
          key: n === 0 ? null : `k${n}`,
          value: `acks ${acks}, compression ${compression}, ${n}`,
          headers: { n: String(n) },
          timestamp: "1600000000000",
        })),
      });
    }
  }
  await producer.disconnect();

  const idempotent = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await idempotent.connect();
  const sent = await idempotent.send({ topic, messages: [{ partition: 1, value: "once" }] });
  await idempotent.disconnect();

  const deadline = Date.now() + 15000;
  let offsets = [];
  while (Date.now() < deadline) {
    offsets = await admin.fetchTopicOffsets(topic);
    if (offsets.some((entry) => entry.partition === 0 && entry.high === "18")) break;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const byTime = await admin.fetchTopicOffsetsByTimestamp(topic, 1500000000000);
  const metadata = await admin.fetchTopicMetadata({ topics: [topic] });
  const cluster = await admin.describeCluster();
  const configs = await admin.describeConfigs({
    includeSynonyms: false,
    resources: [{ type: 2, name: topic, configNames: ["retention.ms"] }],
  });
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "6" }] });
  const after = await admin.fetchTopicOffsets(topic);
  await admin.disconnect();
  console.log(
    JSON.stringify({
      created,
      baseOffset: sent[0].baseOffset,
      high: offsets.find((entry) => entry.partition === 0).high,
      byTime: byTime.find((entry) => entry.partition === 0).offset,
      partitions: metadata.topics[0].partitions.length,
      brokers: cluster.brokers.length,
      retention: configs.resources[0].configEntries[0].configValue,
      low: after.find((entry) => entry.partition === 0).low,
    }),
  );
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
