// What the tests of gradbus.h in C have in common.
#ifndef GRADBUS_CHECK_H
#define GRADBUS_CHECK_H

#include <gradbus.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int wrong;

#define CHECK(ok, ...)                                  \
  do {                                                  \
    if (!(ok)) {                                        \
      printf("%s:%d: %s: ", __FILE__, __LINE__, #ok);   \
      printf(__VA_ARGS__);                              \
      printf("; gradbus_error: %s\n", gradbus_error()); \
      wrong = 1;                                        \
    }                                                   \
  } while (0)

// done is the code of a call, once it is over.
static int done(int code) {
  while (code == GRADBUS_AGAIN) code = gradbus_resume();
  return code;
}

// gives checks the code of a call, and that its text says something.
#define GIVES(want, text, call)                                                             \
  do {                                                                                      \
    int got = done(call);                                                                   \
    CHECK(got == (want) && ((want) == 0 || strstr(gradbus_error(), text)), "code %d", got); \
  } while (0)
#define OK(call) GIVES(GRADBUS_OK, "", call)

#endif
