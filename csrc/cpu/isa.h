// What this machine runs beyond the baseline; the answers include the operating system's support.
// For files that are compiled for the baseline alone.
#ifndef GRADBUS_CPU_ISA_H_
#define GRADBUS_CPU_ISA_H_

#ifdef GRADBUS_X86
namespace gradbus {

inline bool RunsAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }

inline bool RunsAvx512() {
  return RunsAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

}  // namespace gradbus
#endif

#endif  // GRADBUS_CPU_ISA_H_
