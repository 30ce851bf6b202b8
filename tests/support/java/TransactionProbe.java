import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs transactional producers of Apache's Java client. Reads a command per line and prints a response per line. "open"
 * creates a producer with a name, and "close" closes it, so that tests can use several producers at the same time.
 */
public final class TransactionProbe {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    public static void main(String[] args) throws Exception {
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
        String name = command.path("name").asText("");
        switch (command.get("op").asText()) {
            case "open": {
                Map<String, Object> settings = settings(command);
                settings.putIfAbsent("transactional.id", name);
                PRODUCERS.put(name, new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer()));
                return true;
            }
            case "init":
                PRODUCERS.get(name).initTransactions();
                return true;
            case "begin":
                PRODUCERS.get(name).beginTransaction();
                return true;
            case "send":
                return send(PRODUCERS.get(name), command);
            case "sendOffsets": {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                offsets.put(
                        new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0)),
                        new OffsetAndMetadata(command.get("offset").asLong()));
                PRODUCERS.get(name).sendOffsetsToTransaction(
                        offsets, new ConsumerGroupMetadata(command.get("group").asText()));
                return true;
            }
            case "commit":
                PRODUCERS.get(name).commitTransaction();
                return true;
            case "abort":
                PRODUCERS.get(name).abortTransaction();
                return true;
            case "close":
                PRODUCERS.remove(name).close(Duration.ZERO);
                return true;
            case "perf":
                return perf(command);
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

    private static Object send(KafkaProducer<byte[], byte[]> producer, JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode value : command.get("values")) {
            Integer partition = command.hasNonNull("partition") ? command.get("partition").asInt() : null;
            sent.add(producer.send(
                    new ProducerRecord<>(topic, partition, null, value.asText().getBytes(StandardCharsets.UTF_8))));
        }
        producer.flush();
        List<Object> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) {
            offsets.add(future.get().offset());
        }
        return offsets;
    }

    /** Runs the producers in "names" concurrently, each with consecutive transactions. Returns the seconds. */
    private static Object perf(JsonNode command) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<?>> running = new ArrayList<>();
        long began = System.nanoTime();
        for (JsonNode name : command.get("names")) {
            KafkaProducer<byte[], byte[]> producer = PRODUCERS.get(name.asText());
            running.add(threads.submit(() -> transactions(producer, command)));
        }
        threads.shutdown();
        for (Future<?> one : running) {
            one.get();
        }
        return (System.nanoTime() - began) / 1e9;
    }

    private static void transactions(KafkaProducer<byte[], byte[]> producer, JsonNode command) {
        String topic = command.get("topic").asText();
        int transactions = command.get("transactions").asInt();
        int records = command.get("records").asInt();
        byte[] value = new byte[command.path("size").asInt(100)];
        for (int i = 0; i < transactions; i++) {
            producer.beginTransaction();
            for (int n = 0; n < records; n++) {
                producer.send(new ProducerRecord<>(topic, value));
            }
            producer.commitTransaction();
        }
    }

    private static Object admin(Admin admin, JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "listTransactions": {
                ListTransactionsOptions options = new ListTransactionsOptions();
                if (command.has("states")) {
                    List<TransactionState> states = new ArrayList<>();
                    command.get("states").forEach(state -> states.add(TransactionState.parse(state.asText())));
                    options.filterStates(states);
                }
                if (command.has("producerIds")) {
                    List<Long> ids = new ArrayList<>();
                    command.get("producerIds").forEach(id -> ids.add(id.asLong()));
                    options.filterProducerIds(ids);
                }
                if (command.has("duration")) {
                    options.filterOnDuration(command.get("duration").asLong());
                }
                if (command.has("pattern")) {
                    ListTransactionsOptions.class.getMethod("filterOnTransactionalIdPattern", String.class)
                            .invoke(options, command.get("pattern").asText());
                }
                Map<String, Object> result = new TreeMap<>();
                for (TransactionListing listing : admin.listTransactions(options).all().get()) {
                    result.put(listing.transactionalId(), Map.of(
                            "producerId", listing.producerId(), "state", listing.state().toString()));
                }
                return result;
            }
            case "describeTransaction": {
                String id = command.get("id").asText();
                TransactionDescription found = admin.describeTransactions(List.of(id)).description(id).get();
                List<String> partitions = new ArrayList<>();
                found.topicPartitions().forEach(partition -> partitions.add(partition.toString()));
                partitions.sort(null);
                return Map.of(
                        "state", found.state().toString(),
                        "producerId", found.producerId(),
                        "epoch", found.producerEpoch(),
                        "timeoutMs", found.transactionTimeoutMs(),
                        "began", found.transactionStartTimeMs().orElse(-1L),
                        "partitions", partitions);
            }
            case "producers": {
                TopicPartition partition =
                        new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0));
                List<Object> result = new ArrayList<>();
                for (ProducerState state :
                        admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers()) {
                    result.add(Map.of(
                            "id", state.producerId(),
                            "epoch", state.producerEpoch(),
                            "coordinatorEpoch", state.coordinatorEpoch().orElse(-1),
                            "openSince", state.currentTransactionStartOffset().orElse(-1L)));
                }
                return result;
            }
            case "abortTransaction": {
                TopicPartition partition =
                        new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0));
                admin.abortTransaction(new AbortTransactionSpec(
                        partition,
                        command.get("producerId").asLong(),
                        (short) command.get("epoch").asInt(),
                        command.path("coordinatorEpoch").asInt(-1))).all().get();
                return true;
            }
            case "fence": {
                admin.fenceProducers(List.of(command.get("id").asText())).all().get();
                return true;
            }
            default:
                throw new IllegalArgumentException("unknown command: " + command);
        }
    }
}
