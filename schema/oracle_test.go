package schema

import (
	"bytes"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
)

var needOracle = flag.Bool("need-oracle", false,
	"fail, rather than skip, where g++, flatc or the FlatBuffers headers are missing")

// oracle compiles testdata/oracle, or skips.
func oracle(t *testing.T) (program string) {
	t.Helper()
	dir := t.TempDir()
	program = filepath.Join(dir, "oracle")
	for _, command := range [][]string{
		{"flatc", "--cpp", "-o", dir, "gradbus.fbs"},
		{"g++", "-std=c++17", "-O1", "-I", dir, "-o", program, "testdata/oracle/oracle.cc"},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			text := "the C++ verifier is not compared with: %s: %v (Debian: apt install g++ flatbuffers-compiler " +
				"libflatbuffers-dev)\n%s"
			if *needOracle {
				t.Fatalf(text, command[0], err, out)
			}
			t.Skipf(text, command[0], err, out)
		}
	}
	return program
}

func run(t *testing.T, in []byte, program string, args ...string) []byte {
	t.Helper()
	c := exec.Command(program, args...)
	c.Stdin = bytes.NewReader(in)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %v: %v", program, args, err)
	}
	return out
}

func lengthAndBytes(to, frame []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(to, uint32(len(frame))), frame...)
}

// Whatever Verify accepts, the C++ verifier accepts: changed offsets, sizes and counts under a right checksum included.
func TestVerifyIsAsStrictAsTheLibrary(t *testing.T) {
	program := oracle(t)
	const seed = 3
	random := rand.New(rand.NewPCG(seed, seed))
	var in []byte
	var frames [][]byte
	accepted, libraryRefuses := 0, 0
	var verdicts []bool
	add := func(data []byte) {
		_, err := Verify(data, Limits{})
		frames, verdicts = append(frames, data), append(verdicts, err == nil)
		in = lengthAndBytes(in, data)
	}
	for _, s := range samples(t) {
		v, err := Verify(s.frame, Limits{})
		check(t, err)
		for _, frame := range [][]byte{s.frame, foreign(&v, false), foreign(&v, true)} {
			add(frame)
			for range 3000 {
				data := append([]byte(nil), frame[:len(frame)-random.IntN(2)*random.IntN(len(frame))]...)
				for range 1 + random.IntN(3) {
					if len(data) > 0 { // mostly in offsets, vtable and vector lengths; small numbers are the likeliest to pass
						at := random.IntN(len(data))
						data[at] = [...]byte{0, 4, 8, byte(random.IntN(256)), data[at] + 1, data[at] - 4}[random.IntN(6)]
					}
				}
				reseal(data)
				add(data)
			}
		}
	}
	out := run(t, in, program, "verify")
	if len(out) != len(frames) {
		t.Fatalf("%d verdicts on %d frames", len(out), len(frames))
	}
	for i, verdict := range out {
		switch {
		case verdicts[i] && verdict != '1':
			t.Fatalf("seed %d, frame %d passes, but not the library's verifier:\n%s", seed, i, hexText(frames[i]))
		case verdicts[i]:
			accepted++
		case verdict != '1':
			libraryRefuses++
		}
	}
	t.Logf("%d frames: both accept %d, both refuse %d", len(out), accepted, libraryRefuses)
	if accepted < 1000 || libraryRefuses < 1000 {
		t.Errorf("both accept %d and refuse %d of %d: too few to compare", accepted, libraryRefuses, len(out))
	}
}

// Frames that a C++ program wrote are read.
func TestFramesFromCppAreRead(t *testing.T) {
	out := run(t, nil, oracle(t), "write")
	for _, name := range []string{"dense", "sparse"} {
		n := binary.LittleEndian.Uint32(out)
		v, err := Verify(out[4:4+n], Limits{})
		check(t, err)
		want, err := Verify(readHex(t, "testdata/v1/"+name+".hex"), Limits{})
		check(t, err)
		if got := describe(&v); got != describe(&want) {
			t.Errorf("%s is read as\n%s\nwant\n%s", name, got, describe(&want))
		}
		out = out[4+n:]
	}
}
