# The CUDA sources as plain C++, see csrc/emu/cuda_runtime.h, and the tests that need them. Libraries of their own: no
# binary carries them.
set(GRADBUS_EMU_SOURCES
  csrc/emu/fibre.cc
  csrc/emu/machine.cc
  csrc/emu/memory.cc
  csrc/emu/runtime.cc
  csrc/emu/switches.cc)

# For a target whose sources see the emulated CUDA. One array is read as words and as floats, which a device does not
# mind; and pragmas there are for nvcc.
function(gradbus_emulates target)
  target_compile_definitions(${target} PRIVATE GRADBUS_EMU)
  target_include_directories(${target} PRIVATE csrc/emu csrc/include csrc)
  target_compile_options(${target} PRIVATE ${GRADBUS_CXX_FLAGS} -fno-strict-aliasing -Wno-unknown-pragmas)
endfunction()

add_library(gradbus_emu STATIC ${GRADBUS_EMU_SOURCES})
gradbus_emulates(gradbus_emu)
target_compile_options(gradbus_emu PRIVATE -O1) # -O3 compiles for twice as long, and runs a tenth faster
set(GRADBUS_EMU_KERNELS)
foreach(source ${GRADBUS_KERNEL_SOURCES})
  get_filename_component(name ${source} NAME_WE)
  file(CONFIGURE OUTPUT emu/${name}.cc CONTENT "#include \"${CMAKE_SOURCE_DIR}/${source}\"\n")
  list(APPEND GRADBUS_EMU_KERNELS ${CMAKE_BINARY_DIR}/emu/${name}.cc)
endforeach()
target_sources(gradbus_emu PRIVATE ${GRADBUS_EMU_KERNELS})
set(GRADBUS_EMU_ARCHIVE $<TARGET_FILE:gradbus_emu>)

# As libgradbus.so, with the emulated backend for CUDA's: a kernel library that tries a machine's programs without a GPU. The
# entries are named, since an archive gives what is asked for.
add_library(gradbus_emu_library SHARED csrc/emu/as_cuda.cc)
set_target_properties(gradbus_emu_library PROPERTIES OUTPUT_NAME gradbus_emu)
target_include_directories(gradbus_emu_library PRIVATE csrc/include)
target_link_options(gradbus_emu_library PRIVATE -Wl,-u,gb_backend,-u,gb_dense_open,-u,gb_maps_of -Wl,-z,defs)
target_link_libraries(gradbus_emu_library PRIVATE gradbus_emu gradbus_own pthread dl)

if(NOT GRADBUS_TESTS)
  return()
endif()

add_library(gradbus_cases STATIC csrc/tests/call.cc csrc/tests/cases.cc)
target_include_directories(gradbus_cases PRIVATE csrc/include csrc)
target_compile_options(gradbus_cases PRIVATE ${GRADBUS_CXX_FLAGS})

function(gradbus_emu_test name source emulation)
  add_executable(gradbus_${name} csrc/tests/${source})
  gradbus_emulates(gradbus_${name})
  target_link_libraries(gradbus_${name} PRIVATE gradbus_cases ${emulation} gradbus_own pthread)
  add_test(NAME ${name} COMMAND gradbus_${name} ${ARGN})
  add_dependencies(gradbus_tests gradbus_${name})
endfunction()
gradbus_emu_test(emu_test emu_test.cc gradbus_emu)
gradbus_emu_test(emu_runtime_test emu_runtime_test.cc gradbus_emu)
gradbus_emu_test(cuda_apply_test cuda_apply_test.cc gradbus_emu)
gradbus_emu_test(cuda_bags_test cuda_bags_test.cc gradbus_emu)
gradbus_emu_test(device_test device_test.cc gradbus_emu)

# The same kernels with a call before each access to memory, which csrc/emu/races.cc answers instead of the sanitizer's
# own library. The sanitizers of GRADBUS_SANITIZE cannot be had beside it.
if(GRADBUS_SANITIZE)
  gradbus_emu_test(barrier_test barrier_test.cc gradbus_emu ${CMAKE_SOURCE_DIR}/csrc/cuda)
else()
  set(GRADBUS_WATCH -fsanitize=thread -O1)
  add_library(gradbus_watched_kernels OBJECT ${GRADBUS_EMU_KERNELS})
  gradbus_emulates(gradbus_watched_kernels)
  target_compile_options(gradbus_watched_kernels PRIVATE ${GRADBUS_WATCH})
  add_library(gradbus_watched_emu STATIC ${GRADBUS_EMU_SOURCES} csrc/emu/races.cc
    $<TARGET_OBJECTS:gradbus_watched_kernels>)
  gradbus_emulates(gradbus_watched_emu)
  gradbus_emu_test(barrier_test barrier_test.cc gradbus_watched_emu ${CMAKE_SOURCE_DIR}/csrc/cuda)
  gradbus_emu_test(emu_race_test emu_test.cc gradbus_watched_emu)
  target_compile_options(gradbus_emu_race_test PRIVATE ${GRADBUS_WATCH})
endif()
