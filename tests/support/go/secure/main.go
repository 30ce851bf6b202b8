// Connects franz-go to a secured broker: produces one record and consumes it. The settings are a JSON object in the
// first argument.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type settings struct {
	Servers, Topic, Mechanism, User, Password, Token, Ca, Certificate string
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func mechanism(s settings) sasl.Mechanism {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: s.Token}.AsMechanism()
	}
}

func main() {
	var s settings
	must(json.Unmarshal([]byte(os.Args[1]), &s))
	options := []kgo.Opt{kgo.SeedBrokers(s.Servers), kgo.AllowAutoTopicCreation(), kgo.ConsumeTopics(s.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	if s.Ca != "" {
		pem, err := os.ReadFile(s.Ca)
		must(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		config := &tls.Config{RootCAs: pool}
		if s.Certificate != "" {
			certificate, err := tls.LoadX509KeyPair(s.Certificate, s.Certificate)
			must(err)
			config.Certificates = []tls.Certificate{certificate}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if s.Mechanism != "" {
		options = append(options, kgo.SASL(mechanism(s)))
	}
	client, err := kgo.NewClient(options...)
	must(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	must(client.ProduceSync(ctx, &kgo.Record{Topic: s.Topic, Value: []byte("franz")}).FirstErr())
	fetches := client.PollFetches(ctx)
	must(fetches.Err())
	result, err := json.Marshal(map[string]string{"value": string(fetches.Records()[0].Value)})
	must(err)
	fmt.Println(string(result))
}
