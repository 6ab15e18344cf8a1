// SPDX-License-Identifier: Apache-2.0
// Training steps whose results are fresh: temporaries lie in them until they are used. Launched at
// random addresses, over memory that holds poison, they answer what an interpreter does, with all
// copies and fills as kernels or left to the driver, in captured order or side by side, as one
// graph or in stretches.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"
#include "record/cuda/stretches.h"

namespace anabranch::cuda {
namespace {

using ::testing::IsEmpty;

using Words = std::vector<std::uint32_t>;

struct Op {
  enum Kind : std::uint8_t { kJoin, kCopy, kFill } kind = kJoin;
  std::uint32_t a = 0, b = 0, to = 0;  // tensors
};

void join(const std::uint32_t* a, std::uint64_t a_words, const std::uint32_t* b,
          std::uint64_t b_words, std::uint32_t* to, std::uint64_t words) {
  for (std::uint64_t i = 0; i < words; ++i) {
    to[i] = 3 * a[i % a_words] + b[i % b_words] + static_cast<std::uint32_t>(i);
  }
}

// Layers that keep what their backward reads; in turn backwards, each leaves a gradient.
class TrainingStep {
 public:
  explicit TrainingStep(std::uint64_t seed, std::uint32_t layers = 8) : random_(seed) {
    const std::uint32_t x = add(UnitKind::kGiven);
    std::vector<std::vector<std::uint32_t>> saved(layers);
    std::uint32_t last = x;
    for (auto& of_layer : saved) {
      for (int i = 0; i < 3; ++i) {
        of_layer.push_back(last);
        last = result_of(last, random_() % 2 ? x : last, UnitKind::kTemporary);
      }
    }
    for (auto of_layer = saved.rbegin(); of_layer != saved.rend(); ++of_layer) {
      for (const std::uint32_t read : *of_layer) {
        last = result_of(last, read, UnitKind::kTemporary);
        if (random_() % 2) result_of(last, read, UnitKind::kFresh);
      }
    }
    result_of(last, x, UnitKind::kFresh);
  }

  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<UnitKind>& kinds() const { return kinds_; }
  std::uint64_t words(std::uint32_t tensor) const { return words_[tensor]; }
  std::uint64_t bytes(std::uint32_t tensor) const { return words_[tensor] * sizeof(std::uint32_t); }

  std::vector<Words> interpret(const Words& x) const {
    std::vector<Words> values;
    for (const std::uint64_t words : words_) values.emplace_back(words);
    values[0] = x;
    for (const Op& op : ops_) {
      Words &a = values[op.a], &b = values[op.b], &to = values[op.to];
      if (op.kind == Op::kJoin) join(a.data(), a.size(), b.data(), b.size(), to.data(), to.size());
      if (op.kind == Op::kCopy) to = a;
      if (op.kind == Op::kFill) to.assign(to.size(), 7);
    }
    return values;
  }

 private:
  std::uint32_t add(UnitKind kind, std::uint64_t words = 0) {
    words_.push_back(words != 0 ? words : 32 + random_() % 2000);
    kinds_.push_back(kind);
    return static_cast<std::uint32_t>(kinds_.size() - 1);
  }
  std::uint32_t result_of(std::uint32_t a, std::uint32_t b, UnitKind kind) {
    const std::uint64_t how = random_() % 8;
    const std::uint32_t to = add(kind, how == 0 ? words_[a] : 0);
    if (how == 1) ops_.push_back({Op::kFill, to, to, to});
    ops_.push_back({how == 0 ? Op::kCopy : Op::kJoin, a, b, to});
    return to;
  }

  std::mt19937_64 random_;
  std::vector<Op> ops_;
  std::vector<std::uint64_t> words_;  // by tensor
  std::vector<UnitKind> kinds_;
};

class FreshResultsTest : public sim::SimTest {
 protected:
  void make(std::uint64_t seed) {
    code_.reset();
    start({.seed = seed, .jitter_ns = 2000});
    random_.seed(seed);
    code_ = *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    join_ = load({.name = "join",
                  .params = sim::layout_of({8, 8, 8, 8, 8, 8}),
                  .run = [](const sim::KernelCall& call) {
                    const auto words = [&](std::uint32_t i) {
                      return call.param<std::uint64_t>(16 * i + 8);
                    };
                    const auto at = [&](std::uint32_t i) {
                      return call.memory<std::uint32_t>(call.param<CuDevicePtr>(16 * i), words(i));
                    };
                    auto *a = at(0), *b = at(1), *to = at(2);
                    if (a && b && to) join(a, words(0), b, words(1), to, words(2));
                  }});
    stream_ = stream();
  }

