// Command natsd is a plain NATS server for tests, with JetStream and without anything of gradbus.
//
//	natsd -host 127.0.0.1 -port 4222 [-user NAME -password WORD] [-jetstream=false]
//
// It prints its address when it is ready and ends with the signal that ends it.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "natsd:", err)
		os.Exit(1)
	}
}

func run() error {
	host := flag.String("host", "127.0.0.1", "address to listen at")
	port := flag.Int("port", server.RANDOM_PORT, "port to listen at; -1 is any free one")
	user, password := flag.String("user", "", "who may connect"), flag.String("password", "", "what they have to know")
	js := flag.Bool("jetstream", true, "keep streams and buckets, in a temporary folder")
	flag.Parse()
	options := &server.Options{ServerName: "natsd", Host: *host, Port: *port, Username: *user, Password: *password,
		NoSigs: true, NoLog: true}
	if *js {
		folder, err := os.MkdirTemp("", "natsd-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		options.JetStream, options.StoreDir = true, folder
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return fmt.Errorf("not ready at %s:%d", *host, *port)
	}
	fmt.Printf("natsd is ready at nats://%s\n", s.Addr())
	<-stop
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
