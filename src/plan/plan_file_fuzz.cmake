# SPDX-License-Identifier: Apache-2.0
# With ANABRANCH_FUZZ (clang, in a build under AddressSanitizer) the reader of plan files becomes a
# libFuzzer program, of the objects that the tests have:
#   build/asan/src/plan/plan_file_fuzz -max_len=4096 <scratch folder> src/plan/plan_file_corpus
option(ANABRANCH_FUZZ "Build fuzzers with libFuzzer (clang)" OFF)
if(ANABRANCH_FUZZ)
  add_executable(plan_file_fuzz plan_file_fuzz.cpp)
  target_link_libraries(plan_file_fuzz PRIVATE anabranch_options Threads::Threads)
  foreach(room IN ITEMS base program plan)
    # So that the fuzzer sees their branches. Headers that were precompiled without it do not fit.
    target_compile_options(anabranch_${room} PRIVATE -fsanitize=fuzzer-no-link)
    set_target_properties(anabranch_${room} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    target_sources(plan_file_fuzz PRIVATE $<TARGET_OBJECTS:anabranch_${room}>)
    get_property(libraries GLOBAL PROPERTY ANABRANCH_LIBRARIES_${room})
    target_link_libraries(plan_file_fuzz PRIVATE ${libraries})
  endforeach()
  target_link_options(plan_file_fuzz PRIVATE -fsanitize=fuzzer)
endif()

# plan_generated.h is what the schema gives; skipped where flatc is missing or another version.
if(ANABRANCH_BUILD_TESTS)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/generated")
  file(MAKE_DIRECTORY "${generated}")
  add_test(NAME plan_generated_header
           COMMAND sh -c "\"$0\" \"$1\" && cmp \"$1/plan_generated.h\" \"$2\""
                   "${CMAKE_CURRENT_SOURCE_DIR}/plan_file_generate.sh" "${generated}"
                   "${CMAKE_CURRENT_SOURCE_DIR}/plan_generated.h")
  set_tests_properties(plan_generated_header PROPERTIES SKIP_RETURN_CODE 2 TIMEOUT 60 LABELS source)
endif()
