# Kernel files are compiled once per instruction set with flags of their own; the table of the set is
# chosen at run time. Files are named by set: <module>/cpu/isa_avx2.cc, isa_avx512_vnni.cc, ...
# isa_portable.cc takes the compiler's baseline.
set(QUIRE_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(QUIRE_AVX512_VNNI_FLAGS ${QUIRE_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl
                            -mavx512vnni)
set(QUIRE_AVX512_FLAGS ${QUIRE_AVX512_VNNI_FLAGS} -mavx512bf16)
set(QUIRE_AMX_FLAGS ${QUIRE_AVX512_FLAGS} -mamx-tile -mamx-bf16 -mamx-int8 -mavx512vbmi -mprfchw)

function(quire_kernel_flags module)
  set(folder ${PROJECT_SOURCE_DIR}/src/quire/${module}/cpu)
  # -O3 also in the development build: unoptimised kernels are too slow to test. GCC 12 warns falsely
  # about its own AVX-512 headers.
  set(common -O3 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized>)
  # Loops over rows and columns that the caller has checked.
  if(NOT QUIRE_SANITIZE)
    list(APPEND common -fno-stack-protector -U_FORTIFY_SOURCE -U_GLIBCXX_ASSERTIONS)
  endif()
  # Checks of pointers make compiling take four times as long; what follows from a wrong one, the
  # address sanitizer sees.
  if(QUIRE_SANITIZE MATCHES undefined)
    list(APPEND common -fno-sanitize=null,pointer-overflow,object-size)
  endif()
  # Loops over numbers: no thread waits in them, and instrumented they take minutes to compile.
  if(QUIRE_SANITIZE STREQUAL "thread" AND NOT QUIRE_TSAN_MODULES STREQUAL "all")
    list(APPEND common -fno-sanitize=thread)
  endif()
  foreach(isa portable avx2 avx512_vnni avx512 amx)
    if(EXISTS ${folder}/isa_${isa}.cc)
      string(TOUPPER ${isa} upper)
      set_property(SOURCE ${folder}/isa_${isa}.cc DIRECTORY ${PROJECT_SOURCE_DIR}
                   PROPERTY COMPILE_OPTIONS "${common};${QUIRE_${upper}_FLAGS}")
      set_property(SOURCE ${folder}/isa_${isa}.cc DIRECTORY ${PROJECT_SOURCE_DIR}
                   PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()
