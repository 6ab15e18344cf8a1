// SPDX-License-Identifier: Apache-2.0
// Random steps over streams whose kernels find their memory in tables, recorded and launched: what
// comes out is what an interpreter gets, so no temporary lies where a table still needs another.
// Nor where what was noted of some kernels lets them leave their order.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"

namespace anabranch::cuda {
namespace {

constexpr std::size_t kGivenCells = 4, kCells = 40, kTables = 3, kStreams = 3, kSteps = 60;
constexpr std::uint64_t kBytes = 256;

// cell[to[i]] = cell[from[i]] + 1, in turn: by parameters, or by what the table holds. A step that
// only writes a table says what it holds.
struct Step {
  enum Kind : std::uint8_t { kAdd, kWriteTable, kReadTable } kind = kAdd;
  std::size_t stream = 0, table = 0;
  std::vector<std::size_t> from, to;
};

class RandomSteps {
 public:
  explicit RandomSteps(std::uint64_t seed) : random_(seed) {
    while (steps_.size() < kSteps) add_step();
    // What is left of the temporaries shows in the given cells.
    for (std::size_t i = 0; i < kGivenCells; ++i) {
      steps_.push_back({Step::kAdd, i % kStreams, 0, {pick(written_)}, {i}});
    }
  }
  const std::vector<Step>& steps() const { return steps_; }

  static std::vector<std::uint32_t> interpret(const std::vector<Step>& steps,
                                              std::vector<std::uint32_t> cells) {
    cells.resize(kCells);
    for (const Step& step : steps) {
      for (std::size_t i = 0; step.kind != Step::kWriteTable && i < step.from.size(); ++i) {
        cells[step.to[i]] = cells[step.from[i]] + 1;
      }
    }
    cells.resize(kGivenCells);
    return cells;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }
  std::size_t pick(const std::vector<std::size_t>& from) { return from[below(from.size())]; }
  // Temporaries come in turn, so that each lives for a part of the step.
  std::size_t cell_to_write() {
    if (below(8) == 0) return below(kGivenCells);
    const std::size_t window = steps_.size() * (kCells - kGivenCells - 8) / kSteps;
    return kGivenCells + window + below(8);
  }
  std::size_t cell_to_read() {
    const std::size_t recent = std::min<std::size_t>(written_.size(), 6);
    return written_[written_.size() - 1 - below(recent)];
  }

  void add_step() {
    Step step;
    step.stream = below(kStreams);
    step.table = below(kTables);
    auto& table = tables_[step.table];
    const std::size_t kind = below(4);
    if (table && kind != 0) {
      step.kind = Step::kReadTable;
      step.from = table->from;
      step.to = table->to;
      if (kind == 1) table.reset();
    } else {
      step.kind = kind == 0 ? Step::kAdd : Step::kWriteTable;
      const std::size_t count = step.kind == Step::kAdd ? 1 : 1 + below(3);
      for (std::size_t i = 0; i < count; ++i) {
        step.from.push_back(cell_to_read());
        step.to.push_back(cell_to_write());
      }
      if (step.kind == Step::kWriteTable) table = step;
    }
    if (step.kind != Step::kWriteTable) {
      written_.insert(written_.end(), step.to.begin(), step.to.end());
    }
    steps_.push_back(std::move(step));
  }

  std::mt19937_64 random_;
  std::vector<Step> steps_;
  std::vector<std::size_t> written_{0, 1, 2, 3};
  std::optional<Step> tables_[kTables];
};

class TableRandomTest : public sim::SimTest {
 protected:
  void make(std::uint64_t seed) {
    code_.reset();
    start({.seed = seed, .jitter_ns = 3000});
    code_ = *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    foreach_ = load({.name = "foreach",
                     .params = sim::layout_of({8, 8}),
                     .run = [](const sim::KernelCall& call) {
                       const auto count = call.param<std::uint64_t>(8);
                       const auto* table =
                           call.memory<CuDevicePtr>(call.param<CuDevicePtr>(0), 2 * count);
                       for (std::uint64_t i = 0; table && i < count; ++i) {
                         const auto* in = call.memory<std::uint32_t>(table[2 * i], 1);
                         auto* out = call.memory<std::uint32_t>(table[2 * i + 1], 1);
                         if (in && out) *out = *in + 1;
                       }
                     }});
    add_ = load("add_one");
    for (CuStream& made : streams_) made = stream();
  }

  std::shared_ptr<CudaRecording> record(const std::vector<Step>& steps, std::uint32_t lanes) {
    CuGraph graphs[2] = {};
    std::vector<CaptureAllocation> memory[2];
    GraphImage images[2];
    std::vector<std::uint64_t*> pinned;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      void* made = nullptr;
      EXPECT_CU(d->cuMemHostAlloc(&made, kBytes, 0));
      pinned.push_back(static_cast<std::uint64_t*>(made));
    }
    CaptureMarks marks(*d);
    works_.clear();
    uses_.clear();
    for (int c = 0; c < 2; ++c) {
      for (std::size_t i = 0; i < kCells + kTables; ++i) {
        memory[c].push_back({allocate(kBytes), kBytes});
      }
      marks_ = c == 0 ? &marks : nullptr;
      graphs[c] = capture(steps, memory[c], pinned);
      images[c] = *read_graph(*d, graphs[c]);
      for (const CaptureAllocation& made : memory[c]) EXPECT_CU(d->cuMemFree(made.address));
    }
    std::vector<UnitKind> kinds(kCells + kTables, UnitKind::kTemporary);
    std::fill_n(kinds.begin(), kGivenCells, UnitKind::kGiven);
    CudaRecordOptions options;
    options.device_code = code_.get();
    options.lanes = lanes;
    const Notes notes{&marks, kCells + kTables, works_, uses_};
    auto made = record_captures(*d, {graphs[0], memory[0], &images[0], &notes},
                                {graphs[1], memory[1], &images[1]}, kinds, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }

