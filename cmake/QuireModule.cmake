# quire_module(name USES other modules... DEPENDS libraries...): static library quire_<name> from
# src/quire/<name>, and, with tests on, the program <name>_test from its *_test.cc files. What lies
# below src/quire/<name>/cuda is built only with CUDA; its tests are the program <name>_gpu_test, which
# carries the label `gpu` and fails where no GPU is.

# Modules that the thread sanitizer instruments; `all` for every one. Beside those whose threads meet,
# those that make threads wait by atomics of their own: it must see what they order.
set(QUIRE_TSAN_MODULES kv sched device kernels kv_cache kv_store attention engine tiers chunks sequences runtime contexts
    api
    CACHE STRING "Modules that ThreadSanitizer instruments")

add_library(quire_flags INTERFACE)
target_include_directories(
  quire_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
# No contraction: a * b + c must not become one rounding in one loop and stay two in its twin.
set(QUIRE_CXX_FLAGS -Wall -Wextra -Wno-missing-field-initializers -Werror=return-type
                    -Werror=unused-result -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND QUIRE_CXX_FLAGS -Wno-restrict -Wno-array-bounds)  # falsely of its own std::string
endif()
if(QUIRE_SANITIZE)
  # A target with the property QUIRE_PLAIN is not instrumented.
  set(sanitized -fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all)
  if(QUIRE_SANITIZE MATCHES "address.*undefined")
    # AddressSanitizer sees such accesses itself; asking twice takes a seventh of the compile time.
    list(APPEND sanitized -fno-sanitize=null,object-size)
  endif()
  target_compile_options(
    quire_flags INTERFACE -fno-omit-frame-pointer
                          "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:QUIRE_PLAIN>>>:${sanitized}>")
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

# Modules whose tests compute much themselves (oracles in loops).
set(QUIRE_COMPUTING_TESTS kv sched engine kernels attention sampling model)
# Those of them whose tests start threads for small products only.
set(QUIRE_PINNED_TESTS kernels attention model)
# Modules whose tests take longest, and in how many parts they run.
set(QUIRE_SHARDS_api 4)
set(QUIRE_SHARDS_kv 2)
set(QUIRE_SHARDS_kv_store 2)
if(QUIRE_SANITIZE STREQUAL "thread")
  # Callers in several threads, and stores that are written and read behind calls. In the others one
  # caller and the engine's thread take turns, as they do in these too.
  set(QUIRE_FILTER_api *Threads.*:SavedChunks.*:SharedStore.*:ContextTiers.*:Sessions.*)
endif()
# Modules that read files of strangers: fuzzers see which of their branches an input takes.
set(QUIRE_FUZZED_MODULES base text weights kv_store model)
set(QUIRE_FUZZ_FLAGS -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)

include(cmake/QuireParseOnce.cmake)

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
    # Outside the batches: a check compiles them without the rest of the module.
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    target_compile_definitions(quire_${name} PRIVATE QUIRE_HAS_CUDA)
    # The headers only here: what includes CUDA elsewhere must not compile.
    target_include_directories(quire_${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(quire_${name} PUBLIC $<LINK_ONLY:CUDA::cudart_static>)
    set_property(GLOBAL APPEND PROPERTY QUIRE_HEADERS ${headers})
    set_property(GLOBAL APPEND PROPERTY QUIRE_LIBRARIES CUDA::cudart_static)
  endif()
  if(tests AND QUIRE_HAS_TESTS)
    quire_gpu_test(${name}_gpu_test SOURCES ${tests} LIBRARIES quire_${name})
  endif()
endfunction()

# Adds the program <name>_test.
function(quire_module_test name)
  add_executable(${name}_test ${ARGN})
  target_link_libraries(${name}_test PRIVATE quire_${name} GTest::gtest GTest::gmock
                                             GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
  if(name IN_LIST QUIRE_COMPUTING_TESTS)
    quire_computing_test(${name}_test)
  else()
    quire_plain_test(${name}_test)
  endif()
  set(pinned)
  if(name IN_LIST QUIRE_PINNED_TESTS)
    set(pinned PINNED)
  endif()
  quire_add_gtest(${name} ${name}_test ${pinned} SHARDS ${QUIRE_SHARDS_${name}} FILTER ${QUIRE_FILTER_${name}})
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
  list(TRANSFORM arg_USES PREPEND quire_)
  add_library(quire_${name} STATIC ${sources})
  target_link_libraries(quire_${name} PUBLIC quire_flags ${arg_USES} ${arg_DEPENDS})
  if(QUIRE_SANITIZE STREQUAL "thread" AND NOT (name IN_LIST QUIRE_TSAN_MODULES OR QUIRE_TSAN_MODULES STREQUAL "all"))
    set_target_properties(quire_${name} PROPERTIES QUIRE_PLAIN ON)
    quire_precompiled(quire_${name} plain_modules)
  else()
    quire_precompiled(quire_${name} modules)
  endif()
  quire_batched(quire_${name})
  if(QUIRE_FUZZ AND name IN_LIST QUIRE_FUZZED_MODULES)
    target_compile_options(quire_${name} PRIVATE ${QUIRE_FUZZ_FLAGS})
  endif()
  set_property(GLOBAL APPEND PROPERTY QUIRE_MODULES quire_${name})
  set_property(GLOBAL APPEND PROPERTY QUIRE_HEADERS ${headers})
  set_property(GLOBAL APPEND PROPERTY QUIRE_LIBRARIES ${arg_DEPENDS})
  if(tests AND QUIRE_HAS_TESTS)
    quire_module_test(${name} ${tests})
  endif()
  if(QUIRE_HAS_CUDA)
    quire_module_cuda(${name})
  endif()
endfunction()
