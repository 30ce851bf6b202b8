import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;

/** Applies transformations to records. Reads the cases from a JSON file, and prints the results as JSON. */
public class ConnectProbe {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        ArrayNode results = JSON.createArrayNode();
        for (JsonNode one : JSON.readTree(new File(args[0]))) results.add(run(one));
        System.out.println(JSON.writerWithDefaultPrettyPrinter().writeValueAsString(results));
    }

    static JsonConverter converter(boolean schemas, boolean key) {
        JsonConverter made = new JsonConverter();
        Map<String, Object> config = new HashMap<>();
        config.put("schemas.enable", schemas);
        made.configure(config, key);
        return made;
    }

    static SchemaAndValue read(JsonNode node, boolean schemas, boolean key) {
        if (node == null || node.isNull()) return SchemaAndValue.NULL;
        return converter(schemas, key).toConnectData("t", node.toString().getBytes(StandardCharsets.UTF_8));
    }

    static JsonNode written(Schema schema, Object value, boolean schemas, boolean key) throws Exception {
        byte[] data = converter(schemas, key).fromConnectData("t", schema, value);
        return data == null ? JSON.nullNode() : JSON.readTree(data);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    static JsonNode run(JsonNode one) throws Exception {
        ObjectNode result = JSON.createObjectNode();
        boolean schemas = one.get("schemas").asBoolean();
        try {
            SchemaAndValue key = read(one.get("key"), schemas, true);
            SchemaAndValue value = read(one.get("value"), schemas, false);
            ConnectHeaders headers = new ConnectHeaders();
            SimpleHeaderConverter simple = new SimpleHeaderConverter();
            for (JsonNode header : one.withArray("headers"))
                headers.add(header.get(0).asText(), simple.toConnectHeader("t", header.get(0).asText(),
                    header.get(1).asText().getBytes(StandardCharsets.UTF_8)));
            Long timestamp = one.get("timestamp").isNull() ? null : one.get("timestamp").asLong();
            ConnectRecord record = new SinkRecord("orders-eu", 3, key.schema(), key.value(), value.schema(),
                value.value(), 41, timestamp, TimestampType.CREATE_TIME, headers);
            Transformation transform =
                (Transformation) Class.forName("org.apache.kafka.connect.transforms." + one.get("type").asText())
                    .getDeclaredConstructor().newInstance();
            Map<String, String> config = new HashMap<>();
            one.get("config").fields().forEachRemaining(e -> config.put(e.getKey(), e.getValue().asText()));
            transform.configure(config);
            record = transform.apply(record);
            if (record == null) {
                result.put("dropped", true);
                return result;
            }
            result.put("topic", record.topic());
            result.set("key", written(record.keySchema(), record.key(), schemas, true));
            result.set("value", written(record.valueSchema(), record.value(), schemas, false));
            ArrayNode out = result.putArray("headers");
            for (Object each : record.headers()) {
                Header header = (Header) each;
                byte[] data = simple.fromConnectHeader("t", header.key(), header.schema(), header.value());
                ArrayNode pair = out.addArray().add(header.key());
                if (data == null) pair.addNull(); else pair.add(new String(data, StandardCharsets.UTF_8));
            }
        } catch (Exception error) {
            result = JSON.createObjectNode();
            result.put("error", error.getClass().getName());
            result.put("message", String.valueOf(error.getMessage()));
        }
        return result;
    }
}
