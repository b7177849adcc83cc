# quire_module(name USES other modules... DEPENDS libraries...): static library quire_<name> from
# src/quire/<name>, and, with tests on, the program <name>_test from its *_test.cc files.

add_library(quire_flags INTERFACE)
target_include_directories(
  quire_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
# No contraction: a * b + c must not become one rounding in one loop and stay two in its twin.
target_compile_options(quire_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers -Werror=return-type -Werror=unused-result
                                             -ffp-contract=off)
if(QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE}
                                               -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()

if(QUIRE_TESTS AND BUILD_TESTING)
  find_package(GTest REQUIRED)
endif()

function(quire_module name)
  cmake_parse_arguments(arg "" "" "USES;DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/quire/${name}/*.cc)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/quire/${name}/*.h)
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
  set_property(GLOBAL APPEND PROPERTY QUIRE_MODULES quire_${name})
  set_property(GLOBAL APPEND PROPERTY QUIRE_HEADERS ${headers})
  set_property(GLOBAL APPEND PROPERTY QUIRE_LIBRARIES ${arg_DEPENDS})
  if(tests AND QUIRE_TESTS AND BUILD_TESTING)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE quire_${name} GTest::gtest GTest::gmock
                                               GTest::gtest_main)
    target_compile_definitions(${name}_test
                               PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND ${name}_test)
  endif()
endfunction()
