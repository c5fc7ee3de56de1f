package average

import (
	"fmt"
	"strings"
)

// choice is what one of several names stands for. The first is the default.
type choice[T any] []struct {
	name string
	of   T
}

// Names lists the names.
func (c choice[T]) names() []string {
	names := make([]string, len(c))
	for i := range c {
		names[i] = c[i].name
	}
	return names
}

// find gives what a name stands for.
func (c choice[T]) find(field, name string) (T, error) {
	for i := range c {
		if c[i].name == name {
			return c[i].of, nil
		}
	}
	var none T
	return none, fmt.Errorf("%s %q: want %s", field, name, strings.Join(c.names(), " or "))
}
