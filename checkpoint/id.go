package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gradbus/internal/regular"
	"gradbus/schema"
)

// ID names a checkpoint among those of a job. Its text sorts by age, as Compare does.
type ID struct {
	Epoch   uint64         // the number of the run, among the runs of this job name that wrote into the folder, from 1
	Run     schema.RunID   // of the job
	Version schema.Version // of everything in it
}

const idForm = "%06d-%016x-%012d"

// String is the name of the checkpoint's folder.
//
//	ID{1, 0xabc, 500}.String() // 000001-0000000000000abc-000000000500
func (id ID) String() string {
	return fmt.Sprintf(idForm, id.Epoch, uint64(id.Run), uint64(id.Version))
}

// ParseID reads what String wrote, and nothing else.
func ParseID(s string) (ID, error) {
	var epoch, run, version uint64
	_, err := fmt.Sscanf(s, "%d-%x-%d", &epoch, &run, &version)
	id := ID{epoch, schema.RunID(run), schema.Version(version)}
	if err != nil || id.String() != s {
		return ID{}, fmt.Errorf("checkpoint id %q: want the number of a run, its id and a version, as %s", s,
			ID{1, 0xabc, 500})
	}
	return id, nil
}

// Compare is below 0 where id is older than other, and above where it is newer.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Epoch, other.Epoch), cmp.Compare(id.Run, other.Run),
		cmp.Compare(id.Version, other.Version))
}

// MarshalText and UnmarshalText are String and ParseID.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is ParseID.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseID(string(text))
	return err
}

// Names below a folder of checkpoints.
const completeName = "complete.json"

func jobFolder(dir string, job schema.JobName) string { return filepath.Join(dir, string(job)) }

func folderOf(dir string, job schema.JobName, id ID) string {
	return filepath.Join(jobFolder(dir, job), id.String())
}

func partPath(dir string, job schema.JobName, id ID, shard int) string {
	return filepath.Join(folderOf(dir, job, id), fmt.Sprintf("s%d.safetensors", shard))
}

// openBelow opens a file of a folder of checkpoints, in which other users may have put links and pipes.
func openBelow(dir, path string) (*os.File, error) {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return nil, err
	}
	return regular.OpenIn(dir, name)
}

// checkBelow refuses a path below a folder of checkpoints that a link leads out of it: what is written there could not
// be read (openBelow). What is not there may be made.
func checkBelow(dir, path string) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		_, err = root.Stat(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, system := errors.AsType[syscall.Errno](err); err != nil && !system { // os has no name for it
		err = fmt.Errorf("want a folder below %s, and no link out of it: %w", dir, err)
	}
	return err
}

func completePath(dir string, job schema.JobName, id ID) string {
	return filepath.Join(folderOf(dir, job, id), completeName)
}
