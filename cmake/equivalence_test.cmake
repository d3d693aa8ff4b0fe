# A model under a plan as a ctest suite: one test per TP size (or mesh), precision and phase, so that a failure names its cell.
#
#   shardcheck_add_equivalence_test(NAME my_model MODEL path/to/model PLAN my_plan.json
#                                   TP 1 2 4 DTYPES f32 bf16 PHASES prefill decode
#                                   [LABELS slow ...] [TIMEOUT seconds] [ARGS --tokens 16 ...])
#
# adds the tests my_model.tp1.f32.prefill, my_model.tp1.f32.decode, ... with the labels `equivalence`, `tp1`, `f32`,
# `prefill` and so on beside your own, so that `ctest -L bf16` runs those. For a plan of several axes MESH "dp=2,tp=2" ...
# stands in place of TP. Without DTYPES and PHASES: f32 and bf16, prefill and decode. Paths are relative to the calling
# CMakeLists.txt.
function(shardcheck_add_equivalence_test)
  cmake_parse_arguments(arg "" "NAME;MODEL;PLAN;TIMEOUT" "TP;MESH;DTYPES;PHASES;LABELS;ARGS" ${ARGN})
  foreach(needed NAME MODEL)
    if(NOT DEFINED arg_${needed})
      message(FATAL_ERROR "shardcheck_add_equivalence_test: ${needed} is missing")
    endif()
  endforeach()
  if(DEFINED arg_TP AND DEFINED arg_MESH OR NOT DEFINED arg_TP AND NOT DEFINED arg_MESH)
    message(FATAL_ERROR "shardcheck_add_equivalence_test: give either TP 1 2 4 or MESH \"dp=2,tp=4\"")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "shardcheck_add_equivalence_test: unknown words ${arg_UNPARSED_ARGUMENTS}; "
      "arguments of shardcheck verify follow ARGS")
  endif()
  foreach(default "PLAN;megatron" "DTYPES;f32;bf16" "PHASES;prefill;decode" "TIMEOUT;600")
    list(POP_FRONT default word)
    if(NOT DEFINED arg_${word})
      set(arg_${word} ${default})
    endif()
  endforeach()
  foreach(mesh ${arg_TP} ${arg_MESH})
    if(DEFINED arg_TP)
      set(size --tp ${mesh})
      set(place tp${mesh})
    else()
      set(size --mesh ${mesh})
      string(REPLACE "=" "" place ${mesh})
      string(REPLACE "," "-" place ${place})
    endif()
    foreach(dtype ${arg_DTYPES})
      foreach(phase ${arg_PHASES})
        set(test ${arg_NAME}.${place}.${dtype}.${phase})
        add_test(NAME ${test}
          COMMAND shardcheck::shardcheck verify ${arg_MODEL} --plan ${arg_PLAN} ${size} --dtype ${dtype}
                  --phase ${phase} ${arg_ARGS}
          WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
        set_tests_properties(${test} PROPERTIES LABELS "equivalence;${place};${dtype};${phase};${arg_LABELS}"
          TIMEOUT ${arg_TIMEOUT})
      endforeach()
    endforeach()
  endforeach()
endfunction()
