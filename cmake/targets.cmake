# Targets of the house: one library per folder, all .cpp below it, so that a new op or device is one new file.

# -ffp-contract=off: a product and a sum stay two roundings, as the error budgets count them.
add_library(shardcheck_flags INTERFACE)
target_compile_options(shardcheck_flags INTERFACE -Wall -Wextra -Wconversion -Wshadow -ffp-contract=off
  # g++ 12 sees overlapping copies in std::string's own operator= (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
target_include_directories(shardcheck_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(SHARDCHECK_ARCH)
  target_compile_options(shardcheck_flags INTERFACE -march=${SHARDCHECK_ARCH})
endif()
if(SHARDCHECK_WARNINGS_ARE_ERRORS)
  target_compile_options(shardcheck_flags INTERFACE -Werror)
endif()
if(SHARDCHECK_SANITIZE)
  target_compile_options(shardcheck_flags INTERFACE
    -fsanitize=${SHARDCHECK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(shardcheck_flags INTERFACE -fsanitize=${SHARDCHECK_SANITIZE})
endif()

# What runs before the CPU is known to be able is compiled for any x86-64: the check itself and main().
if(SHARDCHECK_ARCH)
  set_source_files_properties(
    ${PROJECT_SOURCE_DIR}/harness/cli/cpu_check.cpp ${PROJECT_SOURCE_DIR}/harness/cli/main.cpp
    PROPERTIES COMPILE_OPTIONS -march=x86-64)
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/harness/cli/cpu_check.cpp
  PROPERTIES COMPILE_DEFINITIONS SHARDCHECK_ARCH="${SHARDCHECK_ARCH}")
# Text in, text out: optimising it would be a tenth of the build and nothing of a run.
file(GLOB text_sources ${PROJECT_SOURCE_DIR}/harness/cli/*.cpp ${PROJECT_SOURCE_DIR}/harness/*_report.cpp
  ${PROJECT_SOURCE_DIR}/harness/candidate_build.cpp ${PROJECT_SOURCE_DIR}/harness/candidate_read.cpp
  ${PROJECT_SOURCE_DIR}/harness/candidate_write.cpp
  ${PROJECT_SOURCE_DIR}/sharded/plan_*.cpp ${PROJECT_SOURCE_DIR}/sim/fact_file.cpp)
set_property(SOURCE ${text_sources} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)

# Where shipped files are found when nothing is installed.
set_source_files_properties(${PROJECT_SOURCE_DIR}/model/shipped.cpp
  PROPERTIES COMPILE_DEFINITIONS SHARDCHECK_SOURCE_FIXTURES="${PROJECT_SOURCE_DIR}/fixtures")

# shardcheck_library(folder DEPENDS other...): the static library shardcheck_<folder>, shardcheck::<folder> to others.
function(shardcheck_library folder)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(main|module)\\.cpp$")
  list(TRANSFORM arg_DEPENDS PREPEND shardcheck_)
  if(NOT sources)
    message(STATUS "${folder}: nothing to compile yet")
    add_library(shardcheck_${folder} INTERFACE)
    target_link_libraries(shardcheck_${folder} INTERFACE ${arg_DEPENDS})
    set_target_properties(shardcheck_${folder} PROPERTIES EXPORT_NAME ${folder})
    return()
  endif()
  add_library(shardcheck_${folder} STATIC ${sources})
  add_library(shardcheck::${folder} ALIAS shardcheck_${folder})
  target_compile_features(shardcheck_${folder} PUBLIC cxx_std_20)
  target_include_directories(shardcheck_${folder} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardcheck>)
  target_link_libraries(shardcheck_${folder}
    PUBLIC ${arg_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:shardcheck_flags> $<BUILD_INTERFACE:Eigen3::Eigen>
            $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<BUILD_INTERFACE:CLI11::CLI11>
            fmt::fmt Threads::Threads)
  set_target_properties(shardcheck_${folder} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${folder})
endfunction()

# kernels/cuda is one source for two devices: here g++ compiles it against kernels/emu, into the library; nvcc compiles it
# against CUDA in kernels/cuda/CMakeLists.txt, into a module.
function(shardcheck_gpu_code folder)
  file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
  set_source_files_properties(${kernel_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS -Wno-unknown-pragmas)
  target_sources(shardcheck_${folder} PRIVATE ${kernel_sources})
  target_compile_definitions(shardcheck_${folder} PRIVATE SHARDCHECK_EMU)
  target_link_libraries(shardcheck_${folder} PRIVATE Boost::context ${CMAKE_DL_LIBS})
endfunction()

# The program: harness/cli/main.cpp over all libraries.
function(shardcheck_program)
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/harness/cli/main.cpp)
    message(STATUS "harness/cli/main.cpp: not there yet, so no program")
    return()
  endif()
  add_executable(shardcheck ${PROJECT_SOURCE_DIR}/harness/cli/main.cpp)
  add_executable(shardcheck::shardcheck ALIAS shardcheck)
  target_link_libraries(shardcheck PRIVATE shardcheck_harness shardcheck_flags CLI11::CLI11)
  target_compile_definitions(shardcheck PRIVATE SHARDCHECK_VERSION="${PROJECT_VERSION}")
endfunction()
