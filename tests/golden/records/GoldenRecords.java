import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Time;

/**
 * Batches as the Java client builds and reads them.
 *
 * "write" prints "name TAB hex" for every format, codec and kind of batch (the records are those of golden_records() in
 * tests/unit/records/test_golden.py); "read" takes such lines and prints what the client finds in the bytes.
 */
public class GoldenRecords {
    static final long TIME = 1_700_000_000_000L;
    static final long APPEND_TIME = 1_800_000_000_000L;
    static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        if (args[0].equals("write")) write(Integer.parseInt(args[1]));
        else read();
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static MemoryRecordsBuilder builder(int magic, CompressionType codec, TimestampType type, long base, long pid, boolean txn) {
        long appendTime = type == TimestampType.LOG_APPEND_TIME ? APPEND_TIME : RecordBatch.NO_TIMESTAMP;
        return MemoryRecords.builder(ByteBuffer.allocate(1 << 20), (byte) magic, Compression.of(codec).build(), type, base,
            appendTime, pid, (short) (pid < 0 ? -1 : 3), pid < 0 ? -1 : 17, txn, 5);
    }

    static MemoryRecords fill(MemoryRecordsBuilder builder, int magic, long base, int count, int repeat) {
        for (int i = 0; i < count; i++) {
            byte[] key = i % 3 == 0 ? null : text("key-" + i);
            byte[] value = i % 5 == 4 ? null : text(("value-" + i + "/").repeat((i * 7 % 20 + 1) * repeat));
            Header[] headers = magic == 2 && i % 4 == 1
                ? new Header[] {new RecordHeader("größe", text("" + i)), new RecordHeader("nothing", (byte[]) null)}
                : new Header[0];
            builder.appendWithOffset(base + i, magic == 0 ? -1L : TIME + (i * 37 % 11) * 1000L, key, value, headers);
        }
        return builder.build();
    }

    static void print(String name, MemoryRecords records) {
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        System.out.println(name + "\t" + HEX.formatHex(bytes));
    }

    static void write(int minMagic) {
        for (int magic = minMagic; magic <= 2; magic++) {
            for (CompressionType codec : CompressionType.values()) {
                if (magic < 2 && codec == CompressionType.ZSTD) continue;
                for (TimestampType type : new TimestampType[] {TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME}) {
                    if (magic == 0 && type == TimestampType.LOG_APPEND_TIME) continue;
                    String name = "magic" + magic + "/" + codec.name + "/" + (type == TimestampType.CREATE_TIME ? "create" : "append");
                    print(name + "/12/0", fill(builder(magic, codec, type, 0, -1, false), magic, 0, 12, 1));
                    print(name + "/1/1000", fill(builder(magic, codec, type, 1000, -1, false), magic, 1000, 1, 1));
                }
                String name = "magic" + magic + "/" + codec.name;
                if (codec != CompressionType.NONE)
                    print(name + "/large/40/7", fill(builder(magic, codec, TimestampType.CREATE_TIME, 7, -1, false), magic, 7, 40, 40));
                if (magic == 2) {
                    MemoryRecords transactional = fill(builder(2, codec, TimestampType.CREATE_TIME, 50, 4711, true), 2, 50, 12, 1);
                    print(name + "/transactional/12/50", transactional);
                    if (minMagic == 0 && codec != CompressionType.ZSTD)
                        for (int to = 0; to < 2; to++)
                            print("down" + to + "/" + codec.name, transactional.downConvert((byte) to, 53, Time.SYSTEM).records());
                }
            }
        }
        for (ControlRecordType type : new ControlRecordType[] {ControlRecordType.ABORT, ControlRecordType.COMMIT})
            print("marker/" + type.name().toLowerCase(), MemoryRecords.withEndTransactionMarker(
                77, TIME, 5, 4711, (short) 3, new EndTransactionMarker(type, 9)));
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return "null";
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return "x" + HEX.formatHex(bytes);
    }

    static void read() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t");
            System.out.println("name " + parts[0]);
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(parts[1]))).batches()) {
                batch.ensureValid();
                System.out.println("batch " + batch.magic() + " " + batch.lastOffset() + " " + batch.compressionType().id + " "
                    + batch.producerId() + " " + batch.producerEpoch() + " " + batch.baseSequence() + " "
                    + batch.isTransactional() + " " + batch.isControlBatch());
                for (Record record : batch) {
                    record.ensureValid();
                    StringBuilder headers = new StringBuilder();
                    for (Header header : record.headers())
                        headers.append(" x" + HEX.formatHex(text(header.key())) + "="
                            + (header.value() == null ? "null" : "x" + HEX.formatHex(header.value())));
                    System.out.println("record " + record.offset() + " " + record.timestamp() + " " + hex(record.key()) + " "
                        + hex(record.value()) + headers);
                }
            }
        }
    }
}
