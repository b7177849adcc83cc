# quire_module(name USES other modules... DEPENDS libraries...): static library quire_<name> from
# src/quire/<name>, and, with tests on, the program <name>_test from its *_test.cc files. What lies
# below src/quire/<name>/cuda is built only with CUDA; its tests are the program <name>_gpu_test, which
# carries the label `gpu` and fails where no GPU is.

add_library(quire_flags INTERFACE)
target_include_directories(
  quire_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
# No contraction: a * b + c must not become one rounding in one loop and stay two in its twin.
set(QUIRE_CXX_FLAGS -Wall -Wextra -Wno-missing-field-initializers -Werror=return-type
                    -Werror=unused-result -ffp-contract=off)
if(QUIRE_SANITIZE)
  list(APPEND QUIRE_CXX_FLAGS -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer
       -fno-sanitize-recover=all)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()
set(QUIRE_CUDA_FLAGS
    --expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Werror=return-type,-ffp-contract=off)
target_compile_options(quire_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${QUIRE_CXX_FLAGS}>"
                                             "$<$<COMPILE_LANGUAGE:CUDA>:${QUIRE_CUDA_FLAGS}>")
if(QUIRE_HAS_CUDA)
  add_custom_target(quire_gpu)  # every test and benchmark program that needs a GPU
endif()

if(QUIRE_TESTS AND BUILD_TESTING)
  find_package(GTest REQUIRED)
endif()

# Modules whose tests compute much themselves (oracles in loops).
set(QUIRE_COMPUTING_TESTS kv sched engine kernels attention sampling model)
# Modules that read files of strangers: fuzzers see which of their branches an input takes.
set(QUIRE_FUZZED_MODULES base text weights kv_store model)
set(QUIRE_FUZZ_FLAGS -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)

include(cmake/QuireParseOnce.cmake)

# A test that computes little is compiled without optimisation, in 0.5 to 0.6 of the time.
function(quire_plain_test name)
  target_compile_options(${name} PRIVATE -O0)
  quire_precompiled(${name} plain_tests)
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
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS gpu RUN_SERIAL ON)
endfunction()

# Adds what lies below src/quire/<name>/cuda to the library, and its tests.
function(quire_module_cuda name)
  set(folder ${PROJECT_SOURCE_DIR}/src/quire/${name}/cuda)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cu ${folder}/*.cc)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${folder}/*.h)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.(cc|cu)$")
  list(FILTER sources EXCLUDE REGEX "_test\\.(cc|cu)$")
  if(sources)
    target_sources(quire_${name} PRIVATE ${sources})
    target_compile_definitions(quire_${name} PRIVATE QUIRE_HAS_CUDA)
    # The headers only here: what includes CUDA elsewhere must not compile.
    target_include_directories(quire_${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(quire_${name} PUBLIC $<LINK_ONLY:CUDA::cudart_static>)
    set_property(GLOBAL APPEND PROPERTY QUIRE_HEADERS ${headers})
    set_property(GLOBAL APPEND PROPERTY QUIRE_LIBRARIES CUDA::cudart_static)
  endif()
  if(tests AND QUIRE_TESTS AND BUILD_TESTING)
    quire_gpu_test(${name}_gpu_test SOURCES ${tests} LIBRARIES quire_${name})
  endif()
endfunction()

function(quire_module name)
  cmake_parse_arguments(arg "" "" "USES;DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/quire/${name}/*.cc)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/quire/${name}/*.h)
  list(FILTER sources EXCLUDE REGEX "/${name}/cuda/")
  list(FILTER headers EXCLUDE REGEX "/${name}/cuda/")
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  if(NOT sources)
    file(WRITE ${PROJECT_BINARY_DIR}/empty.cc "")
    set(sources ${PROJECT_BINARY_DIR}/empty.cc)
  endif()
  list(TRANSFORM arg_USES PREPEND quire_)
  add_library(quire_${name} STATIC ${sources})
  target_link_libraries(quire_${name} PUBLIC quire_flags ${arg_USES} ${arg_DEPENDS})
  quire_parse_once(quire_${name})
  if(QUIRE_FUZZ AND name IN_LIST QUIRE_FUZZED_MODULES)
    target_compile_options(quire_${name} PRIVATE ${QUIRE_FUZZ_FLAGS})
  endif()
  set_property(GLOBAL APPEND PROPERTY QUIRE_MODULES quire_${name})
  set_property(GLOBAL APPEND PROPERTY QUIRE_HEADERS ${headers})
  set_property(GLOBAL APPEND PROPERTY QUIRE_LIBRARIES ${arg_DEPENDS})
  if(tests AND QUIRE_TESTS AND BUILD_TESTING)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE quire_${name} GTest::gtest GTest::gmock
                                               GTest::gtest_main)
    target_compile_definitions(${name}_test
                               PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    if(name IN_LIST QUIRE_COMPUTING_TESTS)
      quire_precompiled(${name}_test computing_tests)
    else()
      quire_plain_test(${name}_test)
    endif()
    add_test(NAME ${name} COMMAND ${name}_test)
  endif()
  if(QUIRE_HAS_CUDA)
    quire_module_cuda(${name})
  endif()
endfunction()
