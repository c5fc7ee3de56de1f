# Decides whether the CUDA backend is compiled in. Sets GRADBUS_CUDA_ENABLED, GRADBUS_CUDA_WHY (the end of the last
# line of the configuration), GRADBUS_CUDA_SOURCES and GRADBUS_CUDA_ARCHIVE, the static runtime.
set(GRADBUS_CUDA_ENABLED OFF)
set(GRADBUS_CUDA_ARCHIVE "")
set(GRADBUS_CUDA_SOURCES)
string(TOUPPER "${GRADBUS_CUDA}" mode)

if(NOT mode MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GRADBUS_CUDA is ${GRADBUS_CUDA}, want AUTO, ON or OFF")
endif()
if(mode STREQUAL "OFF")
  set(GRADBUS_CUDA_WHY "left out (GRADBUS_CUDA=OFF)")
  return()
endif()
if(mode STREQUAL "ON")
  message(FATAL_ERROR "GRADBUS_CUDA=ON, but there is no CUDA backend yet")
endif()
set(GRADBUS_CUDA_WHY "left out (not written yet)")
