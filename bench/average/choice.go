package average

import "gradbus/bench/harness"

// choice is what one of several names stands for. The first is the default.
type choice[T any] []struct {
	name string
	of   T
}

// names lists the names.
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
	return none, harness.OneOf(field, name, c.names()...) // it is none of them
}
