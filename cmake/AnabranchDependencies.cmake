# SPDX-License-Identifier: Apache-2.0
# Every dependency: found on the system first, fetched where it is missing.
# None of them reaches those who link us: the public headers include the standard library only.
include(FetchContent)

# anabranch_dependency(<name> <repository> <tag> [arguments of find_package...])
macro(anabranch_dependency name repository tag)
  FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${tag}
                       FIND_PACKAGE_ARGS ${ARGN})
  FetchContent_MakeAvailable(${name})
endmacro()

# What a fetched dependency would add to our build or our installation.
set(FMT_INSTALL OFF)
set(FLATBUFFERS_BUILD_TESTS OFF)
set(FLATBUFFERS_BUILD_FLATC OFF)
set(FLATBUFFERS_BUILD_FLATHASH OFF)
set(FLATBUFFERS_BUILD_FLATLIB OFF)
set(FLATBUFFERS_INSTALL OFF)
set(INSTALL_GTEST OFF)
set(BENCHMARK_ENABLE_TESTING OFF)
set(BENCHMARK_ENABLE_INSTALL OFF)
set(BENCHMARK_ENABLE_WERROR OFF)
set(JSON_Install OFF)
set(CLI11_BUILD_TESTS OFF)
set(CLI11_BUILD_EXAMPLES OFF)

find_package(Threads REQUIRED)

anabranch_dependency(fmt https://github.com/fmtlib/fmt.git 9.1.0 9)
# What ships holds its own fmt and needs none. A sanitizer's build never ships: without fmt's code in
# each of its files it compiles in two thirds of the time.
add_library(anabranch_fmt INTERFACE)
target_link_libraries(
  anabranch_fmt INTERFACE $<IF:$<BOOL:${ANABRANCH_SANITIZER}>,fmt::fmt,fmt::fmt-header-only>)

# Only FlatBuffers' headers are used: our generated code and its verifier need no library.
anabranch_dependency(flatbuffers https://github.com/google/flatbuffers.git v23.5.26
                     NAMES flatbuffers FlatBuffers)
add_library(anabranch_flatbuffers INTERFACE)
if(flatbuffers_SOURCE_DIR)
  set(headers "${flatbuffers_SOURCE_DIR}/include")
else()
  set(headers $<TARGET_PROPERTY:flatbuffers::flatbuffers,INTERFACE_INCLUDE_DIRECTORIES>)
endif()
target_include_directories(anabranch_flatbuffers SYSTEM INTERFACE ${headers})

if(ANABRANCH_BUILD_TOOL OR ANABRANCH_BUILD_TESTS)
  anabranch_dependency(nlohmann_json https://github.com/nlohmann/json.git v3.11.2 3.9)
endif()
if(ANABRANCH_BUILD_TOOL)
  anabranch_dependency(CLI11 https://github.com/CLIUtils/CLI11.git v2.1.2 2.1)
endif()
if(ANABRANCH_BUILD_TESTS)
  anabranch_dependency(googletest https://github.com/google/googletest.git release-1.12.1
                       NAMES GTest)
  anabranch_dependency(rapidcheck https://github.com/emil-e/rapidcheck.git
                       853e14f0f4313a9eb3c71e24848373e7b843dfd1)
endif()
if(ANABRANCH_BUILD_BENCH)
  anabranch_dependency(benchmark https://github.com/google/benchmark.git v1.7.1)
endif()
