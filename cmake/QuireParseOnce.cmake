# Parses each header once for many files. The standard library is precompiled for each way of
# compiling, GoogleTest with it for tests, and the files of a target are compiled in batches, of eight or of
# sixteen tests: together a quarter of the processor time of `engine`. Whether each file includes what it uses is
# shown by clang-tidy and by the preset `dev`, which does neither.
option(QUIRE_PARSE_ONCE "Precompile headers and compile the files of a target in batches" ON)
set(QUIRE_BATCH_FILES 8 CACHE STRING "Files of a batch; of tests twice as many")

set(QUIRE_STANDARD_HEADERS
    <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstddef> <cstdint> <cstring>
    <deque> <filesystem> <fstream> <functional> <iterator> <limits> <map> <memory> <mutex> <numeric>
    <optional> <random> <ranges> <set> <span> <sstream> <string> <string_view> <thread> <tuple>
    <unordered_map> <utility> <variant> <vector>)

# quire_batched(target [TESTS]): its files are compiled in batches. A name that a file keeps to itself must
# differ from those of the other files of the target.
function(quire_batched target)
  set(files ${QUIRE_BATCH_FILES})
  if("TESTS" IN_LIST ARGN)
    math(EXPR files "2 * ${files}")
  endif()
  if(QUIRE_PARSE_ONCE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  endif()
endfunction()

# quire_precompiled(target kind): its files see the headers that were precompiled for that kind.
function(quire_precompiled target kind)
  if(QUIRE_PARSE_ONCE)
    target_precompile_headers(${target} REUSE_FROM quire_precompiled_${kind})
  endif()
endfunction()

# A header is precompiled once for each set of flags: modules are libraries, instrumented or (PLAIN)
# not; tests are programs, whose code is position independent in another way; some are not optimised.
function(quire_precompile_kind kind)
  cmake_parse_arguments(arg "PROGRAM;PLAIN" "" "HEADERS;OPTIONS;LIBRARIES" ${ARGN})
  set(target quire_precompiled_${kind})
  set(empty ${PROJECT_BINARY_DIR}/empty_main.cc)
  file(CONFIGURE OUTPUT ${empty} CONTENT "int main() {}\n")
  if(arg_PROGRAM)
    add_executable(${target} EXCLUDE_FROM_ALL ${empty})
  else()
    add_library(${target} STATIC EXCLUDE_FROM_ALL ${empty})
  endif()
  target_link_libraries(${target} PRIVATE quire_flags ${arg_LIBRARIES})
  target_compile_options(${target} PRIVATE ${arg_OPTIONS})
  set_target_properties(${target} PROPERTIES QUIRE_PLAIN ${arg_PLAIN})
  target_precompile_headers(${target} PRIVATE ${QUIRE_STANDARD_HEADERS} ${arg_HEADERS})
endfunction()

if(NOT QUIRE_PARSE_ONCE)
  return()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # A time of making in the header would be news to ccache.
  target_compile_options(quire_flags INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
else()
  # GCC takes a file of a batch for a header, where a type of the file's own in a member is a fault.
  target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
quire_precompile_kind(modules)
if(QUIRE_SANITIZE)
  quire_precompile_kind(plain_modules PLAIN)
endif()
if(QUIRE_HAS_TESTS)
  set(gtest HEADERS <gmock/gmock.h> <gtest/gtest.h> <boost/json.hpp>
      LIBRARIES GTest::gtest GTest::gmock Boost::headers)
  quire_precompile_kind(computing_tests PROGRAM OPTIONS -O1 ${gtest})
  quire_precompile_kind(plain_tests PROGRAM OPTIONS -O0 -U_FORTIFY_SOURCE ${gtest})
endif()
