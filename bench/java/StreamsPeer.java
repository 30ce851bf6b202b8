import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/**
 * The topologies of bench/streams_jobs.py in Kafka Streams.
 *
 * StreamsPeer TOPOLOGY SERVERS FOLDER COMMIT_INTERVAL OUTPUT...: each round runs the topology from its start until it has
 * committed all input, with the next output topic. Prints RESULT and a JSON list with the seconds of each round.
 */
public class StreamsPeer {
    interface Make { void make(StreamsBuilder b, String out); }
    static final Consumed<String, String> TEXTS = Consumed.with(Serdes.String(), Serdes.String());
    static final Consumed<String, Long> NUMBERS = Consumed.with(Serdes.String(), Serdes.Long());
    static final Produced<String, Long> SUMS = Produced.with(Serdes.String(), Serdes.Long());
    static final Map<String, Make> TOPOLOGIES = new HashMap<>();
    static {
        Make wordCount = (b, out) -> b.stream("lines", TEXTS)
            .flatMapValues(line -> Arrays.asList(line.toLowerCase(Locale.ROOT).split(" ")))
            .groupBy((key, word) -> word).count().toStream().to(out, SUMS);
        TOPOLOGIES.put("word-count", wordCount);
        TOPOLOGIES.put("word-count-expressions", wordCount);
        TOPOLOGIES.put("windowed-sum-expressions", (b, out) -> b.stream("numbers", NUMBERS).groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(10)))
            .reduce(Long::sum)
            .toStream((key, sum) -> key.key() + "@" + key.window().start()).to(out, SUMS));
        TOPOLOGIES.put("aggregate", (b, out) -> b.stream("numbers", NUMBERS).groupByKey()
            .aggregate(() -> 0L, (key, value, sum) -> sum + value, Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream().to(out, SUMS));
        TOPOLOGIES.put("stream-table-join", (b, out) -> b.stream("stream", NUMBERS)
            .join(b.table("table", NUMBERS), (value, other) -> value + other).to(out, SUMS));
        TOPOLOGIES.put("stream-stream-join", (b, out) -> b.stream("left", NUMBERS)
            .join(b.stream("right", NUMBERS), (value, other) -> value + other,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(10)),
                StreamJoined.with(Serdes.String(), Serdes.Long(), Serdes.Long()))
            .to(out, SUMS));
    }

    public static void main(String[] args) throws Exception {
        String servers = args[1];
        List<String> seconds = new ArrayList<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            for (int round = 4; round < args.length; round++) {
                StreamsBuilder builder = new StreamsBuilder();
                TOPOLOGIES.get(args[0]).make(builder, args[round]);
                Topology topology = builder.build();
                Properties settings = new Properties();
                settings.put("application.id", args[round]);
                settings.put("bootstrap.servers", servers);
                settings.put("state.dir", args[2]);
                settings.put("commit.interval.ms", Long.parseLong(args[3]));
                settings.put("num.stream.threads", 2);
                settings.put("processing.guarantee", "exactly_once_v2");
                settings.put("auto.offset.reset", "earliest");
                settings.put("default.key.serde", Serdes.String().getClass());
                settings.put("default.value.serde", Serdes.String().getClass());
                try (KafkaStreams streams = new KafkaStreams(topology, settings)) {
                    long started = System.nanoTime();
                    streams.start();
                    while (!done(admin, args[round], topology)) {
                        if (streams.state() == KafkaStreams.State.ERROR) System.exit(1);
                        Thread.sleep(20);
                    }
                    seconds.add(String.valueOf((System.nanoTime() - started) / 1e9));
                    streams.close();
                    streams.cleanUp();
                }
            }
        }
        System.out.println("RESULT " + seconds);
    }

    /** Whether all source topics are committed to their ends. Tasks write before they commit: offsets are read before ends. */
    static boolean done(Admin admin, String application, Topology topology) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = admin.listConsumerGroupOffsets(application).partitionsToOffsetAndMetadata().get();
        Set<String> existing = admin.listTopics().names().get();
        Set<String> topics = new HashSet<>();
        for (TopologyDescription.Subtopology sub : topology.describe().subtopologies())
            for (TopologyDescription.Node node : sub.nodes())
                if (node instanceof TopologyDescription.Source)
                    for (String name : ((TopologyDescription.Source) node).topicSet())
                        topics.add(existing.contains(name) ? name : application + "-" + name);
        if (!existing.containsAll(topics)) return false;
        Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
        admin.describeTopics(topics).allTopicNames().get().values().forEach(topic -> topic.partitions().forEach(
            partition -> latest.put(new TopicPartition(topic.name(), partition.partition()), OffsetSpec.latest())));
        for (Map.Entry<TopicPartition, ListOffsetsResult.ListOffsetsResultInfo> end : admin.listOffsets(latest).all().get().entrySet()) {
            OffsetAndMetadata committed = offsets.get(end.getKey());
            if (end.getValue().offset() > (committed == null ? 0 : committed.offset())) return false;
        }
        return true;
    }
}
