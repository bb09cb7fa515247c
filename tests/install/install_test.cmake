# SPDX-License-Identifier: Apache-2.0
# cmake -D BUILD_DIR=... -D CONSUMER=... -D WORK_DIR=... ... -P install_test.cmake: one outside project, end to end.

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${status}): ${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/prefix")
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
# Moved after the installation: nothing installed may remember where it was put first.
file(RENAME "${prefix}" "${WORK_DIR}/moved")
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${CONSUMER} -B ${WORK_DIR}/build -D CMAKE_BUILD_TYPE=Release
  -D CMAKE_CXX_COMPILER=${CXX} -D Kokkos_DIR=${KOKKOS_DIR} -D deltaport_ROOT=${WORK_DIR}/moved
  -D EXPECTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${WORK_DIR}/build/consumer)
# A component that does not exist is named, with those that do.
file(WRITE "${WORK_DIR}/misspelt/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)
project(misspelt CXX)
find_package(deltaport REQUIRED COMPONENTS recurence)
")
execute_process(COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${WORK_DIR}/misspelt -B ${WORK_DIR}/misspelt/build
  -D CMAKE_CXX_COMPILER=${CXX} -D deltaport_ROOT=${WORK_DIR}/moved RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(status EQUAL 0 OR NOT output MATCHES "it has no component 'recurence', only core,.* recurrence")
  message(FATAL_ERROR "a misspelt component (${status}): ${output}")
endif()
file(REMOVE_RECURSE "${WORK_DIR}")
