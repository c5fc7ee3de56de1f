// Package harness runs the processes of one measured system: it starts them, tells each its settings, lets them begin
// together, draws their progress, takes their results, and leaves none behind. The same roles run as goroutines of one
// process where that is asked for.
//
// # A system
//
// A system is a table of roles and a driver. A role is a function that does the work of one process and returns its
// result; the driver starts members, each a role with settings, and talks to them through handles:
//
//	found, err := harness.Once[trainerResult](ctx, &flags, harness.System{...}, os.Stdout, os.Stderr)
//
// Once does these steps, which a driver may do one by one:
//
//	c := flags.Harness("update", roles, os.Stdout, os.Stderr)
//	defer c.Close()
//	servers, url, err := c.StartServers(ctx, 1, harness.ServerSettings{})  // ps processes on free ports
//	trainers, err := c.Start(ctx, harness.Spec{Role: "update-trainer", Name: "t0", Settings: settings{URL: url}})
//	err = c.Go(ctx, trainers...)               // when all of them have called Wait, all continue
//	err = trainers[0].Result(ctx, &found)      // waits for the end of the role
//
//	func trainerRole(ctx context.Context, m *harness.Member) (any, error) {
//		var s settings
//		if err := m.Settings(&s); err != nil { return nil, err }
//		... join ...
//		if err := m.Wait(ctx); err != nil { return nil, err }
//		... run, m.Progress(batch, batches) ...
//		return result, nil
//	}
//
// A role whose work is told bit by bit serves: it answers what the driver asks (Member.Serve, Handle.Ask and Answer).
//
// # Processes
//
// A member process is this program with the one argument "member"; it calls Child with the roles of all systems. Orders come on its standard input and answers go to its standard output, one line of JSON each
// (member.go). What a role must not do is write to standard output. As goroutines, members get and give the same JSON,
// so that what works one way works the other.
//
// The first member that fails ends all the others, and every wait of the driver gives its error: the member's name and
// the last line it said. With a server of its own process (--join), the others get 15 s to notice that a member was
// killed, so that the job ends there with its name. A member process ends with its driver, even where that is killed.
// Close always waits for all of them.
//
// # What is where
//
// harness.go starts and ends members and has a member as the driver sees it, its process and the bar of progress.
// member.go is a member as the role sees it, the lines of all members in the order of their times, and the role of a
// parameter server, and whole runs. settings.go declares the settings of a benchmark, flags.go has those that all systems
// have and the commands for several hosts, figures.go what they say of many times.
//
// # What it knows, and what it must not know
//
// It knows package ps, to run servers, internal/connect, the way of trainers to servers that run, and internal/spawn.
// It must not know any one system, nor package trainer: what a member does is its role's.
package harness
