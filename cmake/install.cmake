# Install: headers, libraries, the program, the shipped files and find_package(shardcheck).
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shardcheck)
set(folders model reference kernels sharded sim harness)
list(TRANSFORM folders PREPEND shardcheck_ OUTPUT_VARIABLE targets)
if(TARGET shardcheck)
  list(APPEND targets shardcheck)
endif()
install(TARGETS ${targets} EXPORT shardcheckTargets)
foreach(module cuda nccl mpi)
  if(TARGET shardcheck_${module})
    install(TARGETS shardcheck_${module} LIBRARY DESTINATION lib/shardcheck)  # where kernels/shared_module.cpp looks
  endif()
endforeach()
install(EXPORT shardcheckTargets NAMESPACE shardcheck:: DESTINATION ${config_dir})

# A header whose opening comment says "Private" is for the .cpp files beside it and stays at home. Only such headers may
# include Eigen, nlohmann or CLI11 (tests/house/rules.py), so the libraries' users need none of the three.
install(CODE "set(source_dir \"${PROJECT_SOURCE_DIR}\")
              set(folders \"${folders}\")
              set(destination \"${CMAKE_INSTALL_INCLUDEDIR}/shardcheck\")")
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake)

install(DIRECTORY fixtures/configs fixtures/plans fixtures/links fixtures/gpus fixtures/models
  DESTINATION ${CMAKE_INSTALL_DATADIR}/shardcheck)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(share_dir ${CMAKE_INSTALL_DATADIR}/shardcheck)
configure_package_config_file(cmake/shardcheckConfig.cmake.in ${PROJECT_BINARY_DIR}/shardcheckConfig.cmake
  INSTALL_DESTINATION ${config_dir} PATH_VARS share_dir)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardcheckConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardcheckConfig.cmake ${PROJECT_BINARY_DIR}/shardcheckConfigVersion.cmake
              cmake/equivalence_test.cmake
  DESTINATION ${config_dir})
