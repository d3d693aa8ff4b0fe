# What ptxas says about every kernel of the cuda device (registers, stack, spills) is kept beside its object file as
# FILE.cu.o.ptxas: tests/house/kernel_resources.py reads it. The compiler's other messages are shown as ever.
if(TARGET shardcheck_cuda)
  target_compile_options(shardcheck_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
  set(launcher ${CMAKE_CURRENT_LIST_DIR}/keep_ptxas_notes.sh)
  get_target_property(other_launcher shardcheck_cuda CUDA_COMPILER_LAUNCHER)
  if(other_launcher)
    list(APPEND launcher ${other_launcher})
  endif()
  set_target_properties(shardcheck_cuda PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
endif()
