// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_loans.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/check_brute.h"
#include "plan/order.h"
#include "plan/random_program.h"
#include "plan/waits.h"

namespace anabranch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kBytes = 4096, kAlignment = 512;

struct Planned {
  explicit Planned(Program made, bool lends = true)
      : program(std::move(made)), order(make_order(program)), waits(*derive_waits(program, order)) {
    for (std::uint32_t i = 0; lends && i < program.buffers().size(); ++i) {
      if (program.buffers()[i].role != Role::kTemporary) lenders.push_back(BufferId{i});
    }
    memory = plan_memory(program, order, waits, lenders);
  }
  ArenaLayout alone() const { return plan_memory(program, order, waits); }

  Program program;
  std::vector<StepId> order;
  std::vector<Wait> waits;
  std::vector<BufferId> lenders;
  MemoryPlan memory;
};

Program small_program(std::uint64_t seed) {
  RandomProgramOptions options;
  options.steps = 50;
  options.streams = 1 + static_cast<std::uint32_t>(seed % 6);
  options.syncs = seed % 2 == 0 ? 5 : 0;
  options.max_bytes = 1 << 12;
  return random_program(seed, options);
}

// Steps on one stream that each write these buffers: temporaries, but for those that lend.
Planned plan_of(std::vector<std::vector<std::uint32_t>> buffers_of_step,
                std::vector<std::uint64_t> bytes, std::vector<bool> lends,
                std::uint64_t lender_alignment = kAlignment) {
  ProgramBuilder builder;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    builder.add_buffer({std::to_string(i), lends[i] ? Role::kOutput : Role::kTemporary, bytes[i],
                        lends[i] ? lender_alignment : kAlignment});
  }
  for (const auto& buffers : buffers_of_step) {
    std::vector<Access> accesses;
    for (const std::uint32_t buffer : buffers) {
      accesses.push_back({AccessMode::kWrite, builder.whole(BufferId(buffer))});
    }
    builder.compute(StreamId(0), "step", std::move(accesses));
  }
  auto program = builder.build();
  EXPECT_TRUE(program.ok()) << (program.ok() ? "" : program.error().message());
  return Planned(*std::move(program));
}

bool share(const Planned& planned, const Loan& a, const Loan& b) {
  if (a.lender != b.lender) return false;
  return a.offset < b.offset + planned.program.buffer(b.temporary).size_bytes &&
         b.offset < a.offset + planned.program.buffer(a.temporary).size_bytes;
}

TEST(MemoryLoans, WhoeverBorrowsIsOverBeforeTheLenderIsUsedAndMeetsNobody) {
  std::size_t loans = 0, shared = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Planned planned(small_program(seed));
    const check::BruteForce brute(planned.program);
    const auto ended = check::find_ended_before(planned.program, planned.order, planned.waits);
    const auto is_before = [&](BufferId a, BufferId b) {
      return brute.all_before(ended, index_of(a), index_of(b));
    };
    for (const Loan& loan : planned.memory.loans) {
      const Buffer &lender = planned.program.buffer(loan.lender),
                   &temporary = planned.program.buffer(loan.temporary);
      EXPECT_TRUE(is_before(loan.temporary, loan.lender));
      EXPECT_LE(loan.offset + temporary.size_bytes, lender.size_bytes);
      EXPECT_EQ(loan.offset % temporary.alignment, 0u);
      EXPECT_LE(temporary.alignment, lender.alignment);
      EXPECT_EQ(planned.memory.arena.offsets[index_of(loan.temporary)], kNotInArena);
      for (const Loan& other : planned.memory.loans) {
        if (other == loan || !share(planned, loan, other)) continue;
        ++shared;
        EXPECT_TRUE(is_before(loan.temporary, other.temporary) ||
                    is_before(other.temporary, loan.temporary));
      }
    }
    loans += planned.memory.loans.size();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(loans, 400u);
  EXPECT_GT(shared, 40u);
}

TEST(MemoryLoans, TheArenaIsNeverLargerThanWithoutAndHoldsAllThatBorrowNothing) {
  std::uint64_t saved = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Planned planned(small_program(seed));
    const ArenaLayout alone = planned.alone();
    const ArenaLayout& arena = planned.memory.arena;
    EXPECT_LE(arena.size_bytes, alone.size_bytes);
    EXPECT_LE(arena.lower_bound_bytes, arena.size_bytes);
    saved += alone.size_bytes - arena.size_bytes;
    std::size_t in_arena = planned.memory.loans.size(), in_it_alone = 0;
    for (const std::uint64_t offset : arena.offsets) in_arena += offset != kNotInArena;
    for (const std::uint64_t offset : alone.offsets) in_it_alone += offset != kNotInArena;
    EXPECT_EQ(in_arena, in_it_alone);
    PlanParts parts{planned.order, planned.waits, arena};
    EXPECT_THAT(*find_races(planned.program, parts), IsEmpty());
  }
  EXPECT_GT(saved, 100'000u);
}

