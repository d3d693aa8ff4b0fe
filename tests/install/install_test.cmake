# Run by ctest: install to WORK_DIR/prefix, then configure, build and test consumer/ against it.
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})
unset(ENV{SHARDCHECK_SHARE})

# run(RESULT OUTPUT command...): RESULT is the exit code expected.
function(run expected output)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL expected)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${code}, not ${expected}:\n${text}")
  endif()
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

run(0 text ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})

# The program finds the files that were installed beside it: with a plan added there, it knows that plan.
file(COPY_FILE ${prefix}/share/shardcheck/plans/replicated.json ${prefix}/share/shardcheck/plans/only-installed.json)
run(0 text ${prefix}/bin/shardcheck verify tiny-llama --plan only-installed --tp 1 --dtype f32 --phase prefill)
run(2 text ${BUILD_DIR}/shardcheck verify tiny-llama --plan only-installed --tp 1 --dtype f32 --phase prefill)

set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -G ${GENERATOR}
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${prefix}
  -D EXAMPLES_DIR=${CMAKE_CURRENT_LIST_DIR}/../../docs/examples)
run(0 text ${configure} -B ${WORK_DIR}/build -D VERSION=${VERSION})
run(0 text ${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(0 text ${CMAKE_CTEST_COMMAND} --test-dir ${WORK_DIR}/build --output-on-failure --no-tests=error)

# A version that isn't there is refused.
run(1 text ${configure} -B ${WORK_DIR}/build-newer -D VERSION=99.0)
