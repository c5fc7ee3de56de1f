//go:build cgo

package timerslack

/*
#include <sys/prctl.h>

__attribute__((constructor)) static void gradbus_timer_slack(void) {
  enum { slack_ns = 1000000 };
  int now = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  if (now > 0 && now < slack_ns) prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0, 0, 0);
}
*/
import "C"
