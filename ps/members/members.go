// Package members knows who may connect to a ps that has a members file, and what each may publish and subscribe to.
//
//	list, err := members.Read("members")
//	grant := list.Grant(key, "films/t3") // nil: that key may not connect under that name
//
// It knows roles, jobs and subjects. It must not know connections, sessions or jobs that run.
package members

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gradbus/fabric"
	"gradbus/internal/regular"
	"gradbus/schema"
)

// Role is what a member is for.
type Role string

const (
	Trainer  Role = "trainer"  // joins its jobs, and holds slots in them
	PS       Role = "ps"       // another ps, which may do everything
	Operator Role = "operator" // asks any ps to drain, and any job for a takeover or other learning rates
)

// Roles are all roles.
var Roles = []Role{Trainer, PS, Operator}

// AllJobs stands for every job.
const AllJobs = "*"

// fileBytesMax bounds a members file: some thousand lines.
const fileBytesMax = 1 << 20

// Member is one line of a members file.
type Member struct {
	Role Role
	Name string
	Key  string   // public half
	Jobs []string // of a trainer: exact names, or AllJobs
}

// Line returns the member's line in a members file.
func (m *Member) Line() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", m.Role, m.Name, m.Key, strings.Join(m.Jobs, ",")))
}

// Check returns what is wrong with a member.
func (m *Member) Check() error {
	if !slices.Contains(Roles, m.Role) {
		return fmt.Errorf("role %q: want one of %v", m.Role, Roles)
	}
	if err := schema.CheckName("member", m.Name); err != nil {
		return err
	}
	if err := fabric.CheckPublicKey(m.Key); err != nil {
		return err
	}
	if (m.Role == Trainer) != (len(m.Jobs) > 0) {
		return fmt.Errorf("role %s with jobs %q: want jobs for a trainer alone, exact names or %s", m.Role, m.Jobs, AllJobs)
	}
	for _, job := range m.Jobs {
		if job == AllJobs {
			continue
		}
		if err := schema.CheckName("job", job); err != nil {
			return err
		}
		if job == string(schema.TelemetryJob) {
			return fmt.Errorf("job %q: that name is for what ps say to each other", job)
		}
	}
	return nil
}

// List is a members file as it was read. It does not change.
type List struct{ byKey map[string]Member }

// Read reads a members file. Each line is a member: role, name, key and, for a trainer, jobs. Lines that are empty or
// begin with # are skipped.
func Read(path string) (*List, error) {
	text, err := regular.Read(path, fileBytesMax)
	if err != nil {
		return nil, fmt.Errorf("members: %w", err)
	}
	list, err := Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("members %s: %w", path, err)
	}
	return list, nil
}

// Parse reads the text of a members file.
func Parse(text string) (*List, error) {
	l := &List{byKey: map[string]Member{}}
	names := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		var m Member
		err := errors.New("want role, name, key and, for a trainer, jobs")
		if len(words) == 3 || len(words) == 4 {
			m = Member{Role: Role(words[0]), Name: words[1], Key: words[2]}
			if len(words) == 4 {
				m.Jobs = strings.Split(words[3], ",")
			}
			err = m.Check()
		}
		if _, twice := l.byKey[m.Key]; err == nil && (twice || names[m.Name]) {
			err = fmt.Errorf("member %s: its name or key stands on another line, too", m.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		l.byKey[m.Key], names[m.Name] = m, true
	}
	return l, nil
}

// Names returns the names of all members, ascending.
func (l *List) Names() []string {
	var names []string
	for m := range maps.Values(l.byKey) {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// Equal reports whether two lists have the same members.
func (l *List) Equal(other *List) bool {
	return maps.EqualFunc(l.byKey, other.byKey, func(a, b Member) bool { return a.Line() == b.Line() })
}

// kind is what a connection of the form JOB/NAME is: by which one its permissions are chosen.
type kind int

const (
	unknown kind = iota
	joiner       // j-X: it asks the coordinator, and hears the answers
	slot         // tN: it holds slot N
)

// kindOf returns the parts of a connection's name.
func kindOf(connection string) (job, from string, k kind) {
	job, from, found := strings.Cut(connection, "/")
	if !found || schema.CheckName("job", job) != nil || schema.CheckName("member", from) != nil {
		return "", "", unknown
	}
	digits, isSlot := strings.CutPrefix(from, "t")
	switch {
	case strings.HasPrefix(from, "j-"):
		return job, from, joiner
	case isSlot && digits != "" && strings.Trim(digits, "0123456789") == "":
		return job, from, slot
	}
	return "", "", unknown
}

// table lists what a connection may publish and subscribe to, by role and kind, as templates: {job} and {from} are the
// parts of its name. A combination that is not there is refused.
var table = []struct {
	role               Role
	kind               kind
	publish, subscribe []string
}{
	{Trainer, joiner,
		[]string{"gradbus.v1.{job}.{from}.ctl.coordinator"},
		[]string{"gradbus.v1.{job}.coordinator.ctl.{from}"}},
	{Trainer, slot,
		[]string{"gradbus.v1.{job}.{from}.>"},
		[]string{"gradbus.v1.{job}.*.*.{from}", "gradbus.v1.{job}.*.*.{from}.>", "gradbus.v1.{job}.*.*.all",
			"gradbus.v1.{job}.*.*.all.>"}},
	{Operator, joiner,
		[]string{"gradbus.v1.{job}.{from}.ctl.coordinator"},
		[]string{"gradbus.v1.{job}.coordinator.ctl.{from}"}},
}

// Grant returns the permissions of a connection by its key and name; nil: it is refused.
func (l *List) Grant(key, connection string) *fabric.Grant {
	m, ok := l.byKey[key]
	if !ok {
		return nil
	}
	if m.Role == PS {
		return &fabric.Grant{All: true}
	}
	job, from, k := kindOf(connection)
	if m.Role == Trainer && !m.joins(job) {
		return nil
	}
	fill := strings.NewReplacer("{job}", job, "{from}", from)
	for _, row := range table {
		if row.role != m.Role || row.kind != k {
			continue
		}
		g := &fabric.Grant{}
		for _, p := range row.publish {
			g.Publish = append(g.Publish, fill.Replace(p))
		}
		for _, p := range row.subscribe {
			g.Subscribe = append(g.Subscribe, fill.Replace(p))
		}
		return g
	}
	return nil
}

// joins reports whether a member may join a job, or one that is derived from such a job.
func (m *Member) joins(job string) bool {
	if job == string(schema.TelemetryJob) {
		return false
	}
	return slices.Contains(m.Jobs, AllJobs) || slices.Contains(m.Jobs, string(schema.JobName(job).Chosen()))
}
