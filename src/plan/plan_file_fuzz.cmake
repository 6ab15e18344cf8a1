# SPDX-License-Identifier: Apache-2.0
# With ANABRANCH_FUZZ (clang only) the reader of plan files becomes a libFuzzer program:
#   cmake -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DANABRANCH_FUZZ=ON -DANABRANCH_BUILD_TESTS=OFF
#   build/fuzz/src/plan/plan_file_fuzz -max_len=4096 <scratch folder> src/plan/plan_file_corpus
option(ANABRANCH_FUZZ "Build fuzzers with libFuzzer and AddressSanitizer (clang)" OFF)
if(ANABRANCH_FUZZ)
  add_executable(plan_file_fuzz plan_file_fuzz.cpp)
  target_link_libraries(plan_file_fuzz PRIVATE anabranch_options Threads::Threads)
  foreach(room IN ITEMS base program plan)
    get_target_property(sources anabranch_${room} SOURCES)
    get_target_property(folder anabranch_${room} SOURCE_DIR)
    list(TRANSFORM sources PREPEND "${folder}/")
    target_sources(plan_file_fuzz PRIVATE ${sources})
    get_property(libraries GLOBAL PROPERTY ANABRANCH_LIBRARIES_${room})
    target_link_libraries(plan_file_fuzz PRIVATE ${libraries})
  endforeach()
  # The rooms are compiled once more, so that the fuzzer sees their branches.
  target_compile_options(plan_file_fuzz PRIVATE -g -O1 -fsanitize=fuzzer,address,undefined
                                                -fno-sanitize-recover=all)
  target_link_options(plan_file_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
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
