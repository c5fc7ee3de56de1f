//go:build cgo && linux

// The functions of NVIDIA's library, defined here so that nothing in the program is left for the loader to find: each
// passes its call on to where gradbus_nvml_open has found it, and answers "function not found" before that, and where
// the library lacks it.
//
// One shape serves them all. A function of NVML takes at most six arguments, every one an integer, an enumeration or a
// pointer, which the calling conventions of 64-bit Linux pass in as many registers; what a function does not take is
// passed on unread. They are hidden: a library that is opened does not find them in place of its own.
#include <dlfcn.h>
#include <stddef.h>

typedef unsigned long word;
typedef word function(word, word, word, word, word, word);

static word not_found(word a, word b, word c, word d, word e, word f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  return 13; // NVML_ERROR_FUNCTION_NOT_FOUND
}

static word no_text(word a, word b, word c, word d, word e, word f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  return 0;
}

#define DEFINE(name, otherwise)                                                                        \
  static function* on_##name = otherwise;                                                              \
  __attribute__((visibility("hidden"))) word name(word a, word b, word c, word d, word e, word f) {    \
    return on_##name(a, b, c, d, e, f);                                                                \
  }
#define NVML(name) DEFINE(name, not_found)
#include "functions.h"
DEFINE(nvmlErrorString, no_text) // the only one that answers text
#undef NVML

static const struct {
  const char* name;
  function** to;
} functions[] = {
#define NVML(name) {#name, &on_##name},
#include "functions.h"
    NVML(nvmlErrorString)};

// gradbus_nvml_open opens a library and finds its functions; it stays open. It answers NULL, or why it cannot be
// opened.
const char* gradbus_nvml_open(const char* path) {
  void* const library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) return dlerror();
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    function* const found = (function*)dlsym(library, functions[i].name);
    if (found != NULL) *functions[i].to = found;
  }
  return NULL;
}
