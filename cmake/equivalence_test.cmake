# A model under a plan as a ctest suite: one test per TP size, precision and phase, so that a failure names its cell.
#
#   shardcheck_add_equivalence_test(NAME my_model MODEL path/to/model PLAN my_plan.json
#                                   TP 1 2 4 DTYPE f32 bf16 PHASE prefill decode [ARGS --tokens 16 ...])
#
# adds the tests my_model.tp1.f32.prefill, my_model.tp1.f32.decode, ... Paths are relative to the calling CMakeLists.txt.
function(shardcheck_add_equivalence_test)
  cmake_parse_arguments(arg "" "NAME;MODEL;PLAN" "TP;DTYPE;PHASE;ARGS" ${ARGN})
  foreach(needed NAME MODEL TP DTYPE PHASE)
    if(NOT DEFINED arg_${needed})
      message(FATAL_ERROR "shardcheck_add_equivalence_test: ${needed} is missing")
    endif()
  endforeach()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "shardcheck_add_equivalence_test: unknown words ${arg_UNPARSED_ARGUMENTS}; "
      "arguments of shardcheck verify follow ARGS")
  endif()
  if(NOT DEFINED arg_PLAN)
    set(arg_PLAN megatron)
  endif()
  foreach(tp ${arg_TP})
    foreach(dtype ${arg_DTYPE})
      foreach(phase ${arg_PHASE})
        set(test ${arg_NAME}.tp${tp}.${dtype}.${phase})
        add_test(NAME ${test}
          COMMAND shardcheck::shardcheck verify ${arg_MODEL} --plan ${arg_PLAN} --tp ${tp} --dtype ${dtype}
                  --phase ${phase} ${arg_ARGS}
          WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
        set_tests_properties(${test} PROPERTIES LABELS equivalence)
      endforeach()
    endforeach()
  endforeach()
endfunction()