TEST(MemoryLoans, WithoutLendersAPlanIsWhatItWas) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Planned planned(small_program(seed), false);
    const ArenaLayout alone = planned.alone();
    EXPECT_THAT(planned.memory.loans, IsEmpty());
    EXPECT_EQ(planned.memory.arena.offsets, alone.offsets);
    EXPECT_EQ(planned.memory.arena.size_bytes, alone.size_bytes);
    EXPECT_EQ(planned.memory.arena.lower_bound_bytes, alone.lower_bound_bytes);
    EXPECT_EQ(planned.memory.arena.naive_bytes, alone.naive_bytes);
  }
}

TEST(MemoryLoans, ATemporaryLiesInAResultThatIsUsedAfterIt) {
  const Planned planned = plan_of({{0}, {1}}, {kBytes, kBytes}, {false, true});
  EXPECT_THAT(planned.memory.loans, ElementsAre(Loan{BufferId(0), BufferId(1), 0}));
  EXPECT_EQ(planned.memory.arena.size_bytes, 0u);
}

TEST(MemoryLoans, OneThatTheResultsFirstStepUsesDoesNot) {
  const Planned planned = plan_of({{0}, {0, 1}}, {kBytes, kBytes}, {false, true});
  EXPECT_THAT(planned.memory.loans, IsEmpty());
  EXPECT_EQ(planned.memory.arena.size_bytes, kBytes);
}

TEST(MemoryLoans, NothingLiesInAResultOnceItHasBeenUsed) {
  const Planned planned = plan_of({{1}, {0}}, {kBytes, kBytes}, {false, true});
  EXPECT_THAT(planned.memory.loans, IsEmpty());
}

TEST(MemoryLoans, NothingLiesInAResultThatNoStepUsesOrThatIsSmallerOrLessAligned) {
  EXPECT_THAT(plan_of({{0}}, {kBytes, kBytes}, {false, true}).memory.loans, IsEmpty());
  EXPECT_THAT(plan_of({{0}, {1}}, {kBytes, kBytes - 1}, {false, true}).memory.loans, IsEmpty());
  EXPECT_THAT(plan_of({{0}, {1}}, {kBytes, kBytes}, {false, true}, 256).memory.loans, IsEmpty());
}

TEST(MemoryLoans, AResultThatIsUsedLaterStaysForWhatLivesLonger) {
  // 0 fits both results, 1 the last alone.
  const Planned planned =
      plan_of({{0, 1}, {1, 2}, {3}}, {kBytes, kBytes, kBytes, kBytes}, {false, false, true, true});
  EXPECT_THAT(planned.memory.loans,
              ElementsAre(Loan{BufferId(0), BufferId(2), 0}, Loan{BufferId(1), BufferId(3), 0}));
}

TEST(MemoryLoans, TemporariesOfDifferentTimesShareTheBytesOfAResult) {
  const Planned planned = plan_of({{0}, {0, 1}, {1, 2}, {3}}, {kBytes, kBytes, kBytes, 2 * kBytes},
                                  {false, false, false, true});
  EXPECT_THAT(planned.memory.loans,
              ElementsAre(Loan{BufferId(0), BufferId(3), 0}, Loan{BufferId(1), BufferId(3), kBytes},
                          Loan{BufferId(2), BufferId(3), 0}));
}

TEST(MemoryLoans, WhoHasNoTurnBeforeTheBudgetIsSpentLiesInTheArena) {
  const Planned planned =
      plan_of({{0}, {1}, {2}}, {2 * kBytes, kBytes, 4 * kBytes}, {false, false, true});
  const check::Clocks clocks(planned.program, planned.order, planned.waits);
  const memory::Lives temporaries(planned.program, planned.order, clocks),
      lenders(planned.program, planned.order, clocks, planned.lenders);
  EXPECT_THAT(memory::find_loans(temporaries, lenders, 0),
              ElementsAre(Loan{BufferId(0), BufferId(2), 0}));
}