  struct How {
    bool is_fresh = true;
    bool has_device_code = true;
    std::uint32_t lanes = 1;
    std::uint64_t least_part_bytes = 512;
    std::uint64_t misaligned = 0;  // by so much, what is captured
  };
  Result<Discovery> discover_step(const TrainingStep& step, const How& how) {
    CuGraph graphs[2] = {};
    std::vector<CaptureAllocation> memory[2];
    for (int c = 0; c < 2; ++c) {
      std::vector<CuDevicePtr> blocks;
      for (std::uint32_t i = 0; i < step.kinds().size(); ++i) {
        blocks.push_back(allocate(step.bytes(i) + 1024));
        memory[c].push_back({(blocks[i] + 511) / 512 * 512 + how.misaligned, step.bytes(i)});
      }
      graphs[c] = capture(step, memory[c]);
      for (const CuDevicePtr block : blocks) EXPECT_CU(d->cuMemFree(block));
    }
    std::vector<UnitKind> kinds = step.kinds();
    for (UnitKind& kind : kinds) {
      if (kind == UnitKind::kFresh && !how.is_fresh) kind = UnitKind::kGiven;
    }
    const Notes notes{&*marks_, static_cast<std::uint32_t>(kinds.size()), works_, uses_};
    return discover(*d, {graphs[0], memory[0]}, {graphs[1], memory[1], nullptr, &notes}, kinds,
                    {.device_code = how.has_device_code ? code_.get() : nullptr});
  }
  std::shared_ptr<CudaRecording> record(const Discovery& discovery, const How& how) {
    CudaRecordOptions options;
    options.device_code = how.has_device_code ? code_.get() : nullptr;
    options.lanes = how.lanes;
    options.least_part_bytes = how.least_part_bytes;
    auto made = make_recording(*d, discovery, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }
  std::shared_ptr<CudaRecording> record(const TrainingStep& step, const How& how) {
    const auto found = discover_step(step, how);
    EXPECT_TRUE(found.ok()) << (found.ok() ? "" : found.error().message());
    return found.ok() ? record(*found, how) : nullptr;
  }

  // Answers the slots' contents afterwards, by tensor.
  std::map<std::uint32_t, Words> launch(const CudaRecording& recording, CudaExec& exec,
                                        const TrainingStep& step, const Words& x) {
    std::vector<CuDevicePtr> blocks;
    std::vector<std::uint64_t> at;
    for (const SourceRule& rule : recording.source_rules()) {
      const std::uint64_t bytes = rule.bytes() + 512 * (1 + random_() % 8);
      blocks.push_back(allocate(bytes));
      at.push_back((blocks.back() + 511) / 512 * 512);
      EXPECT_CU(d->cuMemsetD8(blocks.back(), 0xA5, bytes));
    }
    EXPECT_EQ(recording.slots()[0].unit, 0u);
    EXPECT_CU(d->cuMemcpyHtoD(at[0], x.data(), step.bytes(0)));
    EXPECT_TRUE(exec.set_addresses(at).ok());
    EXPECT_TRUE(exec.launch(stream_).ok());
    EXPECT_CU(d->cuStreamSynchronize(stream_));
    std::map<std::uint32_t, Words> found;
    for (std::size_t slot = 0; slot < recording.slots().size(); ++slot) {
      const std::uint32_t tensor = recording.slots()[slot].allocation;
      found[tensor].resize(step.words(tensor));
      EXPECT_CU(d->cuMemcpyDtoH(found[tensor].data(), at[slot], step.bytes(tensor)));
    }
    for (const CuDevicePtr block : blocks) EXPECT_CU(d->cuMemFree(block));
    return found;
  }
  void expect_results(const CudaRecording& recording, CudaExec& exec, const TrainingStep& step) {
    Words x(step.words(0));
    for (std::uint32_t& word : x) word = static_cast<std::uint32_t>(random_());
    const std::vector<Words> expected = step.interpret(x);
    for (const auto& [tensor, words] : launch(recording, exec, step, x)) {
      ASSERT_EQ(words, expected[tensor]) << "tensor " << tensor;
    }
    ASSERT_THAT(sim->violations(), IsEmpty());
  }

  // In turn, each with memory for what it is the first to name; what is no result, and what no
  // later one names, is freed behind it.
  void expect_results(const std::vector<std::shared_ptr<CudaRecording>>& stretches,
                      const TrainingStep& step) {
    Words x(step.words(0));
    for (std::uint32_t& word : x) word = static_cast<std::uint32_t>(random_());
    std::map<std::uint32_t, CuDevicePtr> blocks{{0, allocate(step.bytes(0))}};  // by tensor
    EXPECT_CU(d->cuMemcpyHtoD(blocks[0], x.data(), step.bytes(0)));
    for (std::size_t i = 0; i < stretches.size(); ++i) {
      launch_stretch(*stretches[i], blocks);
      std::erase_if(blocks, [&](const auto& block) {
        const std::uint32_t tensor = block.first;
        const bool is_named = std::any_of(
            stretches.begin() + static_cast<std::ptrdiff_t>(i) + 1, stretches.end(),
            [&](const auto& later) { return std::ranges::count(tensors_of(*later), tensor) != 0; });
        const bool is_over = step.kinds()[tensor] == UnitKind::kTemporary && !is_named;
        if (is_over) {
          EXPECT_CU(d->cuMemFree(block.second));
        }
        return is_over;
      });
    }
    const std::vector<Words> expected = step.interpret(x);
    for (const auto& [tensor, address] : blocks) {
      Words words(step.words(tensor));
      EXPECT_CU(d->cuMemcpyDtoH(words.data(), address, step.bytes(tensor)));
      ASSERT_NE(step.kinds()[tensor], UnitKind::kTemporary);
      ASSERT_EQ(words, expected[tensor]) << "tensor " << tensor;
      EXPECT_CU(d->cuMemFree(address));
    }
    ASSERT_THAT(sim->violations(), IsEmpty());
  }
  void launch_stretch(const CudaRecording& stretch, std::map<std::uint32_t, CuDevicePtr>& blocks) {
    std::vector<std::uint64_t> at;
    std::vector<CuDevicePtr> parts;
    for (const CudaSlot& slot : stretch.slots()) {
      if (!blocks.contains(slot.allocation)) {
        blocks[slot.allocation] = allocate(slot.bytes);
        EXPECT_CU(d->cuMemsetD8(blocks[slot.allocation], 0xA5, slot.bytes));
      }
      at.push_back(blocks[slot.allocation]);
    }
    for (const std::uint64_t bytes : stretch.part_bytes()) {
      at.push_back(parts.emplace_back(allocate(bytes)));
      EXPECT_CU(d->cuMemsetD8(parts.back(), 0xA5, bytes));
    }
    CudaExec& exec = *executables_of(stretch)[random_() % executables_of(stretch).size()];
    EXPECT_TRUE(exec.set_addresses(at).ok());
    EXPECT_TRUE(exec.launch(stream_).ok());
    EXPECT_CU(d->cuStreamSynchronize(stream_));
    for (const CuDevicePtr part : parts) EXPECT_CU(d->cuMemFree(part));
  }
  static std::vector<std::uint32_t> tensors_of(const CudaRecording& stretch) {
    std::vector<std::uint32_t> tensors;
    for (const CudaSlot& slot : stretch.slots()) tensors.push_back(slot.allocation);
    return tensors;
  }
  static std::vector<CudaExec*> executables_of(const CudaRecording& recording) {
    std::vector<CudaExec*> all{recording.executables()[0].get()};
    if (!recording.updating().empty()) all.push_back(recording.updating()[0].get());
    return all;
  }

 private:
  CuGraph capture(const TrainingStep& step, const std::vector<CaptureAllocation>& memory) {
    marks_.emplace(*d);
    works_.clear();
    uses_.clear();
    EXPECT_CU(d->cuStreamBeginCapture(stream_, CuCaptureMode::kRelaxed));
    for (const Op& op : step.ops()) {
      (void)*marks_->mark(stream_, 0);
      queue(op, step, memory);
      if (op.kind != Op::kFill) {
        uses_.push_back({memory[op.a].address, false});
        if (op.kind == Op::kJoin) uses_.push_back({memory[op.b].address, false});
      }
      uses_.push_back({memory[op.to].address, true});
      const std::uint32_t count = op.kind == Op::kJoin ? 3 : op.kind == Op::kCopy ? 2 : 1;
      works_.push_back({*marks_->mark(stream_, 0), count});
    }
    return end_capture(stream_);
  }
  void queue(const Op& op, const TrainingStep& step, const std::vector<CaptureAllocation>& memory) {
    CuDevicePtr a = memory[op.a].address, b = memory[op.b].address, to = memory[op.to].address;
    std::uint64_t a_words = step.words(op.a), b_words = step.words(op.b), words = step.words(op.to);
    if (op.kind == Op::kJoin) {
      EXPECT_CU(SimTest::launch(join_, stream_, {&a, &a_words, &b, &b_words, &to, &words}));
    } else if (op.kind == Op::kCopy) {
      EXPECT_CU(d->cuMemcpyDtoDAsync(to, a, step.bytes(op.to), stream_));
    } else {
      EXPECT_CU(d->cuMemsetD32Async(to, 7, words, stream_));
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<DeviceCode> code_;
  CuFunction join_ = nullptr;
  CuStream stream_ = nullptr;
  std::optional<CaptureMarks> marks_;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
};

TEST_F(FreshResultsTest, LaunchesAtNewAddressesOverPoisonAnswerWhatTheStepDoes) {
  std::uint64_t smaller = 0, side_by_side = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    make(seed);
    const TrainingStep step(seed);
    How how{.has_device_code = seed % 3 != 0, .lanes = static_cast<std::uint32_t>(1 + seed % 4)};
    how.least_part_bytes = seed % 2 ? 512 : kLeastPartBytes;
    const auto recording = record(step, how);
    ASSERT_TRUE(recording);
    how.is_fresh = false;
    const auto without = record(step, how);
    ASSERT_TRUE(without);
    ASSERT_LE(recording->arena().size_bytes, without->arena().size_bytes);
    smaller += 3 * recording->arena().size_bytes < 2 * without->arena().size_bytes;
    side_by_side += recording->step_counts().lanes > 1;
    for (CudaExec* const exec : executables_of(*recording)) {
      for (int round = 0; round < 3; ++round) {
        ASSERT_NO_FATAL_FAILURE(expect_results(*recording, *exec, step));
      }
    }
  }
  EXPECT_GT(smaller, 20u);
  EXPECT_GT(side_by_side, 30u);
}

TEST_F(FreshResultsTest, StretchesInTurnAnswerWhatTheStepDoesWhereverItIsCut) {
  std::uint64_t passed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    make(seed);
    const TrainingStep step(seed);
    const How how{.has_device_code = seed % 3 != 0,
                  .lanes = static_cast<std::uint32_t>(1 + seed % 4)};
    const auto found = discover_step(step, how);
    ASSERT_TRUE(found.ok()) << found.error().message();
    const auto nodes = static_cast<std::uint32_t>(found->step.image.nodes.size());
    const auto some = static_cast<std::uint32_t>(1 + seed % 7);
    std::vector<std::shared_ptr<CudaRecording>> stretches;
    for (std::uint32_t begin = 0; begin < nodes; begin += some * 5) {
      const std::uint32_t end = std::min(begin + some * 5, nodes);
      stretches.push_back(record(take_stretch(*found, begin, end), how));
      ASSERT_TRUE(stretches.back());
      ASSERT_EQ(stretches.back()->node_count(), end - begin);
      passed += std::ranges::count_if(tensors_of(*stretches.back()), [&](std::uint32_t tensor) {
        return step.kinds()[tensor] == UnitKind::kTemporary;
      });
    }
    for (int round = 0; round < 3; ++round) {
      ASSERT_NO_FATAL_FAILURE(expect_results(stretches, step));
    }
  }
  EXPECT_GT(passed, 100u);
}

// The driver's copies mean an allocation, and a temporary's is that of the result which it lies in.
TEST_F(FreshResultsTest, MemoryOfResultsThatWasMadeAgainAtItsAddressIsSetAnew) {
  make(1);
  const TrainingStep step(3);
  const auto recording = record(step, {.has_device_code = false});
  ASSERT_TRUE(recording);
  ASSERT_TRUE(std::ranges::any_of(recording->sites(), [&](const PlacedSite& site) {
    const bool is_kernel = recording->image().nodes[site.node].type == CuNodeType::kKernel;
    return !is_kernel && site.source < recording->slots().size() && site.shift != 0;
  })) << "no copy of the driver's uses what lies in a result";
  sim->reuse_addresses();
  for (int round = 0; round < 4; ++round) {
    ASSERT_NO_FATAL_FAILURE(expect_results(*recording, *recording->executables()[0], step));
  }
}

TEST_F(FreshResultsTest, ResultsThatPromiseLessAlignmentThanTheArenaHoldNothingElse) {
  make(1);
  const TrainingStep step(1);
  const auto recording = record(step, {.misaligned = 256}),
             without = record(step, {.is_fresh = false, .misaligned = 256});
  ASSERT_TRUE(recording && without);
  EXPECT_EQ(recording->slots()[1].alignment, 256u);
  EXPECT_EQ(recording->arena().offsets, without->arena().offsets);
  ASSERT_NO_FATAL_FAILURE(expect_results(*recording, *recording->executables()[0], step));
}

TEST_F(FreshResultsTest, SlotsAreThoseOfAStepWithoutFreshResults) {
  make(1);
  const TrainingStep step(1);
  const auto recording = record(step, {}), without = record(step, {.is_fresh = false});
  ASSERT_TRUE(recording && without);
  ASSERT_EQ(recording->slots().size(), without->slots().size());
  for (std::size_t i = 0; i < recording->slots().size(); ++i) {
    EXPECT_EQ(recording->slots()[i].unit, without->slots()[i].unit);
    EXPECT_EQ(recording->slots()[i].bytes, without->slots()[i].bytes);
    EXPECT_EQ(recording->slots()[i].alignment, without->slots()[i].alignment);
  }
}

}  // namespace
}  // namespace anabranch::cuda
