#include "gradbus.h"
int main() { return gb_backend(GB_ABI) == nullptr; }
