# quire_third_party(OUT PYTHON PRODUCT PARTS parts...): writes OUT/THIRD_PARTY_NOTICES and OUT/sbom.cdx.json
# of what these parts (library, program, server, python) are linked of. PRODUCT is the build folder of the
# library, where it is noted which CUDA runtime that contains.
function(quire_third_party out python product)
  cmake_parse_arguments(arg "" "" "PARTS" ${ARGN})
  set(root ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
  set(cuda "")
  if(EXISTS ${product}/cuda_runtime)
    file(READ ${product}/cuda_runtime cuda)
  endif()
  set(includes ${Boost_INCLUDE_DIRS})
  list(TRANSFORM includes PREPEND --include=)
  execute_process(COMMAND ${python} ${root}/tools/third_party.py ${out} ${arg_PARTS} --cuda=${cuda} ${includes}
                  COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${root}/packaging/third_party.toml
                                         ${root}/tools/third_party.py)
endfunction()
