// Command capi is the session of package trainer as a C library: built with -buildmode=c-shared it is libgradbus.so, whose interface,
// gradbus.h, says who owns which memory, which calls wait, and what a code means.
package main

func main() {} // which a library has, and nobody calls
