# How test programs are compiled and registered. Sets QUIRE_HAS_TESTS.
#
# Labels: `gpu` needs a GPU; `fetched` reads what tools/fetch_*.py fetch; `slow` runs with sanitizers in turn alone;
# `long` is a random or stress test at its full length, which the same program without the label has
# cut short (src/quire/base/test_length.h).
set(QUIRE_HAS_TESTS OFF)
if(QUIRE_TESTS STREQUAL "AUTO" AND BUILD_TESTING)
  find_package(GTest QUIET)
  if(GTest_FOUND)
    set(QUIRE_HAS_TESTS ON)
  else()
    message(STATUS "Tests: off, GoogleTest is not installed")
  endif()
elseif(QUIRE_TESTS AND BUILD_TESTING)
  find_package(GTest REQUIRED)
  set(QUIRE_HAS_TESTS ON)
endif()

# quire_add_gtest(name program [PINNED] [FILTER patterns] [SHARDS n] [LABELS labels...]): runs the GoogleTest
# `program` as the CTests `name`, or `name`/1 to n. Each leaves its cases in cases/<test>.json.
# PINNED: CTest gives it one processor. Threads that share small products then take turns instead of pushing
# each other away: warm_cold_test took 14 s instead of 32 beside another program.
function(quire_add_gtest name program)
  cmake_parse_arguments(arg "PINNED" "SHARDS;FILTER" "LABELS" ${ARGN})
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    set(test ${name})
    set(environment)
    if(arg_SHARDS GREATER 1)
      set(test ${name}/${shard})
      math(EXPR index "${shard} - 1")
      set(environment GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${index})
    endif()
    string(REPLACE "/" "_" report ${test})
    list(APPEND environment GTEST_OUTPUT=json:${PROJECT_BINARY_DIR}/cases/${report}.json)
    if(arg_FILTER)
      list(APPEND environment GTEST_FILTER=${arg_FILTER})
    endif()
    if("long" IN_LIST arg_LABELS)
      list(APPEND environment QUIRE_TEST_LENGTH=full)
    endif()
    add_test(NAME ${test} COMMAND ${program})
    set_tests_properties(${test} PROPERTIES ENVIRONMENT "${environment}" LABELS "${arg_LABELS}"
                                            PROCESSOR_AFFINITY ${arg_PINNED})
  endforeach()
endfunction()

# These replace operator new, which in a batch would be that of other files too.
set_source_files_properties(src/quire/attention/invariance_test.cc src/quire/kernels/linear_test.cc
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# A test that computes much itself (oracles in loops) is optimised, as far as that pays: -O2 compiles a third
# longer.
function(quire_computing_test target)
  target_compile_options(${target} PRIVATE -O1)
  quire_precompiled(${target} computing_tests)
  quire_batched(${target} TESTS)
endfunction()

# A test that computes little is compiled without optimisation, in 0.5 to 0.6 of the time.
function(quire_plain_test target)
  target_compile_options(${target} PRIVATE -O0 -U_FORTIFY_SOURCE)
  quire_precompiled(${target} plain_tests)
  quire_batched(${target} TESTS)
endfunction()

# A program of the GPU machine, where only glibc and a driver can be expected.
function(quire_gpu_program name)
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc -Wl,--as-needed)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu
                                           BUILD_RPATH "$ORIGIN/lib")
  add_dependencies(quire_gpu ${name})
endfunction()

# quire_gpu_test(name SOURCES files... LIBRARIES modules...): a gtest program with the label `gpu`.
function(quire_gpu_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/gpu/gpu_test_main.cc)
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} quire_device GTest::gtest GTest::gmock)
  quire_gpu_program(${name})
  quire_add_gtest(${name} ${name} LABELS gpu)
  set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
endfunction()
