# SPDX-License-Identifier: Apache-2.0
# anabranch_embed_device_code(<target>): compiles our .cu files for the architectures that nvcc knows of
# those we name, links it with CUDA's device runtime, and embeds it in the target. Without an nvcc 12.4
# or newer that works, nothing is done, and addresses are set from the host.
set(ANABRANCH_CUDA_ARCHITECTURES 80 90 100 110 120 CACHE STRING "GPUs that device code is built for")

function(anabranch_embed_device_code target)
  find_program(ANABRANCH_NVCC nvcc PATHS /usr/local/cuda/bin "$ENV{CUDA_HOME}/bin")
  if(NOT ANABRANCH_NVCC)
    message(STATUS "No nvcc: device code is left out")
    return()
  endif()
  execute_process(COMMAND ${ANABRANCH_NVCC} --version OUTPUT_VARIABLE said)
  string(REGEX MATCH "release ([0-9.]+)" found "${said}")
  if(NOT found OR CMAKE_MATCH_1 VERSION_LESS 12.4)
    message(STATUS "nvcc is older than 12.4: device code is left out")
    return()
  endif()
  execute_process(COMMAND ${ANABRANCH_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
  set(codes "")
  foreach(arch IN LISTS ANABRANCH_CUDA_ARCHITECTURES)
    if("${known}\n" MATCHES "sm_${arch}\n")
      list(APPEND codes -gencode "arch=compute_${arch},code=sm_${arch}")
    endif()
  endforeach()

  set(here "${PROJECT_SOURCE_DIR}/src/device/cuda")
  set(base "${CMAKE_CURRENT_BINARY_DIR}/device_code")
  if(NOT DEFINED ANABRANCH_NVCC_LINKS)  # a toolkit may lack a host compiler or the device runtime
    file(WRITE "${base}_trial.cu" "extern \"C\" __global__ void trial() {}\n")
    execute_process(COMMAND ${ANABRANCH_NVCC} -rdc=true ${codes} -dc "${base}_trial.cu" -o
                            "${base}_trial.o"
                    RESULT_VARIABLE compiled OUTPUT_QUIET ERROR_QUIET)
    execute_process(COMMAND ${ANABRANCH_NVCC} -dlink -fatbin ${codes} "${base}_trial.o" -lcudadevrt
                            -o "${base}_trial.fatbin"
                    RESULT_VARIABLE linked OUTPUT_QUIET ERROR_QUIET)
    set(works OFF)
    if(compiled EQUAL 0 AND linked EQUAL 0)
      set(works ON)
    endif()
    set(ANABRANCH_NVCC_LINKS ${works} CACHE INTERNAL "nvcc compiles and links device code")
  endif()
  if(NOT ANABRANCH_NVCC_LINKS)
    message(STATUS "nvcc cannot link device code: device code is left out")
    return()
  endif()
  set(objects "")
  foreach(part IN ITEMS updater transfers checksums)
    list(APPEND objects "${base}_${part}.o")
    add_custom_command(
      OUTPUT "${base}_${part}.o"
      COMMAND ${ANABRANCH_NVCC} -std=c++17 -O2 -rdc=true ${codes} -dc -I${PROJECT_SOURCE_DIR}/src
              "${here}/${part}.cu" -o "${base}_${part}.o"
      DEPENDS "${here}/${part}.cu" "${here}/device_code.h"
      VERBATIM)
  endforeach()
  add_custom_command(
    OUTPUT "${base}.fatbin"
    COMMAND ${ANABRANCH_NVCC} -dlink -fatbin ${codes} ${objects} -lcudadevrt -o "${base}.fatbin"
    DEPENDS ${objects}
    VERBATIM)
  add_custom_command(
    OUTPUT "${base}_image.cpp"
    COMMAND ${CMAKE_COMMAND} -DIN=${base}.fatbin -DOUT=${base}_image.cpp -P "${here}/embed.cmake"
    DEPENDS "${base}.fatbin" "${here}/embed.cmake"
    VERBATIM)
  target_sources(${target} PRIVATE "${base}_image.cpp")
  target_compile_definitions(${target} PRIVATE ANABRANCH_WITH_DEVICE_CODE=1)
endfunction()
