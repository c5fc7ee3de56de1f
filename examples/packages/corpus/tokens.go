package corpus

import "hash/crc32"

// Rows is the number of rows of the embedding table: a token's key is its CRC-32 (IEEE) modulo Rows.
const Rows = 1 << 18

// Tokenizer names the rules of this file; it is kept with saved models and compared when they are loaded.
const Tokenizer = "d:[a-z0-9+#.]+ n:split[-.+] crc32 mod 262144"

// Tokens gives the tokens of a package to yield: "d:" and each word of the description, in order, then "n:" and each
// part of the name. A word is a run of a-z, 0-9, +, # and . after upper-case ASCII letters were made lower; the name is
// split at each -, . and +, and empty parts are left out. The bytes are valid until yield returns.
//
// Tokens("g++-12", "GNU C++ compiler") gives d:gnu d:c++ d:compiler n:g n:12.
func Tokens(name, description string, yield func(token []byte)) {
	var buffer [64]byte
	each(buffer[:0], "d:", description, isTextByte, yield)
	each(buffer[:0], "n:", name, func(c byte) bool { return c != '-' && c != '.' && c != '+' }, yield)
}

// each yields prefix and every longest run of accepted bytes. Descriptions are lowered; names are lower case already.
func each(token []byte, prefix, text string, accepted func(byte) bool, yield func([]byte)) {
	token = append(token, prefix...)
	for i := range len(text) {
		c := text[i]
		if prefix == "d:" {
			c = toLower(c)
		}
		if accepted(c) {
			token = append(token, c)
			continue
		}
		if len(token) > len(prefix) {
			yield(token)
			token = token[:len(prefix)]
		}
	}
	if len(token) > len(prefix) {
		yield(token)
	}
}

func isTextByte(c byte) bool { return isWord(c) || c == '+' || c == '#' || c == '.' }

// Key is the row of a token: CRC-32 (IEEE) modulo Rows. Key([]byte("d:game")) is 107096.
func Key(token []byte) uint64 { return uint64(crc32.ChecksumIEEE(token) % Rows) }

// AppendKeys appends the keys of a package's tokens, in their order, repeats included. Either text may be empty.
func AppendKeys(keys []uint64, name, description string) []uint64 {
	Tokens(name, description, func(token []byte) { keys = append(keys, Key(token)) })
	return keys
}

// isTest reports whether a package belongs to the test set: one in ten, by the CRC-32 of its name.
func isTest(name string) bool { return crc32.ChecksumIEEE([]byte(name))%10 == 0 }
