# How everything of Quire is compiled, in the main build and in that of the Python extension; before
# project(), which has flags of its own for RelWithDebInfo.
# Lines in backtraces; full debug information costs a sixth to a third of a file's compile time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG" CACHE STRING "Flags of RelWithDebInfo")
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# Hardening, so that what a program does wrong ends it instead of being used: canaries, checked sizes
# of the C library's calls, assertions of the C++ library, indirect jumps to their targets only, and
# addresses that are bound and read-only before main. Kernels leave out what is within their loops
# (QuireKernels.cmake). Sanitizers have checks of their own.
if(NOT QUIRE_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>")
  add_compile_definitions("$<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>")
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")  # it needs optimisation
    add_compile_definitions("$<$<COMPILE_LANGUAGE:CXX>:_FORTIFY_SOURCE=2>")
  endif()
  cmake_host_system_information(RESULT processor QUERY OS_PLATFORM)  # project() is still to come
  if(processor STREQUAL "x86_64")
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fcf-protection=full>")
  endif()
  add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
endif()
