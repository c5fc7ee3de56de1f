package doctor

import "net"

// tryPort listens at an address for a moment.
func tryPort(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
