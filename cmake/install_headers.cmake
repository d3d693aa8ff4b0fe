# Run at install time with source_dir, folders and destination set: copies the public headers in their folders. Those of GPU
# code need CUDA's headers or the compiler flags of emu; callers make such devices by their kind (kernels/device.hpp).
cmake_path(ABSOLUTE_PATH destination BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX})
foreach(folder ${folders})
  file(GLOB_RECURSE headers RELATIVE ${source_dir} ${source_dir}/${folder}/*.hpp)
  list(FILTER headers EXCLUDE REGEX "^kernels/(cuda|emu)/")
  foreach(header ${headers})
    file(STRINGS ${source_dir}/${header} private REGEX "^// (.* )?Private[ :]")
    if(NOT private)
      cmake_path(GET header PARENT_PATH parent)
      file(INSTALL ${source_dir}/${header} DESTINATION ${destination}/${parent})
    endif()
  endforeach()
endforeach()
