// What shim.c and Go have in common.
#ifndef GRADBUS_SHIM_H
#define GRADBUS_SHIM_H

#include "gradbus.h"

#define GRADBUS_RELEASE "0.2.0"  // that of package gradbus

// gradbus_thread is what belongs to one thread of the caller.
typedef struct {
  int32_t patience;  // of gradbus_patience
  uint64_t pending;  // the call that gave GRADBUS_AGAIN; 0 for none
  char text[2048];   // of gradbus_error
} gradbus_thread;

#endif
