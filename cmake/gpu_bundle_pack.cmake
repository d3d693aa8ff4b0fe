# Packs PROGRAMS, MODULE and the shipped files into FOLDER and FOLDER.tar.gz. Run with cmake -P by cmake/gpu_bundle.cmake.
cmake_minimum_required(VERSION 3.25)
set(most_bytes 40000000)
string(REPLACE "|" ";" PROGRAMS "${PROGRAMS}")
string(REPLACE "|" "\", \"" architectures "${ARCHITECTURES}")

file(REMOVE_RECURSE ${FOLDER})
file(COPY ${PROGRAMS} DESTINATION ${FOLDER}/bin)
file(COPY ${MODULE} DESTINATION ${FOLDER}/modules)
file(COPY ${SOURCE_DIR}/tests/bundle/run.sh ${SOURCE_DIR}/tests/gpu/sanitize.sh ${SOURCE_DIR}/LICENSE DESTINATION ${FOLDER})
foreach(shipped configs plans links gpus models)
  file(COPY ${SOURCE_DIR}/fixtures/${shipped} DESTINATION ${FOLDER}/share/shardcheck)
endforeach()

# Libraries that a plain system lacks go along. Not glibc's and g++'s, which must fit each other, and not NVIDIA's.
set(of_the_system [[^(ld-linux-x86-64|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so]])
set(of_nvidia [[^lib(cuda|cudart|cublas|cublasLt|nccl|nv[A-Za-z]*)\.so]])
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAMS} MODULES ${MODULE}
  PRE_EXCLUDE_REGEXES ${of_the_system} ${of_nvidia} RESOLVED_DEPENDENCIES_VAR libraries)
file(COPY ${libraries} DESTINATION ${FOLDER}/lib FOLLOW_SYMLINK_CHAIN)

file(GLOB binaries ${FOLDER}/bin/* ${FOLDER}/modules/*.so ${FOLDER}/lib/*.so.*)
foreach(binary ${binaries})
  if(IS_SYMLINK ${binary})
    continue()
  endif()
  # The build machine's search paths must not win over run.sh's.
  file(RPATH_REMOVE FILE ${binary})
  execute_process(COMMAND ${STRIP} --strip-unneeded ${binary} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# What the system must bring: the newest symbol versions, and NVIDIA's libraries by name.
set(glibc 2.2)
set(glibcxx 3.4)
set(cuda_libraries)
foreach(binary ${binaries})
  execute_process(COMMAND ${OBJDUMP} -p ${binary} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  foreach(symbols GLIBC GLIBCXX)
    string(TOLOWER ${symbols} newest)
    string(REGEX MATCHALL " ${symbols}_[0-9.]+" versions "${text}")
    foreach(version ${versions})
      string(REPLACE " ${symbols}_" "" version ${version})
      if(version VERSION_GREATER ${newest})
        set(${newest} ${version})
      endif()
    endforeach()
  endforeach()
  string(REGEX MATCHALL "NEEDED +[^\n]+" needed "${text}")
  foreach(line ${needed})
    string(REGEX REPLACE "NEEDED +" "" library ${line})
    if(library MATCHES "${of_nvidia}")
      list(APPEND cuda_libraries ${library})
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES cuda_libraries)
list(JOIN cuda_libraries " " words)
file(WRITE ${FOLDER}/needs "glibc=${glibc}\nglibcxx=${glibcxx}\ncuda_libraries=${words}\n")

execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  set(revision unknown)
endif()
file(WRITE ${FOLDER}/build.json "{
  \"version\": \"${VERSION}\",
  \"revision\": \"${revision}\",
  \"compiler\": \"${COMPILER}\",
  \"build_type\": \"${BUILD_TYPE}\",
  \"cuda\": \"${CUDA}\",
  \"architectures\": [\"${architectures}\"],
  \"glibc\": \"${glibc}\",
  \"glibcxx\": \"${glibcxx}\"
}
")

get_filename_component(name ${FOLDER} NAME)
get_filename_component(parent ${FOLDER} DIRECTORY)
file(REMOVE ${FOLDER}.tar.gz)
execute_process(COMMAND ${CMAKE_COMMAND} -E tar czf ${FOLDER}.tar.gz ${name} WORKING_DIRECTORY ${parent}
  COMMAND_ERROR_IS_FATAL ANY)
file(SIZE ${FOLDER}.tar.gz bytes)
if(bytes GREATER most_bytes)
  file(REMOVE ${FOLDER}.tar.gz)
  message(FATAL_ERROR "the bundle has ${bytes} bytes, more than ${most_bytes}: leave something out of it")
endif()
message("${FOLDER}.tar.gz: ${bytes} bytes; needs glibc ${glibc}, libstdc++ with GLIBCXX_${glibcxx}, ${words}")
