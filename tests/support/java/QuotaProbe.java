import java.util.Locale;
import java.util.Random;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;

/**
 * Prints the numbers of Kafka's rates and token buckets as JSON, for tests/golden/quotas-3.9.1.json:
 * one scenario a line, each a list of [time in ms, recorded value, measured value, window in ms].
 * A scenario restarts the clock. The window of a token bucket is 0.
 */
public class QuotaProbe {
    public static void main(String[] args) {
        StringBuilder out = new StringBuilder("{\n");
        int[][] settings = {{11, 1000}, {2, 1000}, {3, 2000}, {1, 1000}};
        boolean first = true;
        for (int[] setting : settings) {
            for (int seed = 1; seed <= 3; seed++) {
                out.append(first ? "" : ",\n").append(rate(setting[0], setting[1], seed));
                out.append(",\n").append(bucket(setting[0], setting[1], seed));
                first = false;
            }
        }
        System.out.println(out.append("\n}"));
    }

    private static MetricConfig config(int samples, int windowMs) {
        return new MetricConfig().samples(samples).timeWindow(windowMs, TimeUnit.MILLISECONDS).quota(Quota.upperBound(10));
    }

    /** The pauses are mostly short, sometimes longer than a sample, and rarely longer than all samples. */
    private static long pause(Random random, int samples, int windowMs) {
        int kind = random.nextInt(20);
        if (kind == 0)
            return (long) samples * windowMs + random.nextInt(2 * windowMs);
        return kind < 6 ? random.nextInt(3 * windowMs) : random.nextInt(windowMs / 2);
    }

    private static String rate(int samples, int windowMs, int seed) {
        MetricConfig config = config(samples, windowMs);
        Random random = new Random(seed);
        Rate rate = new Rate(TimeUnit.SECONDS);
        long now = 1_000_000;
        StringBuilder rows = new StringBuilder();
        for (int step = 0; step < 60; step++) {
            now += pause(random, samples, windowMs);
            int value = random.nextInt(1000);
            rate.record(config, value, now);
            double measured = rate.measure(config, now);
            rows.append(row(step, now, value, measured, rate.windowSize(config, now)));
        }
        return scenario("rate", samples, windowMs, seed, rows);
    }

    private static String bucket(int samples, int windowMs, int seed) {
        MetricConfig config = config(samples, windowMs);
        Random random = new Random(seed);
        TokenBucket bucket = new TokenBucket();
        long now = 1_000_000;
        StringBuilder rows = new StringBuilder();
        for (int step = 0; step < 30; step++) {
            now += pause(random, samples, windowMs);
            int value = random.nextInt(60);
            bucket.record(config, value, now);
            rows.append(row(step, now, value, bucket.measure(config, now), 0));
        }
        return scenario("bucket", samples, windowMs, seed, rows);
    }

    private static String row(int step, long now, int value, double measured, long window) {
        return String.format(Locale.ROOT, "%s[%d, %d, %s, %d]", step == 0 ? "" : ", ", now, value, measured, window);
    }

    private static String scenario(String kind, int samples, int windowMs, int seed, StringBuilder rows) {
        return String.format("\"%s %d %d %d\": [%s]", kind, samples, windowMs, seed, rows);
    }
}
