package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"

	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
)

// ChildArgument is the one argument that makes this program a member.
const ChildArgument = "member"

var errDriverGone = errors.New("the driver is gone")

// Child is a member process: it reads from in which of the roles it is, runs it, and writes its result to out. It ends
// with its role, with an error where in ends before that, or with ctx.
func Child(ctx context.Context, roles map[string]Role, in io.Reader, out io.Writer) (err error) {
	config.PaceCollector() // as the commands do that this process stands for
	lines := bufio.NewReader(in)
	first, err := readOrder(lines)
	if err != nil {
		return fmt.Errorf("read what to be: %w", err)
	}
	role := roleOf(roles, first.Role)
	if first.Op != opBe || role == nil {
		return noRole(first.Role, roles)
	}
	stop, err := profile(first.Profile)
	if err != nil {
		return err
	}
	defer func() {
		if e := stop(); err == nil {
			err = e
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	to := json.NewEncoder(out)
	m := newMember(first.Name, first.Settings, func(x message) error { return to.Encode(x) })
	go func() { // ends with in, which ends with the driver at the latest; not waited for, since the process ends first
		for {
			o, err := readOrder(lines)
			if err == nil {
				err = m.order(o)
			}
			if err == io.EOF {
				err = errDriverGone
			}
			if err != nil {
				cancel(err)
				return
			}
		}
	}()
	return m.run(ctx, role)
}

// RunIfMember is for the main of a test program, whose members are that program again: where its argument says that it
// is one, it runs it, and status is what to exit with.
func RunIfMember(roles map[string]Role) (status int, is bool) {
	if len(os.Args) != 2 || os.Args[1] != ChildArgument {
		return 0, false
	}
	return config.Run(filepath.Base(os.Args[0]), os.Stderr, func(ctx context.Context) error {
		return Child(ctx, roles, os.Stdin, os.Stdout)
	}), true
}

// run is the role from start to end, with its result sent.
func (m *Member) run(ctx context.Context, role Role) error {
	result, err := role(ctx, m)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			return cause // which says more
		}
		return err
	}
	return m.say(opResult, "", result)
}

// roleOf is the role of this name, or nil.
func roleOf(roles map[string]Role, name string) Role {
	if role := roles[name]; role != nil || name != RoleServer {
		return role
	}
	return Server
}

func noRole(name string, roles map[string]Role) error {
	return fmt.Errorf("role %q: no such role (known: %s)", name, strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
}

func readOrder(r *bufio.Reader) (o order, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(line, &o)
}

// profile writes a CPU profile of the whole process until stop is called, and then what was allocated, to the same name
// with "allocs" in it. No path, no profile.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := atomicfile.Create(path, 0o666)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		file.Discard()
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		return errors.Join(file.Commit(), writeAllocations(strings.TrimSuffix(path, ".pprof")+".allocs.pprof"))
	}, nil
}

// writeAllocations writes what the process has allocated since its start.
func writeAllocations(path string) error {
	err := atomicfile.Write(path, 0o666, func(w io.Writer) error { return pprof.Lookup("allocs").WriteTo(w, 0) })
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}
