// Tests a broker with franz-go: creates a topic, produces with every compression and acks, consumes with assigned
// partitions from the beginning, an offset, a time and the end, and sends admin requests. Prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const perRound = 100

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap)}, options...)...)
	must(err)
	return client
}

func produce(ctx context.Context, bootstrap, topic string, first int, options ...kgo.Opt) {
	producer := client(bootstrap, append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	defer producer.Close()
	records := make([]*kgo.Record, perRound)
	for n := range records {
		records[n] = &kgo.Record{
			Topic:     topic,
			Key:       []byte(fmt.Sprintf("k%d", first+n)),
			Value:     []byte(fmt.Sprintf("value %d", first+n)),
			Headers:   []kgo.RecordHeader{{Key: "n", Value: []byte(fmt.Sprint(first + n))}},
			Timestamp: time.UnixMilli(1600000000000 + int64(first+n)*1000),
		}
	}
	must(producer.ProduceSync(ctx, records...).FirstErr())
}

func read(ctx context.Context, bootstrap, topic string, from kgo.Offset, count int) []string {
	consumer := client(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: from}}))
	defer consumer.Close()
	values := []string{}
	for len(values) < count {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if len(record.Headers) != 1 {
				must(fmt.Errorf("record %d has %d headers", record.Offset, len(record.Headers)))
			}
			values = append(values, string(record.Value))
		})
	}
	return values
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	control := client(bootstrap)
	defer control.Close()
	admin := kadm.NewClient(control)
	_, err := admin.CreateTopic(ctx, 1, 1, nil, topic)
	must(err)

	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	total := 0
	for _, codec := range codecs {
		for _, acks := range []kgo.Acks{kgo.LeaderAck(), kgo.AllISRAcks()} {
			produce(ctx, bootstrap, topic, total, kgo.ProducerBatchCompression(codec), kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite())
			total += perRound
		}
	}
	produce(ctx, bootstrap, topic, total)
	total += perRound

	all := read(ctx, bootstrap, topic, kgo.NewOffset().AtStart(), total)
	inOrder := len(all) == total
	for n, value := range all {
		inOrder = inOrder && value == fmt.Sprintf("value %d", n)
	}
	middle := read(ctx, bootstrap, topic, kgo.NewOffset().At(500), 1)[0]
	byTime := read(ctx, bootstrap, topic, kgo.NewOffset().AfterMilli(1600000000000+250*1000), 1)[0]
	fromEnd := read(ctx, bootstrap, topic, kgo.NewOffset().AtEnd().Relative(-1), 1)[0]

	ends, err := admin.ListEndOffsets(ctx, topic)
	must(err)
	end, _ := ends.Lookup(topic, 0)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	must(err)
	_, err = admin.CreatePartitions(ctx, 2, topic)
	must(err)
	deleted, err := admin.DeleteRecords(ctx, kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 10}}})
	must(err)
	low, _ := deleted.Lookup(topic, 0)
	_, err = admin.DeleteTopic(ctx, topic)
	must(err)

	must(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"records": total, "inOrder": inOrder, "middle": middle, "byTime": byTime, "fromEnd": fromEnd,
		"end": end.Offset, "configs": len(configs[0].Configs) > 20, "low": low.LowWatermark,
	}))
}
