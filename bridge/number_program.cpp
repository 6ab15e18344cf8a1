// SPDX-License-Identifier: Apache-2.0
#include "anabranch/experimental/number_program.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "handles.h"

namespace ab = anabranch;
namespace numbers = anabranch::numbers;

namespace {

std::vector<numbers::Entry> entries_of(const AnabranchNumberEntry* from, size_t count) {
  std::vector<numbers::Entry> entries;
  std::transform(from, from + count, std::back_inserter(entries), [](const auto& entry) {
    return numbers::Entry{
        numbers::Operator(entry.made_by),
        entry.is_looked_at != 0,
        {{{entry.entries[0], entry.constants[0]}, {entry.entries[1], entry.constants[1]}}},
        entry.value};
  });
  return entries;
}

}  // namespace

AnabranchNumberProgram* anabranch_number_program_make(const AnabranchNumberEntry* first,
                                                      const AnabranchNumberEntry* other,
                                                      size_t count,
                                                      const AnabranchCaptureNumber* words,
                                                      size_t word_count) {
  return ab::bridge::guard([&] {
    std::vector<numbers::Word> all;
    std::transform(words, words + word_count, std::back_inserter(all), [](const auto& word) {
      return numbers::Word{static_cast<uint32_t>(word.size_bytes), word.first, word.other};
    });
    return ab::bridge::handle_of<AnabranchNumberProgram>(
        numbers::NumberProgram::make(entries_of(first, count), entries_of(other, count), all));
  });
}

void anabranch_number_program_free(AnabranchNumberProgram* program) { delete program; }

int32_t anabranch_number_program_run(const AnabranchNumberProgram* program, const double* given,
                                     uint64_t* words) {
  const numbers::NumberProgram& of = program->program;
  return static_cast<int32_t>(of.run({given, of.number_count()}, {words, of.word_count()}));
}

int32_t anabranch_numbers_apart(const AnabranchNumberEntry* entries, size_t count,
                                const double* now, const double* before, size_t number_count,
                                double* out) {
  return ab::bridge::guard([&] {
    const auto found = numbers::find_numbers_apart(entries_of(entries, count), {now, number_count},
                                                   {before, number_count});
    if (!found.ok()) return ab::bridge::fail(found.error());
    std::copy(found->begin(), found->end(), out);
    return 0;
  });
}
