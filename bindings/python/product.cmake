# The library and the command for `pip install .`, from the build that `make demo` and `make check` use
# too: target quire::quire, and an install rule that lays both into the package.
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(product ${root}/build/release)

# Passes on what a caller may choose with CMAKE_ARGS.
set(choices)
foreach(choice QUIRE_CUDA QUIRE_SERVER CMAKE_CUDA_ARCHITECTURES CMAKE_CUDA_COMPILER)
  if(DEFINED ${choice})
    list(APPEND choices "-D${choice}=${${choice}}")
  endif()
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} --preset release -DQUIRE_APPS=ON ${choices}
                WORKING_DIRECTORY ${root} COMMAND_ERROR_IS_FATAL ANY)

set(library ${product}/libquire.so.0)
add_custom_target(product COMMAND ${CMAKE_COMMAND} --build ${product} --target quire quire_cli
                  BYPRODUCTS ${library} USES_TERMINAL)
add_library(quire::quire SHARED IMPORTED)
set_target_properties(quire::quire PROPERTIES IMPORTED_LOCATION ${library} IMPORTED_SONAME libquire.so.0
                                              INTERFACE_INCLUDE_DIRECTORIES ${root}/include)
add_dependencies(quire::quire product)

install(CODE "execute_process(COMMAND ${CMAKE_COMMAND} --install ${product} --strip --component python
                              --prefix \${CMAKE_INSTALL_PREFIX} COMMAND_ERROR_IS_FATAL ANY)"
        COMPONENT python)
