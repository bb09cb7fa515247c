# SPDX-License-Identifier: Apache-2.0
# deltaport_component(<folder> SOURCES ... [PUBLIC targets...] [PRIVATE targets...] [GENERATED headers...]): one library
# per folder of lib/.
# deltaport_test(<name> SOURCES ... LINK ... [RANKS n...]): one GoogleTest executable.

# Installed programs and shared libraries find their neighbours, wherever the prefix is moved.
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# Target all_verify_interface_header_sets: each public header as a source of its own.
if(DELTAPORT_BUILD_TESTS AND NOT DELTAPORT_SANITIZE AND NOT DELTAPORT_ENABLE_CUDA)
  set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)
endif()

add_library(deltaport INTERFACE)
add_library(deltaport::deltaport ALIAS deltaport)
set_property(GLOBAL PROPERTY DELTAPORT_COMPONENTS "")

add_library(deltaport_build_options INTERFACE)
target_compile_options(deltaport_build_options INTERFACE -Wall -Wextra $<$<BOOL:${DELTAPORT_WERROR}>:-Werror>)
if(DELTAPORT_ENABLE_CUDA)
  # nvcc only warns when device code calls a host function, and then leaves the call out of the kernel.
  target_compile_options(deltaport_build_options INTERFACE
    "SHELL:$<$<COMPILE_LANGUAGE:CXX>:-Xcudafe --diag_error=20011>" "SHELL:$<$<COMPILE_LANGUAGE:CXX>:-Xcudafe --diag_error=20014>")
else()
  # GCC 12 sees overlapping copies in "text" + std::string where there are none (its bug 105651).
  target_compile_options(deltaport_build_options INTERFACE -Wshadow $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
endif()
if(DELTAPORT_SANITIZE)
  add_compile_options(-fsanitize=${DELTAPORT_SANITIZE} -fno-omit-frame-pointer)
  if(DELTAPORT_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined) # undefined behaviour ends a test, it is not only printed
  endif()
  if(DELTAPORT_SANITIZE MATCHES "thread")
    add_compile_options(-Wno-tsan) # Kokkos' atomics hold fences that the sanitizer does not model
  endif()
  add_link_options(-fsanitize=${DELTAPORT_SANITIZE})
endif()

function(deltaport_component folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE;GENERATED" ${ARGN})
  set(target deltaport_${folder})
  add_library(${target} ${ARG_SOURCES})
  add_library(deltaport::${folder} ALIAS ${target})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/deltaport/${folder}/*.hpp")
  target_sources(${target} PUBLIC FILE_SET HEADERS
    BASE_DIRS "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include" FILES ${headers} ${ARG_GENERATED})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/lib")
  target_compile_features(${target} PUBLIC cxx_std_20)
  # A header-only package used inside leaves no trace in what is installed.
  list(TRANSFORM ARG_PRIVATE REPLACE "^nlohmann_json::.+$" "$<BUILD_INTERFACE:\\0>")
  target_link_libraries(${target} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:deltaport_build_options>)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_link_libraries(deltaport INTERFACE ${target})
  set_property(GLOBAL APPEND PROPERTY DELTAPORT_COMPONENTS ${target})
endfunction()

function(deltaport_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;RANKS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE deltaport_test_main ${ARG_LINK} deltaport_build_options)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/lib")
  if(NOT ARG_RANKS)
    set(ARG_RANKS 1)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  foreach(ranks ${ARG_RANKS})
    if(ranks EQUAL 1)
      add_test(NAME ${name} COMMAND ${name})
      set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
    elseif(DELTAPORT_ENABLE_MPI)
      add_test(NAME ${name}_np${ranks}
        COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${name}>)
      set_tests_properties(${name}_np${ranks} PROPERTIES LABELS "${ARG_LABELS};mpi" PROCESSORS ${ranks}
        ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none;OMP_NUM_THREADS=1;OMPI_MCA_btl_base_warn_component_unused=0")
    endif()
  endforeach()
endfunction()
