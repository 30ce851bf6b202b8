import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What MirrorMaker 2's own client reads of what a mirror has written: MirrorProbe SERVERS SOURCE GROUP. */
public class MirrorProbe {
    public static void main(String[] args) throws Exception {
        Map<String, Object> p = new HashMap<>();
        p.put("bootstrap.servers", args[0]);
        System.out.println("upstream " + new TreeSet<>(RemoteClusterUtils.upstreamClusters(p)));
        System.out.println("hops " + RemoteClusterUtils.replicationHops(p, args[1]));
        System.out.println("heartbeats " + new TreeSet<>(RemoteClusterUtils.heartbeatTopics(p)));
        System.out.println("checkpoints " + new TreeSet<>(RemoteClusterUtils.checkpointTopics(p)));
        Map<TopicPartition, OffsetAndMetadata> found = RemoteClusterUtils.translateOffsets(p, args[1], args[2], Duration.ofSeconds(30));
        TreeMap<String, Long> sorted = new TreeMap<>();
        found.forEach((tp, at) -> sorted.put(tp.toString(), at.offset()));
        System.out.println("offsets " + sorted);
    }
}
