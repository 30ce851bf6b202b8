import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** Prints the state of a mirror as MirrorMaker 2's client reads it. Arguments: SERVERS SOURCE GROUP. */
public class MirrorProbe {
    public static void main(String[] args) throws Exception {
        Map<String, Object> p = new HashMap<>();
        p.put("bootstrap.servers", args[0]);
        System.out.println("upstream " + new TreeSet<>(RemoteClusterUtils.upstreamClusters(p)));
        System.out.println("hops " + RemoteClusterUtils.replicationHops(p, args[1]));
        System.out.println("heartbeats " + new TreeSet<>(RemoteClusterUtils.heartbeatTopics(p)));
        System.out.println("checkpoints " + new TreeSet<>(RemoteClusterUtils.checkpointTopics(p)));
        Map<TopicPartition, OffsetAndMetadata> offsets = RemoteClusterUtils.translateOffsets(p, args[1], args[2], Duration.ofSeconds(30));
        TreeMap<String, Long> sorted = new TreeMap<>();
        offsets.forEach((tp, offset) -> sorted.put(tp.toString(), offset.offset()));
        System.out.println("offsets " + sorted);
    }
}
