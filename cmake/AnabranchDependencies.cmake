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
# We hold fmt's code and need no library of it. A static library that ships has it in each of its
# files, where it gives way to that of a user who links fmt as well. All else has it once, which
# compiles in two thirds of the time. Of other versions than 9 we do not know what that code is.
add_library(anabranch_fmt INTERFACE)
if((ANABRANCH_QUICK_BUILD OR BUILD_SHARED_LIBS) AND NOT fmt_VERSION VERSION_GREATER_EQUAL 10)
  add_library(anabranch_fmt_code OBJECT cmake/fmt_code.cpp)
  set_target_properties(anabranch_fmt_code PROPERTIES POSITION_INDEPENDENT_CODE ON
                                                      CXX_VISIBILITY_PRESET hidden)
  target_compile_features(anabranch_fmt_code PRIVATE cxx_std_20)
  set(headers $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_include_directories(anabranch_fmt_code SYSTEM PRIVATE ${headers})
  target_include_directories(anabranch_fmt SYSTEM INTERFACE ${headers})
  target_sources(anabranch_fmt INTERFACE $<TARGET_OBJECTS:anabranch_fmt_code>)
else()
  target_link_libraries(anabranch_fmt INTERFACE fmt::fmt-header-only)
endif()

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
