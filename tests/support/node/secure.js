// Connects kafkajs to a secured broker: produces one record and consumes it. The settings are a JSON object in the
// first argument.
const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const MECHANISMS = {
  PLAIN: "plain",
  "SCRAM-SHA-256": "scram-sha-256",
  "SCRAM-SHA-512": "scram-sha-512",
  OAUTHBEARER: "oauthbearer",
};

async function main() {
  const s = JSON.parse(process.argv[2]);
  const options = { clientId: "probe", brokers: [s.Servers], logLevel: logLevel.ERROR };
  if (s.Ca) {
    options.ssl = { ca: [fs.readFileSync(s.Ca)] };
    if (s.Certificate) {
      options.ssl.cert = options.ssl.key = fs.readFileSync(s.Certificate);
    }
  }
  if (s.Mechanism) {
    options.sasl = { mechanism: MECHANISMS[s.Mechanism], username: s.User, password: s.Password };
    if (s.Mechanism === "OAUTHBEARER") {
      options.sasl = { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: s.Token }) };
    }
  }
  const kafka = new Kafka(options);
  const producer = kafka.producer({ allowAutoTopicCreation: true });
  await producer.connect();
  await producer.send({ topic: s.Topic, messages: [{ value: "kafkajs" }] });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: s.Topic });
  await consumer.connect();
  await consumer.subscribe({ topic: s.Topic, fromBeginning: true });
  const value = await new Promise((resolve) => {
    consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) });
  });
  await consumer.disconnect();
  console.log(JSON.stringify({ value }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
