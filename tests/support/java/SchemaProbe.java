import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;

/** Writes and reads one Avro record with Apicurio's serdes in Confluent's framing. */
public class SchemaProbe {
    public static void main(String[] args) throws Exception {
        Map<String, Object> config = new HashMap<>();
        config.put("apicurio.registry.url", args[0]);
        config.put("apicurio.registry.auto-register", true);
        config.put("apicurio.registry.use-id", "contentId");
        config.put("apicurio.registry.headers.enabled", false);
        String topic = args[2];
        if (args[1].equals("write")) {
            Schema schema = new Schema.Parser().parse(args[3]);
            GenericRecord record = new GenericDatumReader<GenericRecord>(schema)
                .read(null, DecoderFactory.get().jsonDecoder(schema, args[4]));
            try (AvroKafkaSerializer<GenericRecord> serializer = new AvroKafkaSerializer<>()) {
                serializer.configure(config, false);
                System.out.println(Base64.getEncoder().encodeToString(serializer.serialize(topic, record)));
            }
        } else {
            try (AvroKafkaDeserializer<GenericRecord> deserializer = new AvroKafkaDeserializer<>()) {
                deserializer.configure(config, false);
                System.out.println(deserializer.deserialize(topic, Base64.getDecoder().decode(args[3])));
            }
        }
        System.exit(0);
    }
}
