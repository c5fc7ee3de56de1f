package ps

// Local says that a server and the trainers of its jobs are one process. A job there that cannot be trained any more
// stays readable, and errors name what the program's user can change.
type Local struct {
	// Settings are the names of this server's settings in that program, by flag of ./bin/ps without its dashes. Errors
	// advise to change no others.
	Settings map[string]string
}

// orRaise appends the advice to raise a setting, named as the reader of the error sets it. Where that reader cannot,
// the advice before it is all.
func (c *Config) orRaise(advice, flag, more string) string {
	name := "the server's --" + flag
	if c.local != nil {
		name = c.local.Settings[flag]
	}
	if name == "" {
		return advice
	}
	return advice + ", or raise " + name + more
}