// Of a transformer's training step, in order: what each step uses, and the sizes.
class Transformer {
 public:
  struct Shape {
    std::uint64_t tokens = 0, hidden = 0, layers = 0, words = 0;
  };
  explicit Transformer(const Shape& shape)
      : row_(2 * shape.tokens * shape.hidden), square_(2 * shape.hidden * shape.hidden) {
    const std::uint64_t table = 2 * shape.words * shape.hidden;
    std::vector<Layer> layers(shape.layers);
    std::uint32_t x = add(row_);
    use({x});
    for (Layer& layer : layers) x = forward(layer, x);
    const std::uint32_t logits = add(2 * shape.tokens * shape.words);
    use({x, logits});
    const std::uint32_t of_logits = add(2 * shape.tokens * shape.words);
    use({logits, of_logits});
    std::uint32_t gradient = add(row_);
    use({of_logits, gradient});
    use({of_logits, x, add(table, true)});
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      gradient = backward(*layer, gradient);
    }
    use({gradient, add(table, true)});
  }
  Planned plan() const { return plan_of(steps_, bytes_, lends_); }
  std::uint64_t results() const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < bytes_.size(); ++i) sum += lends_[i] ? bytes_[i] : 0;
    return sum;
  }

 private:
  struct Layer {
    std::uint32_t x, norm, qkv, attended, middle, norm2, up, active;
  };
  std::uint32_t add(std::uint64_t bytes, bool lends = false) {
    bytes_.push_back(bytes);
    lends_.push_back(lends);
    return static_cast<std::uint32_t>(bytes_.size() - 1);
  }
  void use(std::vector<std::uint32_t> buffers) { steps_.push_back(std::move(buffers)); }
  std::uint32_t make(std::uint64_t bytes, std::vector<std::uint32_t> from) {
    const std::uint32_t made = add(bytes);
    from.push_back(made);
    use(std::move(from));
    return made;
  }
  void leave(std::uint64_t bytes, std::vector<std::uint32_t> from) {
    from.push_back(add(bytes, true));
    use(std::move(from));
  }
  std::uint32_t forward(Layer& layer, std::uint32_t x) {
    layer.x = x;
    layer.norm = make(row_, {x});
    layer.qkv = make(3 * row_, {layer.norm});
    layer.attended = make(row_, {layer.qkv});
    layer.middle = make(row_, {x, make(row_, {layer.attended})});
    layer.norm2 = make(row_, {layer.middle});
    layer.up = make(4 * row_, {layer.norm2});
    layer.active = make(4 * row_, {layer.up});
    return make(row_, {layer.middle, make(row_, {layer.active})});
  }
  std::uint32_t backward(const Layer& layer, std::uint32_t of_y) {
    const std::uint32_t of_active = make(4 * row_, {of_y});
    leave(4 * square_, {of_y, layer.active});
    const std::uint32_t of_up = make(4 * row_, {of_active, layer.up});
    const std::uint32_t of_norm2 = make(row_, {of_up});
    leave(4 * square_, {of_up, layer.norm2});
    const std::uint32_t of_middle = make(row_, {of_norm2, layer.middle, of_y});
    const std::uint32_t of_attended = make(row_, {of_middle});
    leave(square_, {of_middle, layer.attended});
    const std::uint32_t of_qkv = make(3 * row_, {of_attended, layer.qkv, layer.attended});
    const std::uint32_t of_norm = make(row_, {of_qkv});
    leave(3 * square_, {of_qkv, layer.norm});
    return make(row_, {of_norm, layer.x, of_middle});
  }

  std::uint64_t row_, square_;
  std::vector<std::vector<std::uint32_t>> steps_;
  std::vector<std::uint64_t> bytes_;
  std::vector<bool> lends_;
};

// What lives at once where each result is allocated at its first use, and nothing is planned.
std::uint64_t find_plain_peak(const Planned& planned) {
  const check::Clocks clocks(planned.program, planned.order, planned.waits);
  std::vector<std::int64_t> change(planned.order.size() + 1);
  for (const memory::Life& life : memory::Lives(planned.program, planned.order, clocks).all) {
    change[life.begin] += static_cast<std::int64_t>(life.size_bytes);
    change[life.end + 1] -= static_cast<std::int64_t>(life.size_bytes);
  }
  const memory::Lives results(planned.program, planned.order, clocks, planned.lenders);
  for (const memory::Life& life : results.all) {
    change[life.begin] += static_cast<std::int64_t>(life.size_bytes);
  }
  std::int64_t live = 0, peak = 0;
  for (const std::int64_t bytes : change) peak = std::max(peak, live += bytes);
  return static_cast<std::uint64_t>(peak);
}

TEST(MemoryLoans, ATransformersActivationsLieInItsGradients) {
  struct Case {
    Transformer::Shape shape;
    std::uint64_t results, alone, arena, plain_peak;  // in MiB
  };
  for (const Case& step : {Case{{1024, 2048, 16, 32'000}, 1786, 1153, 4, 1790},
                           Case{{1536, 1600, 20, 32'000}, 1367, 1692, 398, 1700},
                           Case{{1024, 1024, 24, 16'000}, 638, 832, 202, 834},
                           Case{{2048, 1024, 24, 32'000}, 701, 1790, 1262, 1790}}) {
    const Transformer transformer(step.shape);
    const Planned planned = transformer.plan();
    EXPECT_EQ(transformer.results() >> 20, step.results);
    EXPECT_EQ(planned.alone().size_bytes >> 20, step.alone);
    EXPECT_EQ(planned.memory.arena.size_bytes >> 20, step.arena);
    EXPECT_EQ(find_plain_peak(planned) >> 20, step.plain_peak);
  }
}

}  // namespace
}  // namespace anabranch
