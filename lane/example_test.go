package lane_test

import (
	"fmt"

	"gradbus/lane"
)

// A trainer that hosts lanes 1 to 3 of 4 contributes one sum for each of these nodes.
func ExampleNodes() {
	fmt.Println(lane.Nodes(1, 3, 4))
	// Output: [[1,2) [2,4)]
}

// Three trainers share eight lanes.
func ExampleShare() {
	for trainer := range 3 {
		first, count := lane.Share(trainer, 3, 8)
		fmt.Printf("t%d: %d lanes from %d\n", trainer, count, first)
	}
	// Output:
	// t0: 2 lanes from 0
	// t1: 3 lanes from 2
	// t2: 3 lanes from 5
}

func ExampleNode_Split() {
	left, right := lane.Root(6).Split()
	fmt.Println(left, right)
	// Output: [0,4) [4,6)
}
