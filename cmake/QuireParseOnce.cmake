# Sanitizer builds parse a header once for many files: the standard library and GoogleTest are
# precompiled for each way of compiling (modules, tests that compute, plain tests), and modules of many
# files are compiled eight files at a time: half the time for text and engine. The dev build does
# neither, and so shows that each file includes what it uses.

# quire_precompiled(target kind): its files see what is precompiled for that kind.
function(quire_precompiled target kind)
  if(QUIRE_PARSE_ONCE)
    target_precompile_headers(${target} REUSE_FROM quire_precompiled_${kind})
  endif()
endfunction()

# Modules whose files do not share the names of what is theirs alone.
set(QUIRE_BATCHED_MODULES quire_text quire_kv quire_kv_store quire_engine)

function(quire_parse_once module)
  quire_precompiled(${module} modules)
  if(QUIRE_PARSE_ONCE AND module IN_LIST QUIRE_BATCHED_MODULES)
    set_target_properties(${module} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

if(NOT QUIRE_PARSE_ONCE)
  return()
endif()
# A time of making in the header would be news to ccache.
target_compile_options(quire_flags INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
set(QUIRE_STANDARD_HEADERS
    <algorithm> <array> <atomic> <chrono> <condition_variable> <cstddef> <cstdint> <deque> <filesystem>
    <functional> <map> <memory> <mutex> <optional> <random> <set> <span> <sstream> <string>
    <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
set(empty ${PROJECT_BINARY_DIR}/empty_main.cc)
file(CONFIGURE OUTPUT ${empty} CONTENT "int main() {}\n")

add_library(quire_precompiled_modules STATIC ${empty})
add_executable(quire_precompiled_computing_tests ${empty})  # position independent as programs are
add_executable(quire_precompiled_plain_tests ${empty})
target_compile_options(quire_precompiled_plain_tests PRIVATE -O0)
foreach(kind modules computing_tests plain_tests)
  target_link_libraries(quire_precompiled_${kind} PRIVATE quire_flags)
  target_precompile_headers(quire_precompiled_${kind} PRIVATE ${QUIRE_STANDARD_HEADERS})
endforeach()
foreach(kind computing_tests plain_tests)
  target_link_libraries(quire_precompiled_${kind} PRIVATE GTest::gtest GTest::gmock)
  target_precompile_headers(quire_precompiled_${kind} PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
endforeach()
