# The shared library `quire` (target quire::quire): all modules whole, public headers, CMake package. With
# QUIRE_STATIC the same modules are an archive, too (target quire::quire_static).
get_property(modules GLOBAL PROPERTY QUIRE_MODULES)
add_library(quire SHARED ${PROJECT_SOURCE_DIR}/cmake/anchor.cc)
add_library(quire::quire ALIAS quire)
get_property(libraries GLOBAL PROPERTY QUIRE_LIBRARIES)
foreach(module ${modules})
  target_sources(quire PRIVATE $<TARGET_OBJECTS:${module}>)
endforeach()
target_link_libraries(quire PRIVATE $<BUILD_INTERFACE:quire_flags> ${libraries})
target_link_options(quire PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/quire.map)
set_property(TARGET quire APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/quire.map)
set_target_properties(quire PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
target_include_directories(quire PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(quire PUBLIC cxx_std_20)
file(GLOB public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/quire/*.h)
target_sources(quire PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES
                            ${public_headers})

include(CMakePackageConfigHelpers)
install(TARGETS quire EXPORT quire-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
# In the Python package library and headers lie below the module.
install(TARGETS quire LIBRARY DESTINATION quire/lib COMPONENT python NAMELINK_SKIP EXCLUDE_FROM_ALL
        FILE_SET HEADERS DESTINATION quire/include COMPONENT python EXCLUDE_FROM_ALL)
file(RELATIVE_PATH prefix_of_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
# Flags of what the library is linked with, for programs that link the archive.
set(libraries_of_pc ${PCRE2_LDFLAGS} ${UTF8PROC_LDFLAGS} ${SENTENCEPIECE_LDFLAGS} ${SQLITE_LDFLAGS} ${XXHASH_LDFLAGS}
                    ${ZSTD_LDFLAGS} ${LZ4_LDFLAGS} -lcrypto -pthread)
if(QUIRE_HAS_CUDA)
  list(APPEND libraries_of_pc -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt)
endif()
list(REMOVE_DUPLICATES libraries_of_pc)
list(JOIN libraries_of_pc " " libraries_of_pc)
configure_file(${PROJECT_SOURCE_DIR}/packaging/quire.pc.in ${PROJECT_BINARY_DIR}/quire.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT development)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
install(EXPORT quire-targets NAMESPACE quire:: DESTINATION ${package} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/packaging/quire-config.cmake.in quire-config.cmake
                              INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(quire-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quire-config.cmake ${PROJECT_BINARY_DIR}/quire-config-version.cmake
        DESTINATION ${package} COMPONENT development)

# Made of the objects of the shared library, so it costs no compilation. Headers are no part of a link.
if(QUIRE_STATIC)
  add_library(quire_static STATIC ${PROJECT_SOURCE_DIR}/cmake/anchor.cc)
  add_library(quire::quire_static ALIAS quire_static)
  foreach(module ${modules})
    target_sources(quire_static PRIVATE $<TARGET_OBJECTS:${module}>)
  endforeach()
  set(linked ${libraries})
  list(REMOVE_ITEM linked Boost::headers)
  list(REMOVE_DUPLICATES linked)
  target_link_libraries(quire_static PRIVATE ${linked})
  set_target_properties(quire_static PROPERTIES OUTPUT_NAME quire)
  target_include_directories(quire_static PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(quire_static PUBLIC cxx_std_20)
  install(TARGETS quire_static EXPORT quire-static-targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development OPTIONAL)
  install(EXPORT quire-static-targets NAMESPACE quire:: DESTINATION ${package} COMPONENT development)
  install(CODE "if(NOT EXISTS \"$<TARGET_FILE:quire_static>\")
  message(STATUS \"The static library is not built, so it is not installed: build quire_static\")
endif()" COMPONENT development)
endif()

# Who gives the library on gives the notices of what is in it on.
set(cuda_runtime "")
if(QUIRE_HAS_CUDA)
  set(cuda_runtime ${CUDAToolkit_VERSION})
endif()
file(WRITE ${PROJECT_BINARY_DIR}/cuda_runtime "${cuda_runtime}")
find_package(Python3 3.11 COMPONENTS Interpreter)
if(Python3_FOUND)
  include(${PROJECT_SOURCE_DIR}/cmake/QuireThirdParty.cmake)
  set(parts library)
  if(QUIRE_APPS)
    list(APPEND parts program)
    if(QUIRE_SERVER)
      list(APPEND parts server)
    endif()
  endif()
  set(third_party ${PROJECT_BINARY_DIR}/third_party)
  quire_third_party(${third_party} ${Python3_EXECUTABLE} ${PROJECT_BINARY_DIR} PARTS ${parts})
  install(FILES ${third_party}/THIRD_PARTY_NOTICES ${third_party}/sbom.cdx.json ${PROJECT_SOURCE_DIR}/LICENSE
          DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT library)
else()
  message(STATUS "Third-party notices: none, Python 3.11 is not installed")
endif()
