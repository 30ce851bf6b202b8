import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/** Runs the topologies and records of streams_cases.py with Kafka's TopologyTestDriver. Prints topologies and output. */
public class StreamsProbe {
    static Consumed<String, String> c() { return Consumed.with(Serdes.String(), Serdes.String()); }
    interface Make { void make(StreamsBuilder b); }
    static void run(String name, Make make) {
        StreamsBuilder b = new StreamsBuilder();
        make.make(b);
        Properties p = new Properties();
        p.put("application.id", "test-app"); p.put("bootstrap.servers", "x:1");
        p.put("default.key.serde", Serdes.String().getClass()); p.put("default.value.serde", Serdes.String().getClass());
        p.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
        p.put("__emit.interval.ms.kstreams.windowed.aggregation__", 0L);
        p.put("statestore.cache.max.bytes", cache); p.put("state.dir", "/tmp/streams-java-" + ProcessHandle.current().pid());
        Topology t = b.build(p);
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
    public static void main(String[] args) {
        cache = Long.parseLong(args[0]);
        run("count", b -> b.stream("a", c()).groupByKey().count().toStream().mapValues(v -> "" + v).to("out"));
        run("group_by", b -> b.stream("a", c()).groupBy((k, v) -> v == null ? "n" : v).count(Materialized.as("Counts")).toStream().mapValues(v -> "" + v).to("out"));
        run("reduce", b -> b.stream("a", c()).groupByKey().reduce((x, y) -> x + y).toStream().to("out"));
        run("aggregate", b -> b.stream("a", c()).groupByKey().aggregate(() -> "", (k, v, s) -> s + v).toStream().to("out"));
        run("stateless", b -> {
            KStream<String, String> s = b.stream(Arrays.asList("a", "b"), c());
            s.filter((k, v) -> v != null).mapValues(v -> v + "!").to("out1");
            s.filterNot((k, v) -> v != null).map((k, v) -> KeyValue.pair(k + "x", "null")).to("out2");
            s.flatMap((k, v) -> Arrays.asList(KeyValue.pair(k, "1"), KeyValue.pair(k, "2"))).peek((k, v) -> {}).selectKey((k, v) -> v).to("out3");
            s.filter((k, v) -> v != null).flatMapValues(v -> Arrays.asList(v, v)).to((k, v, rc) -> "out-" + k);
            s.foreach((k, v) -> {});
        });
        run("branch", b -> {
            Map<String, KStream<String, String>> m = b.stream("a", c()).split(Named.as("p-")).branch((k, v) -> k.equals("k1"), Branched.as("one")).branch((k, v) -> k.equals("k2")).defaultBranch();
            m.get("p-one").to("out1"); m.get("p-2").to("out2"); m.get("p-0").to("out3");
        });
        run("merge", b -> b.stream("a", c()).merge(b.stream("b", c())).to("out"));
        run("repartition", b -> b.stream("a", c()).repartition(Repartitioned.with(Serdes.String(), Serdes.String())).groupByKey().count().toStream().mapValues(v -> "" + v).to("out"));
        run("tumbling", b -> b.stream("a", c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(20), Duration.ofMillis(10))).count().toStream((k, v) -> w(k)).mapValues(v -> "" + v).to("out"));
        run("hopping", b -> b.stream("a", c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(20), Duration.ofMillis(15)).advanceBy(Duration.ofMillis(5))).reduce((x, y) -> x + y).toStream((k, v) -> w(k)).to("out"));
        run("sliding", b -> b.stream("a", c()).groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(20), Duration.ofMillis(30))).aggregate(() -> "", (k, v, s) -> s + v).toStream((k, v) -> w(k)).to("out"));
        run("sliding_early", b -> b.stream("a", c()).groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(5000), Duration.ofMillis(3000))).count().toStream((k, v) -> w(k)).mapValues(v -> "" + v).to("out"));
        run("session", b -> b.stream("a", c()).groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(8), Duration.ofMillis(20))).count().toStream((k, v) -> w(k)).mapValues(v -> v == null ? null : "" + v).to("out"));
        run("session_reduce", b -> b.stream("a", c()).groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(8), Duration.ofMillis(20))).reduce((x, y) -> x + y).toStream((k, v) -> w(k)).to("out"));
        run("suppress", b -> b.stream("a", c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(20), Duration.ofMillis(10))).count().suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())).toStream((k, v) -> w(k)).mapValues(v -> "" + v).to("out"));
        run("suppress_time", b -> b.table("a", c()).suppress(Suppressed.untilTimeLimit(Duration.ofMillis(15), Suppressed.BufferConfig.maxRecords(3))).toStream().to("out"));
        run("stream_join", b -> b.stream("a", c()).join(b.stream("b", c()), (x, y) -> x + y, JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(20))).to("out"));
        run("stream_left_join", b -> b.stream("a", c()).leftJoin(b.stream("b", c()), (x, y) -> x + y, JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(20))).to("out"));
        run("stream_outer_join", b -> b.stream("a", c()).outerJoin(b.stream("b", c()), (x, y) -> x + y, JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(20)).before(Duration.ofMillis(5))).to("out"));
        run("table_join_stream", b -> b.stream("a", c()).join(b.table("b", c()), (x, y) -> x + y).to("out"));
        run("table_left_join_stream", b -> b.stream("a", c()).selectKey((k, v) -> k).leftJoin(b.table("b", c()), (x, y) -> x + y).to("out"));
        run("global_join", b -> b.stream("a", c()).join(b.globalTable("b", c()), (k, v) -> k, (x, y) -> x + y).to("out"));
        run("tables_join", b -> b.table("a", c()).join(b.table("b", c()), (x, y) -> x + y).toStream().to("out"));
        run("tables_left_join", b -> b.table("a", c()).leftJoin(b.table("b", c()), (x, y) -> x + y).toStream().to("out"));
        run("tables_outer_join", b -> b.table("a", c()).outerJoin(b.table("b", c()), (x, y) -> x + y, m("J")).toStream().to("out"));
        run("table_filter", b -> b.table("a", c()).filter((k, v) -> !v.equals("v1")).toStream().to("out"));
        run("table_filter_store", b -> b.table("a", c()).filter((k, v) -> !v.equals("v1"), m("F")).mapValues(v -> v + "!").toStream().to("out"));
        run("table_group", b -> b.table("a", c()).groupBy((k, v) -> KeyValue.pair(v, k)).count().toStream().mapValues(v -> "" + v).to("out"));
        run("table_group_aggregate", b -> b.table("a", c()).filter((k, v) -> !v.equals("v3")).groupBy((k, v) -> KeyValue.pair(v, k)).aggregate(() -> "", (k, v, s) -> s + "+" + v, (k, v, s) -> s + "-" + v).toStream().to("out"));
        run("table_group_reduce", b -> b.table("a", c()).groupBy((k, v) -> KeyValue.pair(k, v)).reduce((x, y) -> x + "+" + y, (x, y) -> x + "-" + y).toStream().to("out"));
        run("to_table", b -> b.stream("a", c()).toTable().toStream().to("out"));
        run("join_of_count", b -> b.stream("a", c()).join(b.stream("b", c()).groupByKey().count(), (x, y) -> x + y).to("out"));
        run("fk_join", b -> b.table("a", c()).join(b.table("b", c()), StreamsProbe::key, (x, y) -> x + y).toStream().to("out"));
        run("fk_left_join", b -> b.table("a", c()).leftJoin(b.table("b", c()), StreamsProbe::key, (x, y) -> x + y).toStream().to("out"));
        run("fk_join_grouped", b -> b.table("a", c()).filter((k, v) -> !v.equals("v1")).join(b.table("b", c()).mapValues(v -> v + "!"), StreamsProbe::key, (x, y) -> x + y, TableJoined.as("named"), m("FK")).groupBy((k, v) -> KeyValue.pair(v, k)).count().toStream().mapValues(v -> "" + v).to("out"));
        run("cogroup", b -> b.stream("a", c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream("b", c()).groupByKey(), (k, v, s) -> s + "/" + v).aggregate(() -> "").toStream().to("out"));
        run("cogroup_regrouped", b -> b.stream("a", c()).groupBy((k, v) -> v == null ? "n" : v).<String>cogroup((k, v, s) -> s + v).cogroup(b.stream("b", c()).groupByKey(), (k, v, s) -> s + "/" + v).aggregate(() -> "", Named.as("both"), m("C")).toStream().to("out"));
        run("cogroup_tumbling", b -> b.stream("a", c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream("b", c()).groupByKey(), (k, v, s) -> s + "/" + v).windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(10))).aggregate(() -> "").toStream((k, v) -> w(k)).to("out"));
        run("cogroup_sliding", b -> b.stream("a", c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream("b", c()).groupByKey(), (k, v, s) -> s + "/" + v).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(20), ms(30))).aggregate(() -> "").toStream((k, v) -> w(k)).to("out"));
        run("cogroup_session", b -> b.stream("a", c()).groupByKey().<String>cogroup((k, v, s) -> s + v).cogroup(b.stream("b", c()).groupByKey(), (k, v, s) -> s + "/" + v).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(8), ms(20))).aggregate(() -> "", (k, x, y) -> x + "+" + y).toStream((k, v) -> w(k)).to("out"));
        run("final_tumbling", b -> b.stream("a", c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(10))).emitStrategy(EmitStrategy.onWindowClose()).count(Materialized.<String, Long, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.Long()).withRetention(ms(10000))).toStream((k, v) -> w(k)).mapValues(v -> "" + v).to("out"));
        run("final_hopping", b -> b.stream("a", c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(15)).advanceBy(ms(5))).emitStrategy(EmitStrategy.onWindowClose()).reduce((x, y) -> x + y, Materialized.<String, String, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.String()).withRetention(ms(10000))).toStream((k, v) -> w(k)).to("out"));
        run("final_sliding", b -> b.stream("a", c()).groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(20), ms(30))).emitStrategy(EmitStrategy.onWindowClose()).aggregate(() -> "", (k, v, s) -> s + v, Materialized.<String, String, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.String()).withRetention(ms(10000))).toStream((k, v) -> w(k)).to("out"));
        run("final_session", b -> b.stream("a", c()).groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(8), ms(20))).emitStrategy(EmitStrategy.onWindowClose()).count(Materialized.<String, Long, org.apache.kafka.streams.state.SessionStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.Long()).withRetention(ms(10000))).toStream((k, v) -> w(k)).mapValues(v -> "" + v).to("out"));
        run("final_grouped", b -> b.stream("a", c()).groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(20), ms(10))).emitStrategy(EmitStrategy.onWindowClose()).count(Materialized.<String, Long, org.apache.kafka.streams.state.WindowStore<org.apache.kafka.common.utils.Bytes, byte[]>>with(Serdes.String(), Serdes.Long()).withRetention(ms(10000))).groupBy((k, v) -> KeyValue.pair(k.key(), "" + v), Grouped.with(Serdes.String(), Serdes.String())).reduce((x, y) -> x + "+" + y, (x, y) -> x + "-" + y).toStream().to("out"));
        run("join_suppressed", b -> b.table("a", c()).suppress(Suppressed.untilTimeLimit(ms(15), Suppressed.BufferConfig.maxRecords(3))).join(b.table("b", c()), (x, y) -> x + y).toStream().to("out"));
        run("join_suppressed_filter", b -> b.table("b", c()).outerJoin(b.table("a", c()).filter((k, v) -> !v.equals("v1")).suppress(Suppressed.untilTimeLimit(ms(15), Suppressed.BufferConfig.maxRecords(3))).mapValues(v -> v + "!"), (x, y) -> x + y).toStream().to("out"));
        run("stream_join_suppressed", b -> b.stream("b", c()).leftJoin(b.table("a", c()).suppress(Suppressed.untilTimeLimit(ms(15), Suppressed.BufferConfig.maxRecords(3))), (x, y) -> x + y).to("out"));
        run("versioned_join_stream", b -> b.stream("a", c()).leftJoin(versioned(b, "b", c(), "V"), (x, y) -> x + y).to("out"));
        run("versioned_join_grace", b -> b.stream("a", c()).join(versioned(b, "b", c(), "V"), (x, y) -> x + y, Joined.with(Serdes.String(), Serdes.String(), Serdes.String(), "late", ms(10))).to("out"));
        run("versioned_join", b -> versioned(b, "a", c(), "V").leftJoin(versioned(b, "b", c(), "W"), (x, y) -> x + y).toStream().to("out"));
        run("versioned_join_mapped", b -> versioned(b, "a", c(), "V").filter((k, v) -> !v.equals("v1")).mapValues(v -> v + "!").join(b.table("b", c()), (x, y) -> x + y).toStream().to("out"));
        run("versioned_group", b -> versioned(b, "a", c(), "V").groupBy((k, v) -> KeyValue.pair(v, k)).count().toStream().mapValues(v -> "" + v).to("out"));
        run("versioned_fk_join", b -> versioned(b, "a", c(), "V").leftJoin(versioned(b, "b", c(), "W"), StreamsProbe::key, (x, y) -> x + y).toStream().to("out"));
        run("versioned_to_stream", b -> versioned(b, "a", c(), "V").filter((k, v) -> !v.equals("v1")).toStream().to("out"));
        run("versioned_aggregate", b -> b.stream("a", c()).join(b.stream("b", c()).groupByKey().count(Materialized.<String, Long>as(Stores.persistentVersionedKeyValueStore("V", ms(40)))), (x, y) -> x + y).to("out"));
        run("expressions", b -> b.stream("a", c()).filter((k, v) -> v != null && !k.startsWith("k3")).filterNot((k, v) -> v.equals("v1") || v.equals("v2") || v.equals("v2x")).mapValues((k, v) -> v.toUpperCase() + "/" + k).flatMapValues(v -> Arrays.asList(v.split("/"))).selectKey((k, v) -> k + v.toLowerCase()).to("out"));
        run("expressions_of_null", b -> b.stream("b", c()).filterNot((k, v) -> v != null && v.compareTo("v2") < 0).mapValues(v -> v == null ? null : v + "!").to("out"));
        run("transform_values", b -> b.addStateStore(kept("T")).table("a", c()).transformValues(() -> new Appending("T"), "T").toStream().to("out"));
        run("transform_values_store", b -> b.addStateStore(kept("T")).table("a", c()).transformValues(() -> new Appending("T"), m("M"), Named.as("appending"), "T").filter((k, v) -> !v.startsWith("v1")).toStream().to("out"));
        run("transform_values_join", b -> b.table("a", c()).leftJoin(b.table("b", c()).transformValues(Filling::new), (x, y) -> x + y).toStream().to("out"));
        run("transform_values_group", b -> b.table("a", c()).transformValues(Filling::new, Materialized.with(Serdes.String(), Serdes.String())).groupBy((k, v) -> KeyValue.pair(k, v)).reduce((x, y) -> x + "+" + y, (x, y) -> x + "-" + y).toStream().to("out"));
        run("table_filter_kept", b -> b.table("a", c(), m("K")).filter((k, v) -> !v.equals("v1")).toStream().to("out"));
        run("count_filter", b -> b.stream("a", c()).groupByKey().count().filter((k, v) -> v > 3).mapValues(v -> "" + v).toStream().to("out"));
        run("global_store", b -> { b.addGlobalStore(kept("G").withLoggingDisabled(), "b", c(), Keeping::new); b.stream("a", c()).process(Looking::new).to("out"); });
        run("pattern", b -> b.stream(java.util.regex.Pattern.compile("[ab]"), c()).groupByKey().count().toStream().mapValues(v -> "" + v).to("out"));
    }
}
