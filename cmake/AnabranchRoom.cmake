# SPDX-License-Identifier: Apache-2.0
# anabranch_room(<name> [TEST_ONLY] [THREADED] [AFTER <room>...] SOURCES <file>... [TESTS <file>...]
#                [BUSY_TESTS <file>...] [BENCHES <file>...] [LIBRARIES <target>...]
#                [TEST_LIBRARIES <target>...])
#
# A room is an object library that sees the public headers, its own files and those of the rooms it
# comes AFTER. Its tests and benchmarks link these rooms and nothing downstream, so that a room can
# be built and tested while a later one is broken. TEST_LIBRARIES are for tests and benchmarks alone.
# A TEST_ONLY room is linked by the tests and benchmarks of the rooms that come after it, and is part
# of nothing that ships. The tests of a THREADED room, in which threads meet, are those that
# ThreadSanitizer has something to say of: label `threads`, target `threaded_tests`. The BUSY_TESTS,
# which compute for seconds, are optimized as the rooms are; other tests spend more time in the
# compiler than they run, and get ANABRANCH_TEST_OPTIONS.
#   x_test.cpp  -> test program   <room>_x_test, run by ctest
#   x_bench.cpp -> benchmark      <room>_x_bench

# Compile options of everything of ours; never of whoever links us.
add_library(anabranch_options INTERFACE)
target_compile_features(anabranch_options INTERFACE cxx_std_20)
target_compile_options(anabranch_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                                   -Wno-sign-conversion
                                                   $<$<BOOL:${ANABRANCH_WERROR}>:-Werror>)
target_include_directories(
  anabranch_options INTERFACE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
                              "${PROJECT_BINARY_DIR}/generated")
set_property(GLOBAL PROPERTY ANABRANCH_ROOMS "")

if(ANABRANCH_BUILD_TESTS)
  add_custom_target(threaded_tests)
  # What nearly every test includes, compiled once for all.
  file(WRITE "${PROJECT_BINARY_DIR}/generated/test_headers.cpp" "")
  foreach(kind IN ITEMS test optimized_test)
    add_library(anabranch_${kind}_headers OBJECT "${PROJECT_BINARY_DIR}/generated/test_headers.cpp")
    target_link_libraries(anabranch_${kind}_headers PRIVATE anabranch_options GTest::gmock)
    target_precompile_headers(anabranch_${kind}_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  endforeach()
  target_compile_options(anabranch_test_headers PRIVATE ${ANABRANCH_TEST_OPTIONS})
endif()

# What the objects of a room are compiled with.
function(anabranch_room_properties target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target} PRIVATE anabranch_options)
endfunction()

# What most files of the rooms include, compiled once for all. What ships is built without, so that
# a file that lacks an include does not compile there.
if(ANABRANCH_QUICK_BUILD)
  file(WRITE "${PROJECT_BINARY_DIR}/generated/room_headers.cpp" "")
  add_library(anabranch_room_headers OBJECT "${PROJECT_BINARY_DIR}/generated/room_headers.cpp")
  anabranch_room_properties(anabranch_room_headers)
  target_link_libraries(anabranch_room_headers PRIVATE anabranch_fmt Threads::Threads)
  target_precompile_headers(
    anabranch_room_headers PRIVATE <algorithm> <array> <atomic> <cstddef> <cstdint> <cstring>
    <functional> <iterator> <map> <memory> <numeric> <optional> <set> <span> <string> <string_view>
    <utility> <vector> <fmt/format.h>)
endif()

function(anabranch_room name)
  cmake_parse_arguments(
    ARG "TEST_ONLY;THREADED" ""
    "AFTER;SOURCES;TESTS;BUSY_TESTS;BENCHES;LIBRARIES;TEST_LIBRARIES" ${ARGN})
  set(room anabranch_${name})
  add_library(${room} OBJECT ${ARG_SOURCES})
  anabranch_room_properties(${room})
  target_link_libraries(${room} PRIVATE ${ARG_LIBRARIES} Threads::Threads)
  if(TARGET anabranch_room_headers)
    target_precompile_headers(${room} REUSE_FROM anabranch_room_headers)
  endif()
  set_property(GLOBAL PROPERTY ANABRANCH_LIBRARIES_${name} "${ARG_LIBRARIES}")
  if(ARG_TEST_ONLY)
    set_target_properties(${room} PROPERTIES EXCLUDE_FROM_ALL ON)
  else()
    set_property(GLOBAL APPEND PROPERTY ANABRANCH_ROOMS ${room})
    target_sources(anabranch PRIVATE $<TARGET_OBJECTS:${room}>)
  endif()

  set(upstream ${name} ${ARG_AFTER})
  if(ANABRANCH_BUILD_TESTS)
    foreach(file IN LISTS ARG_TESTS ARG_BUSY_TESTS)
      anabranch_room_program(${name} ${file} "${upstream}" GTest::gmock_main ${ARG_TEST_LIBRARIES})
      add_test(NAME ${program} COMMAND ${program})
      set_tests_properties(${program} PROPERTIES TIMEOUT 300 LABELS unit)
      if(file IN_LIST ARG_BUSY_TESTS)
        target_precompile_headers(${program} REUSE_FROM anabranch_optimized_test_headers)
      else()
        target_precompile_headers(${program} REUSE_FROM anabranch_test_headers)
        target_compile_options(${program} PRIVATE ${ANABRANCH_TEST_OPTIONS})
      endif()
      if(ARG_THREADED)
        anabranch_threaded_test(${program} ${program})
      endif()
    endforeach()
  endif()
  if(ANABRANCH_BUILD_BENCH)
    foreach(file IN LISTS ARG_BENCHES)
      anabranch_room_program(${name} ${file} "${upstream}" benchmark::benchmark_main
                             ${ARG_TEST_LIBRARIES})
    endforeach()
  endif()
endfunction()

# anabranch_threaded_test(<test> <target>)
function(anabranch_threaded_test test target)
  set_property(TEST ${test} APPEND PROPERTY LABELS threads)
  add_dependencies(threaded_tests ${target})
endfunction()

# anabranch_room_program(<prefix> <file> <rooms> <library>...)
# Sets `program` in the caller to the name of the target made for `file`.
function(anabranch_room_program name file rooms)
  get_filename_component(stem ${file} NAME_WE)
  set(program ${name}_${stem})
  add_executable(${program} ${file})
  target_link_libraries(${program} PRIVATE anabranch_options ${ARGN} Threads::Threads)
  foreach(room IN LISTS rooms)
    target_sources(${program} PRIVATE $<TARGET_OBJECTS:anabranch_${room}>)
    get_property(libraries GLOBAL PROPERTY ANABRANCH_LIBRARIES_${room})
    target_link_libraries(${program} PRIVATE ${libraries})
  endforeach()
  set(program ${program} PARENT_SCOPE)
endfunction()