  std::vector<std::uint32_t> launch_at_new_places(const CudaRecording& recording, CudaExec& exec) {
    std::vector<std::uint64_t> at(recording.slots().size());
    for (std::size_t i = 0; i < at.size(); ++i) at[i] = allocate(kBytes);
    for (std::uint32_t i = 0; i < at.size(); ++i) put(at[i], 1000 * i);
    const CuDevicePtr block = allocate(recording.arena().size_bytes + 512);
    at.push_back((block + 511) / 512 * 512);
    EXPECT_TRUE(exec.set_addresses(at).ok());
    EXPECT_TRUE(exec.launch(streams_[0]).ok());
    EXPECT_CU(d->cuStreamSynchronize(streams_[0]));
    std::vector<std::uint32_t> words;
    for (std::size_t i = 0; i + 1 < at.size(); ++i) words.push_back(get(at[i]));
    return words;
  }

 private:
  CuGraph capture(const std::vector<Step>& steps, const std::vector<CaptureAllocation>& memory,
                  const std::vector<std::uint64_t*>& pinned) {
    last_.assign(kCells + kTables, {});
    EXPECT_CU(d->cuStreamBeginCapture(streams_[0], CuCaptureMode::kRelaxed));
    for (std::size_t i = 1; i < kStreams; ++i) order_streams(0, i);
    for (std::size_t i = 0; i < steps.size(); ++i) queue(steps[i], memory, pinned[i]);
    for (std::size_t i = 1; i < kStreams; ++i) order_streams(i, 0);
    return end_capture(streams_[0]);
  }
  void queue(const Step& step, const std::vector<CaptureAllocation>& memory,
             std::uint64_t* pinned) {
    const CuStream on = streams_[step.stream];
    const auto touched = cells_of(step);
    wait_for(touched, step.stream);
    CuDevicePtr table = memory[kCells + step.table].address;
    std::uint64_t count = step.from.size();
    if (step.kind == Step::kAdd) {
      CuDevicePtr in = memory[step.from[0]].address, out = memory[step.to[0]].address;
      std::uint32_t words = 1;
      if (marks_) (void)*marks_->mark(streams_[0], 0);
      EXPECT_CU(launch(add_, on, {&in, &out, &words}));
      if (marks_ && step.from[0] % 4 != 0) {
        works_.push_back({*marks_->mark(streams_[0], 0), 2, false});
        uses_.insert(uses_.end(), {{in, false}, {out, true}});
      }
    } else if (step.kind == Step::kReadTable) {
      EXPECT_CU(launch(foreach_, on, {&table, &count}));
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        pinned[2 * i] = memory[step.from[i]].address;
        pinned[2 * i + 1] = memory[step.to[i]].address;
      }
      EXPECT_CU(d->cuMemcpyHtoDAsync(table, pinned, 16 * count, on));
    }
    mark(touched, step.stream);
  }
  // Writing a table touches the table alone.
  static std::vector<std::size_t> cells_of(const Step& step) {
    std::vector<std::size_t> cells;
    if (step.kind != Step::kAdd) cells.push_back(kCells + step.table);
    if (step.kind == Step::kWriteTable) return cells;
    cells.insert(cells.end(), step.from.begin(), step.from.end());
    cells.insert(cells.end(), step.to.begin(), step.to.end());
    return cells;
  }
  void wait_for(const std::vector<std::size_t>& cells, std::size_t stream) {
    for (const std::size_t cell : cells) {
      for (const auto& [where, done] : last_[cell]) {
        if (where == stream) continue;
        EXPECT_CU(d->cuStreamWaitEvent(streams_[stream], done, 0));
      }
    }
  }
  void mark(const std::vector<std::size_t>& cells, std::size_t stream) {
    const CuEvent done = event(kEventDisableTiming);
    EXPECT_CU(d->cuEventRecord(done, streams_[stream]));
    for (const std::size_t cell : cells) last_[cell][stream] = done;
  }
  void order_streams(std::size_t from, std::size_t to) {
    const CuEvent done = event(kEventDisableTiming);
    EXPECT_CU(d->cuEventRecord(done, streams_[from]));
    EXPECT_CU(d->cuStreamWaitEvent(streams_[to], done, 0));
  }

  std::unique_ptr<DeviceCode> code_;
  CaptureMarks* marks_ = nullptr;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
  CuFunction foreach_ = nullptr, add_ = nullptr;
  CuStream streams_[kStreams] = {};
  std::vector<std::map<std::size_t, CuEvent>> last_;  // by cell and stream
};

TEST_F(TableRandomTest, LaunchesDoWhatTheStepSays) {
  std::uint64_t shared_bytes = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    make(seed);
    const RandomSteps random(seed);
    const auto lanes = static_cast<std::uint32_t>(1 + seed % 4);
    const auto recording = record(random.steps(), lanes);
    ASSERT_TRUE(recording) << "seed " << seed;
    ASSERT_EQ(recording->slots().size(), kGivenCells);
    shared_bytes += recording->arena().naive_bytes - recording->arena().size_bytes;
    const auto expected = RandomSteps::interpret(random.steps(), {0, 1000, 2000, 3000});
    for (CudaExec* exec : {recording->executables()[0].get(), recording->updating()[0].get()}) {
      for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(launch_at_new_places(*recording, *exec), expected) << "seed " << seed;
      }
    }
    ASSERT_THAT(sim->violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
  EXPECT_GT(shared_bytes, 150u * 8 * 512);  // or nothing would have been tried
}

}  // namespace
}  // namespace anabranch::cuda
