package pages

import "syscall"

// advise asks for huge pages. It is best done before the memory is touched. Where it is refused the pages are small, and all
// else holds.
func advise(b []byte) {
	_ = syscall.Madvise(b[:len(b)/hugeBytes*hugeBytes], syscall.MADV_HUGEPAGE)
}
