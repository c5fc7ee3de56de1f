package corpus

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"gradbus/philox"
)

// Size and seed of the corpus that the input Synthetic stands for.
const (
	syntheticRecords = 12_000
	syntheticSeed    = 1
)

// topics are the sections of the generated corpus and the words that tell them apart.
var topics = []struct{ section, words string }{
	{"admin", "administration backup boot cluster cron daemon disk filesystem log monitoring partition quota system user"},
	{"database", "cache database index key mysql postgresql query record redis replication sql sqlite table transaction"},
	{"devel",
		"assembler bindings build c++ compiler debugger generator headers ide linker parser static symbols toolchain"},
	{"editors", "buffer edit editor emacs highlighting indent markdown notepad outline plugin spell tab text vim"},
	{"fonts", "arabic bitmap cursive family font glyph latin monospace opentype sans script serif truetype typeface"},
	{"games", "adventure arcade board card chess dungeon game level multiplayer play player puzzle shooter strategy"},
	{"graphics", "camera color drawing icon image jpeg paint photo pixel png render scanner thumbnail vector"},
	{"mail", "address attachment delivery filter imap inbox mail maildir message mime pop3 sender smtp spam"},
	{"math", "algebra calculator equation fraction geometry graph integral matrix number plot polynomial prime " +
		"solver statistics"},
	{"net", "bandwidth dhcp dns firewall ftp interface ip network packet proxy router ssh tunnel wireless"},
	{"python",
		"asyncio cpython decorator django iterator module notebook numpy pip pytest python python3 virtualenv wheel"},
	{"science", "astronomy atom biology chemistry climate dna genome molecule physics protein sequence simulation " +
		"star telescope"},
	{"sound", "album audio codec equalizer flac jack karaoke midi mixer mp3 music sample song synthesizer"},
	{"video", "capture dvd film frame movie mpeg player recorder screen stream subtitle television video webcam"},
	{"web", "apache blog browser css forum html http https javascript page server site url wiki"},
	{"x11", "applet clipboard compositor desktop display dock keyboard launcher mouse panel tray wallpaper widget window"},
}

// common are words that any description may have.
var common = strings.Fields(
	`a an and application based based client code collection common configuration data development
	documentation easy example extensible fast file files flexible for format framework free from full generic handling helper
	in interface library light lightweight linux modern new of on open package powerful program reader runtime service set shared
	simple small software source support suite the to tool tools unix using utilities utility various version with writer`)

// WriteSynthetic writes a Packages index of generated records, for machines that have none: names and descriptions made
// of words that are typical of a section, of words that any may have, and now and then of another section's. Equal
// arguments give equal bytes. Accuracy on it says that the machinery works, and nothing about real packages.
func WriteSynthetic(w io.Writer, records int, seed uint64) error {
	out := bufio.NewWriterSize(w, 1<<16)
	words := make([][]string, len(topics))
	for i, t := range topics {
		words[i] = strings.Fields(t.words)
	}
	for i := range records {
		s := philox.New(seed, "synthetic", uint64(i), 0, 0)
		pick := func(from []string) string { return from[s.Below(uint32(len(from)))] }
		topic := int(s.Below(uint32(len(topics))))
		word := func() string {
			switch at := s.Below(100); {
			case at < 52:
				return pick(common)
			case at < 92:
				return pick(words[topic])
			default:
				return pick(words[s.Below(uint32(len(words)))])
			}
		}
		description := make([]string, 4+s.Below(5))
		for j := range description {
			description[j] = word()
		}
		fmt.Fprintf(out,
			"Package: %s-%s-%d\nVersion: 1.%d\nArchitecture: all\nDescription: %s\nSection: %s\nTag: synthetic\n\n",
			pick(common), word(), i, i, strings.Join(description, " "), topics[topic].section)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write synthetic index: %w", err)
	}
	return nil
}
