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
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Group operations of the newest Java client: subscriptions with patterns that the broker resolves, and descriptions of
 * groups of the new protocol. Reads a command per line and prints a response per line. "open" creates a consumer with a
 * name, and "close" closes it.
 */
public final class GroupProbe {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, KafkaConsumer<byte[], byte[]>> CONSUMERS = new HashMap<>();

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

    private static Map<String, Object> settings(JsonNode command) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", command.get("bootstrap").asText());
        JsonNode more = command.get("config");
        if (more != null) {
            more.fields().forEachRemaining(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        }
        return settings;
    }

    private static Object run(JsonNode command) throws Exception {
        String name = command.path("name").asText("");
        switch (command.get("op").asText()) {
            case "open": {
                Map<String, Object> settings = settings(command);
                settings.put("group.protocol", "consumer");
                settings.put("auto.offset.reset", "earliest");
                KafkaConsumer<byte[], byte[]> consumer =
                        new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                CONSUMERS.put(name, consumer);
                if (command.hasNonNull("pattern")) {
                    consumer.subscribe(new SubscriptionPattern(command.get("pattern").asText()));
                } else {
                    List<String> topics = new ArrayList<>();
                    command.get("topics").forEach(topic -> topics.add(topic.asText()));
                    consumer.subscribe(topics);
                }
                return true;
            }
            case "poll": {
                KafkaConsumer<byte[], byte[]> consumer = CONSUMERS.get(name);
                List<String> values = new ArrayList<>();
                for (ConsumerRecord<byte[], byte[]> record :
                        consumer.poll(Duration.ofMillis(command.path("ms").asLong(200)))) {
                    values.add(new String(record.value(), StandardCharsets.UTF_8));
                }
                Set<String> assigned = new TreeSet<>();
                for (TopicPartition partition : consumer.assignment()) {
                    assigned.add(partition.toString());
                }
                return Map.of("values", values, "assigned", assigned);
            }
            case "close":
                CONSUMERS.remove(name).close();
                return true;
            default:
                try (Admin admin = Admin.create(settings(command))) {
                    return admin(admin, command);
                }
        }
    }

    private static Object admin(Admin admin, JsonNode command) throws Exception {
        String group = command.path("group").asText("");
        switch (command.get("op").asText()) {
            case "describe":
                return description(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get());
            case "list": {
                Map<String, Object> found = new TreeMap<>();
                for (GroupListing one : admin.listGroups().all().get()) {
                    found.put(
                            one.groupId(),
                            Map.of(
                                    "type", one.type().map(Object::toString).orElse(""),
                                    "state", one.groupState().map(Object::toString).orElse("")));
                }
                return found;
            }
            case "delete":
                admin.deleteConsumerGroups(List.of(group)).all().get();
                return true;
            default:
                throw new IllegalArgumentException("no such operation");
        }
    }

    private static Object description(ConsumerGroupDescription group) {
        List<Object> members = new ArrayList<>();
        for (MemberDescription member : group.members()) {
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("id", member.consumerId());
            one.put("client", member.clientId());
            one.put("instance", member.groupInstanceId().orElse(null));
            one.put("assigned", names(member.assignment().topicPartitions()));
            one.put("target", member.targetAssignment().map(found -> names(found.topicPartitions())).orElse(null));
            one.put("epoch", member.memberEpoch().orElse(null));
            one.put("upgraded", member.upgraded().orElse(null));
            members.add(one);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("type", group.type().toString());
        result.put("state", group.groupState().toString());
        result.put("assignor", group.partitionAssignor());
        result.put("epoch", group.groupEpoch().orElse(null));
        result.put("targetEpoch", group.targetAssignmentEpoch().orElse(null));
        result.put("members", members);
        return result;
    }

    private static Set<String> names(Set<TopicPartition> partitions) {
        Set<String> names = new TreeSet<>();
        partitions.forEach(partition -> names.add(partition.toString()));
        return names;
    }
}
