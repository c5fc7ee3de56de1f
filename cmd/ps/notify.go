package main

import (
	"log/slog"
	"net"
	"os"
)

// notify tells the service manager that started this process how it is, READY=1 or STOPPING=1, where there is one that
// wants to know: the protocol of sd_notify(3), a datagram to the socket that NOTIFY_SOCKET names.
func notify(state string, log *slog.Logger) {
	at := os.Getenv("NOTIFY_SOCKET")
	if at == "" {
		return
	}
	// @name is an abstract one, to Go too
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: at, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(state))
		conn.Close()
	}
	if err != nil {
		log.Warn("the service manager was not told", "path", at, "err", err)
	}
}
