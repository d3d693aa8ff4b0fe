# gpu-bundle: one tarball with everything that has to run on a GPU, for machines without the sources or a compiler.
#   cmake --build BUILD --target gpu-bundle     writes BUILD/shardcheck-gpu-bundle.tar.gz; docs/gpu.md says what is in it
# Included last: it takes programs of the whole tree.
set(programs shardcheck gpu_tests bench_kernels gpu_stages)
set(missing)
foreach(program ${programs})
  if(TARGET ${program})
    list(APPEND files $<TARGET_FILE:${program}>)
  else()
    list(APPEND missing ${program})
  endif()
endforeach()
if(NOT TARGET shardcheck_cuda)
  list(APPEND missing "the cuda device (no CUDA toolkit was found)")
endif()
if(missing)
  list(JOIN missing ", " missing)
  add_custom_target(gpu-bundle
    COMMAND ${CMAKE_COMMAND} -E echo "gpu-bundle: this build lacks: ${missing}"
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  return()
endif()

list(JOIN files "|" files)  # a list in a list would fall apart
list(JOIN CMAKE_CUDA_ARCHITECTURES "|" architectures)
set(pack ${CMAKE_COMMAND} -D PROGRAMS=${files} -D MODULE=$<TARGET_FILE:shardcheck_cuda>
  -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D VERSION=${PROJECT_VERSION} -D BUILD_TYPE=$<CONFIG>
  -D COMPILER=${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION} -D CUDA=${CMAKE_CUDA_COMPILER_VERSION}
  -D ARCHITECTURES=${architectures} -D STRIP=${CMAKE_STRIP} -D OBJDUMP=${CMAKE_OBJDUMP})
set(pack_script ${CMAKE_CURRENT_LIST_DIR}/gpu_bundle_pack.cmake)
add_custom_target(gpu-bundle
  COMMAND ${pack} -D FOLDER=${PROJECT_BINARY_DIR}/shardcheck-gpu-bundle -P ${pack_script}
  COMMENT "Packing the GPU bundle" VERBATIM)
add_dependencies(gpu-bundle ${programs} shardcheck_cuda)

# The bundle as somebody else gets it: unpacked elsewhere, on a machine that lacks one thing or another.
set(test_folder ${PROJECT_BINARY_DIR}/tests/bundle/unpacked)
add_test(NAME bundle.pack COMMAND ${pack} -D FOLDER=${test_folder}/shardcheck-gpu-bundle -P ${pack_script})
set_tests_properties(bundle.pack PROPERTIES LABELS bundle TIMEOUT 120 FIXTURES_SETUP gpu_bundle)
foreach(case needs no_gpu wrong_cuda_libs cuda_libs_layouts old_glibc bad_usage no_source_tree rehearsal)
  add_test(NAME bundle.${case}
    COMMAND ${CMAKE_COMMAND} -D CASE=${case} -D FOLDER=${test_folder} -D OBJDUMP=${CMAKE_OBJDUMP}
            -P ${PROJECT_SOURCE_DIR}/tests/bundle/run_test.cmake)
  set_tests_properties(bundle.${case} PROPERTIES LABELS bundle TIMEOUT 120 FIXTURES_REQUIRED gpu_bundle
    SKIP_REGULAR_EXPRESSION "^SKIPPED")
endforeach()
