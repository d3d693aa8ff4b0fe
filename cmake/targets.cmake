# Targets of the house: one library per folder, all .cpp below it, so that a new op or device is one new file.

add_library(shardcheck_flags INTERFACE)
target_compile_options(shardcheck_flags INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -ffp-contract=off -march=${SHARDCHECK_ARCH}
  # Release of the default build is -O3 -DNDEBUG; Eigen's asserts are off there, the program's own checks are not.
)
target_include_directories(shardcheck_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(SHARDCHECK_SANITIZE)
  target_compile_options(shardcheck_flags INTERFACE -fsanitize=${SHARDCHECK_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(shardcheck_flags INTERFACE -fsanitize=${SHARDCHECK_SANITIZE})
endif()

# shardcheck_library(folder DEPENDS other...): the static library shardcheck_<folder>.
function(shardcheck_library folder)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  add_library(shardcheck_${folder} STATIC ${sources})
  list(TRANSFORM arg_DEPENDS PREPEND shardcheck_)
  target_link_libraries(shardcheck_${folder}
    PUBLIC ${arg_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:shardcheck_flags> $<BUILD_INTERFACE:Eigen3::Eigen>
            $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<BUILD_INTERFACE:CLI11::CLI11>
            fmt::fmt Threads::Threads)
  set_target_properties(shardcheck_${folder} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${folder})
  add_library(shardcheck::${folder} ALIAS shardcheck_${folder})
endfunction()

# The program: harness/cli/main.cpp over all libraries.
function(shardcheck_program)
  add_executable(shardcheck ${PROJECT_SOURCE_DIR}/harness/cli/main.cpp)
  target_link_libraries(shardcheck PRIVATE shardcheck_harness shardcheck_flags)
endfunction()
