# SPDX-License-Identifier: Apache-2.0
# Installs libraries, headers and the package find_package(deltaport) reads. Each component is exported by itself, so
# that find_package(deltaport COMPONENTS recurrence) asks for nothing but what the recurrence links.
include(CMakePackageConfigHelpers)
set(deltaport_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltaport)
get_property(deltaport_targets GLOBAL PROPERTY DELTAPORT_COMPONENTS)

# The find_dependency arguments that make one linked item known again; empty for components and plain library paths.
function(deltaport_package_of item result)
  set(package "")
  if(item MATCHES "^Kokkos::")
    set(package "Kokkos 5.0...<6")
  elseif(item MATCHES "^MPI::")
    set(package "MPI COMPONENTS CXX")
  elseif(item MATCHES "^CUDA::")
    set(package CUDAToolkit)
  elseif(item MATCHES "^ZLIB::")
    set(package ZLIB)
  elseif(item MATCHES "^Threads::")
    set(package Threads)
  elseif(item MATCHES "^yaml-cpp")
    set(package yaml-cpp)
  elseif(item MATCHES "::" AND NOT item MATCHES "^deltaport::")
    message(FATAL_ERROR "DeltaportInstall.cmake does not know which package brings ${item}.")
  endif()
  set(${result} "${package}" PARENT_SCOPE)
endfunction()

set(deltaport_components "")
set(deltaport_requirements "")
foreach(target ${deltaport_targets})
  get_target_property(component ${target} EXPORT_NAME)
  list(APPEND deltaport_components ${component})
  set(needs "")
  set(packages "")
  # Public links, and for static libraries the private ones as $<LINK_ONLY:...>.
  get_target_property(items ${target} INTERFACE_LINK_LIBRARIES)
  foreach(item ${items})
    string(REGEX REPLACE "^\\$<(LINK_ONLY|TARGET_NAME_IF_EXISTS):(.*)>$" "\\2" item "${item}")
    if(item MATCHES "^\\$<BUILD_INTERFACE:")
      continue()
    endif()
    if(item MATCHES "^deltaport(::|_)(.+)$")
      list(APPEND needs ${CMAKE_MATCH_2})
      continue()
    endif()
    deltaport_package_of("${item}" package)
    if(package)
      list(APPEND packages "${package}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES packages)
  string(APPEND deltaport_requirements
    "set(deltaport_${component}_needs \"${needs}\")\nset(deltaport_${component}_packages \"${packages}\")\n")
  install(TARGETS ${target} EXPORT deltaport-${component} FILE_SET HEADERS)
  install(EXPORT deltaport-${component} FILE deltaport-${component}-targets.cmake NAMESPACE deltaport::
    DESTINATION ${deltaport_package_dir})
endforeach()
install(TARGETS deltaport EXPORT deltaport-all)
install(EXPORT deltaport-all FILE deltaport-all-targets.cmake NAMESPACE deltaport::
  DESTINATION ${deltaport_package_dir})

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/lib/cmake/deltaportConfig.cmake.in" "${PROJECT_BINARY_DIR}/deltaportConfig.cmake"
  INSTALL_DESTINATION ${deltaport_package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/deltaportConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/deltaportConfig.cmake" "${PROJECT_BINARY_DIR}/deltaportConfigVersion.cmake"
  DESTINATION ${deltaport_package_dir})
