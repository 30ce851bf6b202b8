import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;

/**
 * Prints what Kafka's own serializer makes of its messages, one line per frame:
 * class, version, variant, hexadecimal bytes and Kafka's JSON form, separated by tabs.
 *
 * Variants: "default" (a new object), "full" (every field of the version set, two elements per array) and "nulls"
 * (every nullable field null, one element per other array). Values follow from a counter alone, so two runs are equal.
 * Records are bytes of the given size, the i-th being (31 * i + 7) % 256, because the JSON form has only their size.
 *
 * Standard input: a class name and a version per line.
 */
public class GoldenFrames {
    private static final String[] WORDS = {"a", "topic", "", "größe-λ-日本", "x".repeat(126), "group.id", "y".repeat(300), "z".repeat(127)};
    private static final long[] NUMBERS = {1, -1, 127, 300, -128, 70_000, 5_000_000_000L, Long.MIN_VALUE, Long.MAX_VALUE, 42};

    private final short version;
    private final boolean nulls;
    private int counter = 0;

    private GoldenFrames(short version, boolean nulls) {
        this.version = version;
        this.nulls = nulls;
    }

    public static void main(String[] arguments) throws Exception {
        for (String line : new String(System.in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) {
            String[] words = line.split(" ");
            Class<?> type = Class.forName(words[0]);
            short version = Short.parseShort(words[1]);
            print(type, version, "default", create(type));
            Object full = create(type);
            new GoldenFrames(version, false).fill(full);
            print(type, version, "full", full);
            Object withNulls = create(type);
            new GoldenFrames(version, true).fill(withNulls);
            print(type, version, "nulls", withNulls);
        }
    }

    private static void print(Class<?> type, short version, String variant, Object object) throws Exception {
        Message message = (Message) object;
        ObjectSerializationCache cache = new ObjectSerializationCache();
        String hex;
        try {
            ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(buffer), cache, version);
            hex = HexFormat.of().formatHex(buffer.array(), 0, buffer.position());
        } catch (NullPointerException e) {
            return; // a default of null in a version that does not allow it
        }
        Method write = Class.forName(type.getName() + "JsonConverter").getMethod("write", type, short.class, boolean.class);
        System.out.println(String.join("\t", type.getSimpleName(), String.valueOf(version), variant, hex,
            write.invoke(null, object, version, false).toString()));
    }

    private static Object create(Class<?> type) throws Exception {
        Constructor<?> constructor = type.getDeclaredConstructor();
        constructor.setAccessible(true);
        return constructor.newInstance();
    }

    private void fill(Object object) throws Exception {
        Map<String, Field> fields = new LinkedHashMap<>();
        for (Field field : object.getClass().getDeclaredFields()) {
            fields.put(field.getName().toLowerCase(), field);
        }
        Schema[] schemas = (Schema[]) object.getClass().getField("SCHEMAS").get(null);
        for (BoundField bound : schemas[version].fields()) {
            if (bound.def.type instanceof TaggedFields) {
                for (org.apache.kafka.common.protocol.types.Field tagged : taggedFields((TaggedFields) bound.def.type)) {
                    set(object, fields, tagged.name, tagged.type);
                }
            } else {
                set(object, fields, bound.def.name, bound.def.type);
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static Collection<org.apache.kafka.common.protocol.types.Field> taggedFields(TaggedFields type) throws Exception {
        Field field = TaggedFields.class.getDeclaredField("fields");
        field.setAccessible(true);
        return ((Map<Integer, org.apache.kafka.common.protocol.types.Field>) field.get(type)).values();
    }

    private void set(Object object, Map<String, Field> fields, String name, org.apache.kafka.common.protocol.types.Type type)
            throws Exception {
        Field field = fields.get(name.replace("_", "").toLowerCase());
        if (field == null) {
            throw new IllegalStateException(object.getClass() + " has no field " + name);
        }
        field.setAccessible(true);
        if (nulls && type.isNullable()) {
            field.set(object, null);
        } else {
            field.set(object, value(field.getType(), field.getGenericType(), type.toString().contains("UINT16")));
        }
    }

    private Object value(Class<?> type, Type generic, boolean unsigned16) throws Exception {
        if (Collection.class.isAssignableFrom(type)) {
            return collection(type, generic);
        }
        int k = counter++;
        long number = NUMBERS[k % NUMBERS.length];
        if (type == boolean.class) return true;
        if (type == byte.class || type == Byte.class) return (byte) number;
        if (type == short.class || type == Short.class) return (short) number;
        if (type == int.class && unsigned16) return (int) (number & 0xffff);
        if (type == int.class || type == Integer.class) return (int) number;
        if (type == long.class || type == Long.class) return number;
        if (type == double.class) return k * 1.25 - 3;
        if (type == String.class) return WORDS[k % WORDS.length] + (k % 3 == 0 ? k : "");
        if (type == Uuid.class) return new Uuid(k + 1L, -k);
        if (type == byte[].class) return ("bytes " + k).repeat(k % 40).getBytes(StandardCharsets.UTF_8);
        if (type == ByteBuffer.class) return ByteBuffer.wrap(("buffer " + k).getBytes(StandardCharsets.UTF_8));
        if (type.getSimpleName().endsWith("Records")) return records(type, 100 + k);
        Object struct = create(type);
        fill(struct);
        return struct;
    }

    @SuppressWarnings("unchecked")
    private Object collection(Class<?> type, Type generic) throws Exception {
        Type holder = generic instanceof ParameterizedType ? generic : type.getGenericSuperclass();
        Class<?> element = (Class<?>) ((ParameterizedType) holder).getActualTypeArguments()[0];
        Collection<Object> result = type == List.class ? new ArrayList<>() : (Collection<Object>) create(type);
        for (int i = 0; i < (nulls ? 1 : 2); i++) {
            result.add(value(element, element, false));
        }
        return result;
    }

    /** The package of the records classes is not the same in all releases, so the field's own type tells it. */
    private static Object records(Class<?> type, int size) throws Exception {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++) {
            bytes[i] = (byte) (31 * i + 7);
        }
        Class<?> records = Class.forName(type.getPackageName() + ".MemoryRecords");
        return records.getMethod("readableRecords", ByteBuffer.class).invoke(null, ByteBuffer.wrap(bytes));
    }
}
