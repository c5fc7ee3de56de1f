//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64 || wasm

package schema

// onlyForLittleEndianMachines makes compilation fail on other machines: views of values and keys are the bytes of the
// wire.
const onlyForLittleEndianMachines = true
