import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs Apache's Java client. Reads a command per line and prints a response per line, both JSON.
 * With the argument "consume-perf", it is the consumer of the benchmarks, which has an assigned partition.
 */
public final class KavkaProbe {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        if (args.length > 0 && args[0].equals("consume-perf")) {
            consumePerf(args);
            return;
        }
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            Map<String, Object> response = new LinkedHashMap<>();
            try {
                response.put("result", run(JSON.readTree(line)));
            } catch (Throwable failure) {
                Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
                response.put("error", cause.getClass().getSimpleName());
                response.put("message", String.valueOf(cause.getMessage()));
            }
            out.println(JSON.writeValueAsString(response));
        }
    }

    private static Object run(JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "ping":
                return "pong";
            case "produce":
                return produce(command);
            case "consume":
                return consume(command);
            case "offsets":
                return offsets(command);
            default:
                try (Admin admin = Admin.create(settings(command))) {
                    return admin(admin, command);
                }
        }
    }

    private static Map<String, Object> settings(JsonNode command) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", command.get("bootstrap").asText());
        JsonNode more = command.get("config");
        if (more != null) {
            more.fields().forEachRemaining(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        }
        return settings;
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : node.asText().getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] data) {
        return data == null ? null : new String(data, StandardCharsets.UTF_8);
    }

    private static Object produce(JsonNode command) throws Exception {
        Map<String, Object> settings = settings(command);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        String topic = command.get("topic").asText();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : command.get("records")) {
                int repeat = record.has("repeat") ? record.get("repeat").asInt() : 1;
                for (int i = 0; i < repeat; i++) {
                    ProducerRecord<byte[], byte[]> one = new ProducerRecord<>(
                            topic,
                            record.hasNonNull("partition") ? record.get("partition").asInt() : null,
                            record.hasNonNull("timestamp") ? record.get("timestamp").asLong() : null,
                            bytes(record.get("key")),
                            bytes(record.get("value")));
                    if (record.has("headers")) {
                        for (JsonNode header : record.get("headers")) {
                            one.headers().add(header.get(0).asText(), bytes(header.get(1)));
                        }
                    }
                    sent.add(producer.send(one));
                }
            }
            producer.flush();
            List<Object> result = new ArrayList<>();
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata metadata = future.get();
                result.add(Map.of(
                        "partition", metadata.partition(),
                        "offset", metadata.hasOffset() ? metadata.offset() : -1L,
                        "timestamp", metadata.timestamp()));
            }
            return result;
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        settings.putIfAbsent("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Object consume(JsonNode command) throws Exception {
        TopicPartition partition =
                new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0));
        int count = command.get("count").asInt();
        long deadline = System.currentTimeMillis() + command.path("timeoutMs").asLong(20_000);
        JsonNode from = command.get("from");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings(command))) {
            List<TopicPartition> assigned = List.of(partition);
            consumer.assign(assigned);
            if (from.has("offset")) {
                consumer.seek(partition, from.get("offset").asLong());
            } else if (from.has("time")) {
                OffsetAndTimestamp found =
                        consumer.offsetsForTimes(Map.of(partition, from.get("time").asLong())).get(partition);
                if (found == null) {
                    consumer.seekToEnd(assigned);
                } else {
                    consumer.seek(partition, found.offset());
                }
            } else if (from.has("end")) {
                consumer.seekToEnd(assigned);
            } else {
                consumer.seekToBeginning(assigned);
            }
            List<Object> result = new ArrayList<>();
            while (result.size() < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    List<List<String>> headers = new ArrayList<>();
                    for (Header header : record.headers()) {
                        headers.add(Arrays.asList(header.key(), text(header.value())));
                    }
                    Map<String, Object> entry = new LinkedHashMap<>();
                    entry.put("offset", record.offset());
                    entry.put("timestamp", record.timestamp());
                    entry.put("timestampType", record.timestampType().toString());
                    entry.put("key", text(record.key()));
                    if (command.path("sizesOnly").asBoolean(false)) {
                        entry.put("size", record.serializedValueSize());
                    } else {
                        entry.put("value", text(record.value()));
                    }
                    entry.put("headers", headers);
                    record.leaderEpoch().ifPresent(epoch -> entry.put("leaderEpoch", epoch));
                    result.add(entry);
                }
            }
            return Map.of("records", result, "position", consumer.position(partition));
        }
    }

    private static Object offsets(JsonNode command) throws Exception {
        TopicPartition partition =
                new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0));
        try (Admin admin = Admin.create(settings(command))) {
            Map<String, OffsetSpec> specs = new LinkedHashMap<>();
            specs.put("earliest", OffsetSpec.earliest());
            specs.put("latest", OffsetSpec.latest());
            specs.put("maxTimestamp", OffsetSpec.maxTimestamp());
            if (command.has("time")) {
                specs.put("time", OffsetSpec.forTimestamp(command.get("time").asLong()));
            }
            Map<String, Object> result = new TreeMap<>();
            for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
                var info = admin.listOffsets(Map.of(partition, spec.getValue())).partitionResult(partition).get();
                result.put(spec.getKey(), Map.of("offset", info.offset(), "timestamp", info.timestamp()));
            }
            return result;
        }
    }

    private static List<String> strings(JsonNode array) {
        List<String> result = new ArrayList<>();
        array.forEach(item -> result.add(item.asText()));
        return result;
    }

    private static ConfigResource resource(JsonNode command) {
        return new ConfigResource(
                ConfigResource.Type.valueOf(command.get("type").asText()), command.get("name").asText());
    }

    private static Object admin(Admin admin, JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "createTopic": {
                NewTopic topic;
                if (command.has("assignments")) {
                    Map<Integer, List<Integer>> assignments = new HashMap<>();
                    int index = 0;
                    for (JsonNode replicas : command.get("assignments")) {
                        List<Integer> ids = new ArrayList<>();
                        replicas.forEach(id -> ids.add(id.asInt()));
                        assignments.put(index++, ids);
                    }
                    topic = new NewTopic(command.get("topic").asText(), assignments);
                } else {
                    topic = new NewTopic(
                            command.get("topic").asText(),
                            command.path("partitions").asInt(1),
                            (short) command.path("replication").asInt(1));
                }
                if (command.has("configs")) {
                    Map<String, String> configs = new HashMap<>();
                    command.get("configs").fields()
                            .forEachRemaining(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
                    topic.configs(configs);
                }
                var options = new CreateTopicsOptions().validateOnly(command.path("validateOnly").asBoolean(false));
                var result = admin.createTopics(List.of(topic), options);
                result.all().get();
                String name = topic.name();
                Map<String, String> configs = new TreeMap<>();
                result.config(name).get().entries().forEach(entry -> configs.put(entry.name(), entry.value()));
                return Map.of(
                        "topicId", result.topicId(name).get().toString(),
                        "partitions", result.numPartitions(name).get(),
                        "replication", result.replicationFactor(name).get(),
                        "configs", configs);
            }
            case "deleteTopic":
                admin.deleteTopics(List.of(command.get("topic").asText())).all().get();
                return true;
            case "deleteTopicById":
                admin.deleteTopics(TopicCollection.ofTopicIds(
                        List.of(Uuid.fromString(command.get("topicId").asText())))).all().get();
                return true;
            case "listTopics":
                return new ArrayList<>(admin.listTopics().names().get());
            case "describeTopic": {
                var topic = admin.describeTopics(List.of(command.get("topic").asText()))
                        .allTopicNames().get().get(command.get("topic").asText());
                List<Object> partitions = new ArrayList<>();
                topic.partitions().forEach(partition -> partitions.add(Map.of(
                        "partition", partition.partition(),
                        "leader", partition.leader() == null ? -1 : partition.leader().id(),
                        "replicas", ids(partition.replicas()),
                        "isr", ids(partition.isr()))));
                return Map.of(
                        "topicId", topic.topicId().toString(),
                        "internal", topic.isInternal(),
                        "partitions", partitions);
            }
            case "createPartitions":
                admin.createPartitions(Map.of(
                        command.get("topic").asText(),
                        NewPartitions.increaseTo(command.get("partitions").asInt()))).all().get();
                return true;
            case "describeConfigs": {
                ConfigResource resource = resource(command);
                var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
                Map<String, Object> result = new TreeMap<>();
                for (ConfigEntry entry : admin.describeConfigs(List.of(resource), options).all().get()
                        .get(resource).entries()) {
                    Map<String, Object> one = new LinkedHashMap<>();
                    one.put("value", entry.value());
                    one.put("source", entry.source().toString());
                    one.put("readOnly", entry.isReadOnly());
                    one.put("sensitive", entry.isSensitive());
                    one.put("type", entry.type().toString());
                    one.put("documented", entry.documentation() != null && !entry.documentation().isEmpty());
                    List<List<String>> synonyms = new ArrayList<>();
                    entry.synonyms().forEach(synonym ->
                            synonyms.add(Arrays.asList(synonym.name(), synonym.value(), synonym.source().toString())));
                    one.put("synonyms", synonyms);
                    result.put(entry.name(), one);
                }
                return result;
            }
            case "alterConfigs": {
                Collection<AlterConfigOp> operations = new ArrayList<>();
                for (JsonNode change : command.get("changes")) {
                    operations.add(new AlterConfigOp(
                            new ConfigEntry(change.get(1).asText(), change.get(2).isNull() ? null : change.get(2).asText()),
                            AlterConfigOp.OpType.valueOf(change.get(0).asText())));
                }
                admin.incrementalAlterConfigs(Map.of(resource(command), operations)).all().get();
                return true;
            }
            case "deleteRecords": {
                TopicPartition partition =
                        new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0));
                return admin.deleteRecords(Map.of(
                        partition, RecordsToDelete.beforeOffset(command.get("offset").asLong())))
                        .lowWatermarks().get(partition).get().lowWatermark();
            }
            case "describeCluster": {
                DescribeClusterResult cluster = admin.describeCluster();
                return Map.of(
                        "clusterId", cluster.clusterId().get(),
                        "controller", cluster.controller().get().id(),
                        "nodes", ids(new ArrayList<>(cluster.nodes().get())));
            }
            case "logDirs": {
                int broker = command.get("broker").asInt();
                Map<String, Object> result = new TreeMap<>();
                admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker).forEach((dir, description) -> {
                    Map<String, Object> replicas = new TreeMap<>();
                    description.replicaInfos().forEach((partition, info) -> replicas.put(
                            partition.toString(),
                            Map.of("size", info.size(), "lag", info.offsetLag(), "future", info.isFuture())));
                    Map<String, Object> one = new LinkedHashMap<>();
                    one.put("error", description.error() == null ? null : description.error().getClass().getSimpleName());
                    one.put("total", description.totalBytes().orElse(-1));
                    one.put("usable", description.usableBytes().orElse(-1));
                    one.put("replicas", replicas);
                    result.put(dir, one);
                });
                return result;
            }
            case "moveReplica": {
                TopicPartitionReplica replica = new TopicPartitionReplica(
                        command.get("topic").asText(), command.path("partition").asInt(0), command.get("broker").asInt());
                admin.alterReplicaLogDirs(Map.of(replica, command.get("dir").asText())).all().get();
                return true;
            }
            case "describeProducers": {
                TopicPartition partition =
                        new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0));
                List<Object> result = new ArrayList<>();
                admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers()
                        .forEach(producer -> result.add(Map.of(
                                "id", producer.producerId(),
                                "epoch", producer.producerEpoch(),
                                "lastSequence", producer.lastSequence())));
                return result;
            }
            default:
                throw new IllegalArgumentException("unknown command: " + command);
        }
    }

    private static List<Integer> ids(List<Node> nodes) {
        List<Integer> result = new ArrayList<>();
        nodes.forEach(node -> result.add(node.id()));
        return result;
    }

    /**
     * Arguments: bootstrap, topic, records, fetch size, begin|end, then settings as name=value. Prints a JSON line when
     * all records are read.
     */
    private static void consumePerf(String[] args) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[1]);
        settings.put("max.partition.fetch.bytes", args[4]);
        settings.put("receive.buffer.bytes", String.valueOf(2 * 1024 * 1024));
        settings.put("check.crcs", "false");
        for (int index = 6; index < args.length; index++) {
            String[] setting = args[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        TopicPartition partition = new TopicPartition(args[2], 0);
        long expectedRecords = Long.parseLong(args[3]);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.assign(List.of(partition));
            if (args[5].equals("end")) {
                consumer.seekToEnd(List.of(partition));
            } else {
                consumer.seekToBeginning(List.of(partition));
            }
            consumer.position(partition);
            System.out.println("ready");
            System.out.flush();
            long records = 0;
            long bytes = 0;
            long start = 0;
            long begin = System.nanoTime();
            long lastProgress = begin;
            while (records < expectedRecords && System.nanoTime() - lastProgress < 60_000_000_000L) {
                var polled = consumer.poll(Duration.ofMillis(100));
                if (polled.isEmpty()) {
                    continue;
                }
                lastProgress = System.nanoTime();
                if (start == 0) {
                    start = args[5].equals("end") ? lastProgress : begin;
                }
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    records++;
                    bytes += record.serializedValueSize();
                }
            }
            double seconds = (lastProgress - start) / 1e9;
            System.out.println(JSON.writeValueAsString(Map.of("records", records, "bytes", bytes, "seconds", seconds)));
        }
    }
}
