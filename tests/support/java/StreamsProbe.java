import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs the topologies of streams_cases.py with Kafka Streams.
 *
 * StreamsProbe CACHE: with Kafka's TopologyTestDriver and the records of streams_cases.py; prints topologies and output.
 * StreamsProbe brokers SERVERS INPUTS OUTPUTS FOLDER CACHE GUARANTEE NAME...: each named topology as an application on
 *   brokers until it has read all input. The topics of a case are INPUTS.NAME.a and OUTPUTS.NAME.out.
 * StreamsProbe copartitioned SERVERS INPUTS FOLDER NAME...: prints for each topology of COPARTITIONED whether it starts.
 */
public class StreamsProbe {
    static Consumed<String, String> c() { return Consumed.with(Serdes.String(), Serdes.String()); }
    interface Make { void make(StreamsBuilder b); }
    static final Map<String, Make> CASES = new LinkedHashMap<>();
    /** Topologies with the topics a, b and c, of which some must have the same number of partitions. */
    static final Map<String, Make> COPARTITIONED = new LinkedHashMap<>();
    static String inputs = "", outputs = "";
    static void run(String name, Make make) { CASES.put(name, make); }
    /** The name of a topic of the case that is being built. */
    static String t(String topic) { return (topic.startsWith("out") ? outputs : inputs) + topic; }
    static Topology build(String name, Make make, Properties p) {
        StreamsBuilder b = new StreamsBuilder();
        make.make(b);
        return b.build(p);
    }
    static Properties settings(String application, String servers, String folder) {
        Properties p = new Properties();
        p.put("application.id", application); p.put("bootstrap.servers", servers);
        p.put("default.key.serde", Serdes.String().getClass()); p.put("default.value.serde", Serdes.String().getClass());
        p.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
        p.put("__emit.interval.ms.kstreams.windowed.aggregation__", 0L);
        p.put("statestore.cache.max.bytes", cache); p.put("state.dir", folder);
        return p;
    }
    static void drive(String name, Make make) {
        Properties p = settings("test-app", "x:1", "/tmp/streams-java-" + ProcessHandle.current().pid());
        Topology t = build(name, make, p);
        System.out.println("=== " + name);
        System.out.print(t.describe());
        System.out.println("---");
        try (TopologyTestDriver d = new TopologyTestDriver(t, p, java.time.Instant.ofEpochMilli(0))) {
            TestOutputTopic<String, String> out = null;
            for (Object[] r : RECORDS) {
                String topic = (String) r[0];
                try { d.createInputTopic(topic, new StringSerializer(), new StringSerializer()).pipeInput((String) r[1], (String) r[2], ((Number) r[3]).longValue()); }
                catch (IllegalArgumentException e) { continue; }
                catch (RuntimeException e) { System.out.println("error " + e); break; }
            }
            Set<String> topics = new TreeSet<>(d.producedTopicNames());
            for (String topic : topics) {
                if (!topic.startsWith("out")) continue;
                out = d.createOutputTopic(topic, new StringDeserializer(), new StringDeserializer());
                for (TestRecord<String, String> o : out.readRecordsToList())
                    System.out.println(topic + " " + o.key() + " " + o.value() + " " + o.timestamp());
            }
        }
    }
    /** An application on brokers. Its names of topics are fixed when it is built. */
    static class Application implements AutoCloseable {
        final String id; final Topology topology; final KafkaStreams streams;
        volatile Throwable error;
        Application(String id, Make make, Properties p) {
            this.id = id;
            topology = build(id, make, p);
            streams = new KafkaStreams(topology, p);
            streams.setUncaughtExceptionHandler(e -> {
                error = e;
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
        }
        /** The topics that the application commits offsets of: all sources but those of global stores. */
        boolean reads(String topic) {
            for (TopologyDescription.Subtopology sub : topology.describe().subtopologies())
                for (TopologyDescription.Node node : sub.nodes())
                    if (node instanceof TopologyDescription.Source) {
                        TopologyDescription.Source source = (TopologyDescription.Source) node;
                        if (source.topicPattern() != null ? source.topicPattern().matcher(topic).matches()
                            : source.topicSet().stream().anyMatch(n -> topic.equals(n) || topic.equals(id + "-" + n))) return true;
                    }
            return false;
        }
        /** Whether it has committed the end of all topics. An upstream task writes before it commits: offsets are read before ends. */
        boolean done(org.apache.kafka.clients.admin.Admin admin) throws Exception {
            if (error != null) throw new RuntimeException(id, error);
            Map<TopicPartition, org.apache.kafka.clients.consumer.OffsetAndMetadata> offsets =
                admin.listConsumerGroupOffsets(id).partitionsToOffsetAndMetadata().get();
            List<String> topics = new ArrayList<>();
            for (String topic : admin.listTopics().names().get()) if (reads(topic)) topics.add(topic);
            Map<TopicPartition, org.apache.kafka.clients.admin.OffsetSpec> wanted = new HashMap<>();
            admin.describeTopics(topics).allTopicNames().get().values().forEach(d -> d.partitions().forEach(
                q -> wanted.put(new TopicPartition(d.name(), q.partition()), org.apache.kafka.clients.admin.OffsetSpec.latest())));
            for (Map.Entry<TopicPartition, org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo> end : admin.listOffsets(wanted).all().get().entrySet()) {
                org.apache.kafka.clients.consumer.OffsetAndMetadata at = offsets.get(end.getKey());
                if ((at == null ? 0 : at.offset()) < end.getValue().offset()) return false;
            }
            return streams.state() == KafkaStreams.State.RUNNING;
        }
        public void close() { streams.close(ms(30000)); streams.cleanUp(); }
    }
    static final int TOGETHER = 12;
    static void onBrokers(String servers, String in, String out, String folder, String guarantee, List<String> names) throws Exception {
        try (org.apache.kafka.clients.admin.Admin admin = org.apache.kafka.clients.admin.Admin.create(Map.of("bootstrap.servers", servers))) {
            for (int from = 0; from < names.size(); from += TOGETHER) {
                List<Application> running = new ArrayList<>();
                for (String name : names.subList(from, Math.min(from + TOGETHER, names.size()))) {
                    inputs = in + "." + name + "."; outputs = out + "." + name + ".";
                    Properties p = settings(out + "." + name, servers, folder);
                    p.put("processing.guarantee", guarantee); p.put("auto.offset.reset", "earliest"); p.put("commit.interval.ms", 100);
                    p.put("replication.factor", 1); p.put("topic.retention.ms", "-1");
                    // A task waits for topics that have nothing yet, so that the order by time does not depend on the machine.
                    p.put("max.task.idle.ms", 3000L);
                    Application application = new Application(out + "." + name, CASES.get(name), p);
                    application.streams.start();
                    running.add(application);
                }
                for (Application application : running) while (!application.done(admin)) Thread.sleep(100);
                for (Application application : running) application.close();
            }
        }
        System.out.println("done");
    }
    static void copartitioned(String servers, String in, String folder, List<String> names) throws Exception {
        Map<String, Application> running = new LinkedHashMap<>();
        for (String name : names) {
            inputs = in; outputs = in;
            Make make = COPARTITIONED.get(name);
            // Without a repartition topic anywhere in a topology, Kafka does not check at all.
            Make checked = name.equals("nothing_repartitioned") ? make : b -> {
                make.make(b);
                b.stream(t("d"), c()).groupBy((k, v) -> v).count();
            };
            Application application = new Application(in + name, checked, settings(in + name, servers, folder));
            application.streams.start();
            running.put(name, application);
        }
        for (Map.Entry<String, Application> entry : running.entrySet()) {
            Application application = entry.getValue();
            while (application.error == null && application.streams.state() != KafkaStreams.State.RUNNING) Thread.sleep(50);
            Throwable error = application.error;
            while (error != null && error.getCause() != null) error = error.getCause();
            System.out.println(entry.getKey() + " " + (error == null ? "starts" : error.getClass().getSimpleName() + " " + error.getMessage()));
        }
        for (Application application : running.values()) application.close();
    }
    static long cache = 0;
    static final Object[][] RECORDS;
    static {
        List<Object[]> l = new ArrayList<>();
        // Deterministic pseudo-random records of the topics a and b. Some are late.
        long x = 12345;
        long t = 1000;
        for (int i = 0; i < 120; i++) {
            x = (x * 1103515245L + 12345L) % 2147483648L; long r1 = x >> 8;
            x = (x * 1103515245L + 12345L) % 2147483648L; long r2 = x >> 8;
            x = (x * 1103515245L + 12345L) % 2147483648L; long r3 = x >> 8;
            t += r1 % 7;
            long at = Math.max(0, t - (r2 % 5 == 0 ? r3 % 60 : 0));
            String key = "k" + (r2 % 4);
            String value = r3 % 11 == 0 ? null : "v" + (r3 % 5);
            l.add(new Object[]{r1 % 2 == 0 ? "a" : "b", key, value, at});
        }
        RECORDS = l.toArray(new Object[0][]);
    }
    static String w(Windowed<String> k) { return k.key() + "@" + k.window().start() + "/" + k.window().end(); }
    static Materialized<String, String, org.apache.kafka.streams.state.KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>> m(String n) { return Materialized.as(n); }
    static Duration ms(long n) { return Duration.ofMillis(n); }
    static <K, V> KTable<K, V> versioned(StreamsBuilder b, String topic, Consumed<K, V> how, String store) {
        return b.table(topic, how, Materialized.as(Stores.persistentVersionedKeyValueStore(store, ms(40))));
    }
    static String key(String value) { return value.equals("v4") ? null : "k" + value.charAt(1); }
    static org.apache.kafka.streams.state.StoreBuilder<org.apache.kafka.streams.state.KeyValueStore<String, String>> kept(String n) {
        return Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(n), Serdes.String(), Serdes.String());
    }
    /** Appends every value to the stored text of its key. */
    static class Appending implements ValueTransformerWithKey<String, String, String> {
        final String name; org.apache.kafka.streams.state.KeyValueStore<String, String> store; org.apache.kafka.streams.processor.ProcessorContext context;
        Appending(String name) { this.name = name; }
        public void init(org.apache.kafka.streams.processor.ProcessorContext c) { context = c; store = c.getStateStore(name); }
        public String transform(String key, String value) {
            String had = store.get(key);
            String now = (had == null || had.length() > 20 ? "" : had) + value;
            store.put(key, now);
            return value != null && value.equals("v3") ? null : now + "@" + context.timestamp() + "/" + context.partition();
        }
        public void close() {}
    }
    /** Replaces missing values by a text. */
    static class Filling implements ValueTransformerWithKey<String, String, String> {
        org.apache.kafka.streams.processor.ProcessorContext context;
        public void init(org.apache.kafka.streams.processor.ProcessorContext c) { context = c; }
        public String transform(String key, String value) { return value == null ? "no-" + key : value + "@" + context.timestamp(); }
        public void close() {}
    }
    /** Appends the values of a topic to a global store, by key. */
    static class Keeping implements org.apache.kafka.streams.processor.api.Processor<String, String, Void, Void> {
        org.apache.kafka.streams.state.KeyValueStore<String, String> store;
        public void init(org.apache.kafka.streams.processor.api.ProcessorContext<Void, Void> c) { store = c.getStateStore("G"); }
        public void process(org.apache.kafka.streams.processor.api.Record<String, String> r) {
            if (r.value() == null) { store.delete(r.key()); return; }
            String had = store.get(r.key());
            store.put(r.key(), had == null || had.length() > 10 ? r.value() : had + r.value());
        }
    }
    static class Looking implements org.apache.kafka.streams.processor.api.Processor<String, String, String, String> {
        org.apache.kafka.streams.state.KeyValueStore<String, String> store; org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context;
        public void init(org.apache.kafka.streams.processor.api.ProcessorContext<String, String> c) { context = c; store = c.getStateStore("G"); }
        public void process(org.apache.kafka.streams.processor.api.Record<String, String> r) { context.forward(r.withValue(r.value() + store.get(r.key()))); }
    }
    /** Counts by key in a store, and forwards a record with another key. */
    static class Counting implements org.apache.kafka.streams.processor.api.Processor<String, String, String, String> {
        org.apache.kafka.streams.state.KeyValueStore<String, String> store; org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context;
        public void init(org.apache.kafka.streams.processor.api.ProcessorContext<String, String> c) { context = c; store = c.getStateStore("N"); }
        public void process(org.apache.kafka.streams.processor.api.Record<String, String> r) {
            String had = store.get(r.key());
            String now = had == null ? "1" : "" + (Integer.parseInt(had) + 1);
            store.put(r.key(), now);
            context.forward(r.withKey(r.key() + "#" + now));
        }
    }
    /** Replaces a value by the one before it of the same key. */
    static class Before implements org.apache.kafka.streams.processor.api.FixedKeyProcessor<String, String, String> {
        org.apache.kafka.streams.state.KeyValueStore<String, String> store; org.apache.kafka.streams.processor.api.FixedKeyProcessorContext<String, String> context;
        public void init(org.apache.kafka.streams.processor.api.FixedKeyProcessorContext<String, String> c) { context = c; store = c.getStateStore("P"); }
        public void process(org.apache.kafka.streams.processor.api.FixedKeyRecord<String, String> r) {
            String had = store.get(r.key());
            store.put(r.key(), r.value());
            context.forward(r.withValue(had + ">" + r.value()));
        }
    }
    public static void main(String[] args) throws Exception {
        cases();
        List<String> names = Arrays.asList(args);
        if (args[0].equals("brokers")) {
            cache = Long.parseLong(args[5]);
            onBrokers(args[1], args[2], args[3], args[4], args[6], names.subList(7, names.size()));
        } else if (args[0].equals("copartitioned")) {
            copartitionedCases();
            copartitioned(args[1], args[2], args[3], names.subList(4, names.size()));
        } else {
            cache = Long.parseLong(args[0]);
            CASES.forEach(StreamsProbe::drive);
        }
    }
    static void cases() {
        run("count", b -> b.stream(t("a"), c()).groupByKey().count().toStream().mapValues(v -> "" + v).to(t("out")));
        run("group_by", b -> b.stream(t("a"), c()).groupBy((k, v) -> v == null ? "n" : v).count(Materialized.as("Counts")).toStream().mapValues(v -> "" + v).to(t("out")));
        run("reduce", b -> b.stream(t("a"), c()).groupByKey().reduce((x, y) -> x + y).toStream().to(t("out")));
        run("aggregate", b -> b.stream(t("a"), c()).groupByKey().aggregate(() -> "", (k, v, s) -> s + v).toStream().to(t("out")));
        run("stateless", b -> {
            String to = t("out-");
            KStream<String, String> s = b.stream(Arrays.asList(t("a"), t("b")), c());
            s.filter((k, v) -> v != null).mapValues(v -> v + "!").to(t("out1"));
            s.filterNot((k, v) -> v != null).map((k, v) -> KeyValue.pair(k + "x", "null")).to(t("out2"));
            s.flatMap((k, v) -> Arrays.asList(KeyValue.pair(k, "1"), KeyValue.pair(k, "2"))).peek((k, v) -> {}).selectKey((k, v) -> v).to(t("out3"));
            s.filter((k, v) -> v != null).flatMapValues(v -> Arrays.asList(v, v)).to((k, v, rc) -> to + k);
            s.foreach((k, v) -> {});
        });
        run("branch", b -> {
            Map<String, KStream<String, String>> m = b.stream(t("a"), c()).split(Named.as("p-")).branch((k, v) -> k.equals("k1"), Branched.as("one")).branch((k, v) -> k.equals("k2")).defaultBranch();
            m.get("p-one").to(t("out1")); m.get("p-2").to(t("out2")); m.get("p-0").to(t("out3"));
        });
        run("merge", b -> b.stream(t("a"), c()).merge(b.stream(t("b"), c())).to(t("out")));
        run("repartition", b -> b.stream(t("a"), c()).repartition(Repartitioned.with(Serdes.String(), Serdes.String())).groupByKey().count().toStream().mapValues(v -> "" + v).to(t("out")));
        run("tumbling", b -> b.stream(t("a"), c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(20), Duration.ofMillis(10))).count().toStream((k, v) -> w(k)).mapValues(v -> "" + v).to(t("out")));
        run("hopping", b -> b.stream(t("a"), c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(20), Duration.ofMillis(15)).advanceBy(Duration.ofMillis(5))).reduce((x, y) -> x + y).toStream((k, v) -> w(k)).to(t("out")));
        run("sliding", b -> b.stream(t("a"), c()).groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(20), Duration.ofMillis(30))).aggregate(() -> "", (k, v, s) -> s + v).toStream((k, v) -> w(k)).to(t("out")));
        run("sliding_early", b -> b.stream(t("a"), c()).groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(5000), Duration.ofMillis(3000))).count().toStream((k, v) -> w(k)).mapValues(v -> "" + v).to(t("out")));
        run("session", b -> b.stream(t("a"), c()).groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(8), Duration.ofMillis(20))).count().toStream((k, v) -> w(k)).mapValues(v -> v == null ? null : "" + v).to(t("out")));
        run("session_reduce", b -> b.stream(t("a"), c()).groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(8), Duration.ofMillis(20))).reduce((x, y) -> x + y).toStream((k, v) -> w(k)).to(t("out")));
        run("suppress", b -> b.stream(t("a"), c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(20), Duration.ofMillis(10))).count().suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())).toStream((k, v) -> w(k)).mapValues(v -> "" + v).to(t("out")));
        run("suppress_time", b -> b.table(t("a"), c()).suppress(Suppressed.untilTimeLimit(Duration.ofMillis(15), Suppressed.BufferConfig.maxRecords(3))).toStream().to(t("out")));
        run("stream_join", b -> b.stream(t("a"), c()).join(b.stream(t("b"), c()), (x, y) -> x + y, JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(20))).to(t("out")));
        run("stream_left_join", b -> b.stream(t("a"), c()).leftJoin(b.stream(t("b"), c()), (x, y) -> x + y, JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(20))).to(t("out")));
        run("stream_outer_join", b -> b.stream(t("a"), c()).outerJoin(b.stream(t("b"), c()), (x, y) -> x + y, JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(20)).before(Duration.ofMillis(5))).to(t("out")));
        run("table_join_stream", b -> b.stream(t("a"), c()).join(b.table(t("b"), c()), (x, y) -> x + y).to(t("out")));
        run("table_left_join_stream", b -> b.stream(t("a"), c()).selectKey((k, v) -> k).leftJoin(b.table(t("b"), c()), (x, y) -> x + y).to(t("out")));
        run("global_join", b -> b.stream(t("a"), c()).join(b.globalTable(t("b"), c()), (k, v) -> k, (x, y) -> x + y).to(t("out")));
        run("tables_join", b -> b.table(t("a"), c()).join(b.table(t("b"), c()), (x, y) -> x + y).toStream().to(t("out")));
        run("tables_left_join", b -> b.table(t("a"), c()).leftJoin(b.table(t("b"), c()), (x, y) -> x + y).toStream().to(t("out")));
        run("tables_outer_join", b -> b.table(t("a"), c()).outerJoin(b.table(t("b"), c()), (x, y) -> x + y, m("J")).toStream().to(t("out")));
        run("table_filter", b -> b.table(t("a"), c()).filter((k, v) -> !v.equals("v1")).toStream().to(t("out")));
        run("table_filter_store", b -> b.table(t("a"), c()).filter((k, v) -> !v.equals("v1"), m("F")).mapValues(v -> v + "!").toStream().to(t("out")));
        run("table_group", b -> b.table(t("a"), c()).groupBy((k, v) -> KeyValue.pair(v, k)).count().toStream().mapValues(v -> "" + v).to(t("out")));
        run("table_group_aggregate", b -> b.table(t("a"), c()).filter((k, v) -> !v.equals("v3")).groupBy((k, v) -> KeyValue.pair(v, k)).aggregate(() -> "", (k, v, s) -> s + "+" + v, (k, v, s) -> s + "-" + v).toStream().to(t("out")));
        run("table_group_reduce", b -> b.table(t("a"), c()).groupBy((k, v) -> KeyValue.pair(k, v)).reduce((x, y) -> x + "+" + y, (x, y) -> x + "-" + y).toStream().to(t("out")));
        run("to_table", b -> b.stream(t("a"), c()).toTable().toStream().to(t("out")));
        run("join_of_count", b -> b.stream(t("a"), c()).join(b.stream(t("b"), c()).groupByKey().count(), (x, y) -> x + y).to(t("out")));
        run("fk_join", b -> b.table(t("a"), c()).join(b.table(t("b"), c()), StreamsProbe::key, (x, y) -> x + y).toStream().to(t("out")));
        run("fk_left_join", b -> b.table(t("a"), c()).leftJoin(b.table(t("b"), c()), StreamsProbe::key, (x, y) -> x + y).toStream().to(t("out")));
        run("fk_join_grouped", b -> b.table(t("a"), c()).filter((k, v) -> !v.equals("v1")).join(b.table(t("b"), c()).mapValues(v -> v + "!"), StreamsProbe::key, (x, y) -> x + y, TableJoined.as("named"), m("FK")).groupBy((k, v) -> KeyValue.pair(v, k)).count().toStream().mapValues(v -> "" + v).to(t("out")));
        run("cogroup", b -> b.stream(t("a"), c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream(t("b"), c()).groupByKey(), (k, v, s) -> s + "/" + v).aggregate(() -> "").toStream().to(t("out")));
        run("cogroup_regrouped", b -> b.stream(t("a"), c()).groupBy((k, v) -> v == null ? "n" : v).<String>cogroup((k, v, s) -> s + v).cogroup(b.stream(t("b"), c()).groupByKey(), (k, v, s) -> s + "/" + v).aggregate(() -> "", Named.as("both"), m("C")).toStream().to(t("out")));
        run("cogroup_tumbling", b -> b.stream(t("a"), c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream(t("b"), c()).groupByKey(), (k, v, s) -> s + "/" + v).windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(10))).aggregate(() -> "").toStream((k, v) -> w(k)).to(t("out")));
        run("cogroup_sliding", b -> b.stream(t("a"), c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream(t("b"), c()).groupByKey(), (k, v, s) -> s + "/" + v).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(20), ms(30))).aggregate(() -> "").toStream((k, v) -> w(k)).to(t("out")));
        run("cogroup_session", b -> b.stream(t("a"), c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream(t("b"), c()).groupByKey(), (k, v, s) -> s + "/" + v).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(8), ms(20))).aggregate(() -> "", (k, x, y) -> x + "+" + y).toStream((k, v) -> w(k)).to(t("out")));
        run("final_tumbling", b -> b.stream(t("a"), c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(10))).emitStrategy(EmitStrategy.onWindowClose()).count(Materialized.<String, Long, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.Long()).withRetention(ms(10000))).toStream((k, v) -> w(k)).mapValues(v -> "" + v).to(t("out")));
        run("final_hopping", b -> b.stream(t("a"), c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(15)).advanceBy(ms(5))).emitStrategy(EmitStrategy.onWindowClose()).reduce((x, y) -> x + y, Materialized.<String, String, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.String()).withRetention(ms(10000))).toStream((k, v) -> w(k)).to(t("out")));
        run("final_sliding", b -> b.stream(t("a"), c()).groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(20), ms(30))).emitStrategy(EmitStrategy.onWindowClose()).aggregate(() -> "", (k, v, s) -> s + v, Materialized.<String, String, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.String()).withRetention(ms(10000))).toStream((k, v) -> w(k)).to(t("out")));
        run("final_session", b -> b.stream(t("a"), c()).groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(8), ms(20))).emitStrategy(EmitStrategy.onWindowClose()).count(Materialized.<String, Long, org.apache.kafka.streams.state.SessionStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.Long()).withRetention(ms(10000))).toStream((k, v) -> w(k)).mapValues(v -> "" + v).to(t("out")));
        run("final_grouped", b -> b.stream(t("a"), c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(10))).emitStrategy(EmitStrategy.onWindowClose()).count(Materialized.<String, Long, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.Long()).withRetention(ms(10000))).groupBy((k, v) -> KeyValue.pair(k.key(), "" + v), Grouped.with(Serdes.String(), Serdes.String())).reduce((x, y) -> x + "+" + y, (x, y) -> x + "-" + y).toStream().to(t("out")));
        run("join_suppressed", b -> b.table(t("a"), c()).suppress(Suppressed.untilTimeLimit(ms(15), Suppressed.BufferConfig.maxRecords(3))).join(b.table(t("b"), c()), (x, y) -> x + y).toStream().to(t("out")));
        run("join_suppressed_filter", b -> b.table(t("b"), c()).outerJoin(b.table(t("a"), c()).filter((k, v) -> !v.equals("v1")).suppress(Suppressed.untilTimeLimit(ms(15), Suppressed.BufferConfig.maxRecords(3))).mapValues(v -> v + "!"), (x, y) -> x + y).toStream().to(t("out")));
        run("stream_join_suppressed", b -> b.stream(t("b"), c()).leftJoin(b.table(t("a"), c()).suppress(Suppressed.untilTimeLimit(ms(15), Suppressed.BufferConfig.maxRecords(3))), (x, y) -> x + y).to(t("out")));
        run("versioned_join_stream", b -> b.stream(t("a"), c()).leftJoin(versioned(b, t("b"), c(), "V"), (x, y) -> x + y).to(t("out")));
        run("versioned_join_grace", b -> b.stream(t("a"), c()).join(versioned(b, t("b"), c(), "V"), (x, y) -> x + y, Joined.with(Serdes.String(), Serdes.String(), Serdes.String(), "late", ms(10))).to(t("out")));
        run("versioned_join", b -> versioned(b, t("a"), c(), "V").leftJoin(versioned(b, t("b"), c(), "W"), (x, y) -> x + y).toStream().to(t("out")));
        run("versioned_join_mapped", b -> versioned(b, t("a"), c(), "V").filter((k, v) -> !v.equals("v1")).mapValues(v -> v + "!").join(b.table(t("b"), c()), (x, y) -> x + y).toStream().to(t("out")));
        run("versioned_group", b -> versioned(b, t("a"), c(), "V").groupBy((k, v) -> KeyValue.pair(v, k)).count().toStream().mapValues(v -> "" + v).to(t("out")));
        run("versioned_fk_join", b -> versioned(b, t("a"), c(), "V").leftJoin(versioned(b, t("b"), c(), "W"), StreamsProbe::key, (x, y) -> x + y).toStream().to(t("out")));
        run("versioned_to_stream", b -> versioned(b, t("a"), c(), "V").filter((k, v) -> !v.equals("v1")).toStream().to(t("out")));
        run("versioned_aggregate", b -> b.stream(t("a"), c()).join(b.stream(t("b"), c()).groupByKey().count(Materialized.<String, Long>as(Stores.persistentVersionedKeyValueStore("V", ms(40)))), (x, y) -> x + y).to(t("out")));
        run("expressions", b -> b.stream(t("a"), c()).filter((k, v) -> v != null && !k.startsWith("k3")).filterNot((k, v) -> v.equals("v1") || v.equals("v2") || v.equals("v2x")).mapValues((k, v) -> v.toUpperCase() + "/" + k).flatMapValues(v -> Arrays.asList(v.split("/"))).selectKey((k, v) -> k + v.toLowerCase()).to(t("out")));
        run("expressions_of_null", b -> b.stream(t("b"), c()).filterNot((k, v) -> v != null && v.compareTo("v2") < 0).mapValues(v -> v == null ? null : v + "!").to(t("out")));
        run("transform_values", b -> b.addStateStore(kept("T")).table(t("a"), c()).transformValues(() -> new Appending("T"), "T").toStream().to(t("out")));
        run("transform_values_store", b -> b.addStateStore(kept("T")).table(t("a"), c()).transformValues(() -> new Appending("T"), m("M"), Named.as("appending"), "T").filter((k, v) -> !v.startsWith("v1")).toStream().to(t("out")));
        run("transform_values_join", b -> b.table(t("a"), c()).leftJoin(b.table(t("b"), c()).transformValues(Filling::new), (x, y) -> x + y).toStream().to(t("out")));
        run("transform_values_group", b -> b.table(t("a"), c()).transformValues(Filling::new, Materialized.with(Serdes.String(), Serdes.String())).groupBy((k, v) -> KeyValue.pair(k, v)).reduce((x, y) -> x + "+" + y, (x, y) -> x + "-" + y).toStream().to(t("out")));
        run("table_filter_kept", b -> b.table(t("a"), c(), m("K")).filter((k, v) -> !v.equals("v1")).toStream().to(t("out")));
        run("count_filter", b -> b.stream(t("a"), c()).groupByKey().count().filter((k, v) -> v > 3).mapValues(v -> "" + v).toStream().to(t("out")));
        run("global_store", b -> { b.addGlobalStore(kept("G").withLoggingDisabled(), t("b"), c(), Keeping::new); b.stream(t("a"), c()).process(Looking::new).to(t("out")); });
        run("pattern", b -> b.stream(java.util.regex.Pattern.compile(t("[ab]")), c()).groupByKey().count().toStream().mapValues(v -> "" + v).to(t("out")));
        run("global_left_join", b -> b.stream(t("a"), c()).leftJoin(b.globalTable(t("b"), c()), (k, v) -> v == null ? "n" : "k" + v.charAt(1), (x, y) -> x + y).to(t("out")));
        run("process", b -> b.addStateStore(kept("N")).stream(t("a"), c()).process(Counting::new, "N").to(t("out")));
        run("process_values", b -> b.addStateStore(kept("P")).stream(t("a"), c()).processValues(Before::new, "P").to(t("out")));
        run("repartition_number", b -> b.stream(t("a"), c()).repartition(Repartitioned.<String, String>as("five").withNumberOfPartitions(5)).mapValues(v -> v + "!").to(t("out")));
        run("group_by_windowed", b -> b.stream(t("a"), c()).groupBy((k, v) -> v == null ? "n" : v).windowedBy(TimeWindows.ofSizeAndGrace(ms(50), ms(100000))).count().toStream((k, v) -> w(k)).mapValues(v -> "" + v).to(t("out")));
        run("stream_join_rekeyed", b -> b.stream(t("a"), c()).filter((k, v) -> v != null).selectKey((k, v) -> v).join(b.stream(t("b"), c()).filter((k, v) -> v != null).selectKey((k, v) -> v).mapValues((k, v) -> "b" + v), (x, y) -> x + y, JoinWindows.ofTimeDifferenceAndGrace(ms(5), ms(100000))).to(t("out")));
        run("hopping_aggregate", b -> b.stream(t("a"), c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(30), ms(20)).advanceBy(ms(10))).aggregate(() -> "", (k, v, s) -> s + v).toStream((k, v) -> w(k)).to(t("out")));
    }
    static void copartitionedCases() {
        COPARTITIONED.put("stream_table", b -> b.stream(t("a"), c()).join(b.table(t("b"), c()), (x, y) -> x + y).to(t("out")));
        COPARTITIONED.put("nothing_repartitioned", COPARTITIONED.get("stream_table"));
        COPARTITIONED.put("named_stream_table", b -> b.stream(t("a"), c()).leftJoin(b.table(t("b"), c()), (x, y) -> x + y, Joined.as("enrich")).to(t("out")));
        COPARTITIONED.put("named_stream_stream", b -> b.stream(t("a"), c()).outerJoin(b.stream(t("b"), c()), (x, y) -> x + y, JoinWindows.ofTimeDifferenceWithNoGrace(ms(10)), StreamJoined.<String, String, String>as("stores").withName("enrich")).to(t("out")));
        COPARTITIONED.put("named_table_table", b -> b.table(t("a"), c()).join(b.table(t("b"), c()), (x, y) -> x + y, Named.as("enrich")).toStream().to(t("out")));
        COPARTITIONED.put("cogroup", b -> cogrouped(b).aggregate(() -> "").toStream().to(t("out")));
        COPARTITIONED.put("windowed_cogroup", b -> cogrouped(b).windowedBy(TimeWindows.ofSizeWithNoGrace(ms(10))).aggregate(() -> ""));
        COPARTITIONED.put("merged_with_a_joined_stream", b -> b.stream(t("a"), c()).merge(b.stream(t("b"), c())).join(b.table(t("c"), c()), (x, y) -> x + y, Joined.as("enrich")).to(t("out")));
        COPARTITIONED.put("several_joins", b -> b.stream(t("a"), c()).join(b.table(t("c"), c()), (x, y) -> x + y, Joined.as("first")).mapValues(v -> v).join(b.table(t("b"), c()), (x, y) -> x + y, Joined.as("second")).to(t("out")));
        COPARTITIONED.put("several_topics", b -> b.stream(Arrays.asList(t("a"), t("b")), c()).join(b.table(t("c"), c()), (x, y) -> x + y, Joined.as("enrich")).to(t("out")));
        COPARTITIONED.put("given_number", b -> b.stream(t("a"), c()).repartition(Repartitioned.<String, String>as("mine").withNumberOfPartitions(4)).join(b.table(t("b"), c()), (x, y) -> x + y, Joined.as("enrich")).to(t("out")));
        COPARTITIONED.put("merge", b -> b.stream(t("a"), c()).merge(b.stream(t("b"), c())).to(t("out")));
        COPARTITIONED.put("global_table", b -> b.stream(t("a"), c()).join(b.globalTable(t("b"), c()), (k, v) -> k, (x, y) -> x + y, Named.as("join-with-join")).to(t("out")));
        COPARTITIONED.put("foreign_key", b -> b.table(t("a"), c()).join(b.table(t("b"), c()), StreamsProbe::key, (x, y) -> x + y, TableJoined.as("enrich")).toStream().to(t("out")));
        COPARTITIONED.put("rekeyed", b -> b.stream(t("a"), c()).selectKey((k, v) -> v).join(b.table(t("b"), c()), (x, y) -> x + y, Joined.as("enrich")).to(t("out")));
        COPARTITIONED.put("rekeyed_cogroup", b -> b.stream(t("a"), c()).groupBy((k, v) -> v, Grouped.as("left")).<String>cogroup((k, v, s) -> s + v).cogroup(b.stream(t("b"), c()).groupBy((k, v) -> v, Grouped.as("right")), (k, v, s) -> s + v).aggregate(() -> "", m("both")));
    }
    static CogroupedKStream<String, String> cogrouped(StreamsBuilder b) {
        return b.stream(t("a"), c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream(t("b"), c()).groupByKey(), (k, v, s) -> s + "/" + v);
    }
}
