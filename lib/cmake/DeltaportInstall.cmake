# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
get_property(deltaport_components GLOBAL PROPERTY DELTAPORT_COMPONENTS)
install(TARGETS deltaport ${deltaport_components} EXPORT deltaportTargets FILE_SET HEADERS)
install(EXPORT deltaportTargets NAMESPACE deltaport:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/deltaport)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/lib/cmake/deltaportConfig.cmake.in" "${PROJECT_BINARY_DIR}/deltaportConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/deltaport)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/deltaportConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/deltaportConfig.cmake" "${PROJECT_BINARY_DIR}/deltaportConfigVersion.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/deltaport)
