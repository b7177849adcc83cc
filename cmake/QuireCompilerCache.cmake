# Compiles through ccache where it is installed. Precompiled headers need the leniencies named here, a
# miss costs no second preprocessing, and another clone on the machine finds what this one compiled.
find_program(QUIRE_CCACHE ccache)
mark_as_advanced(QUIRE_CCACHE)
if(QUIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=true
      CCACHE_NOHASHDIR=true CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${QUIRE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
