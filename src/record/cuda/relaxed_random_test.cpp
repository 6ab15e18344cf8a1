// SPDX-License-Identifier: Apache-2.0
// Random steps on one stream, whose allocator gives addresses out again, noted while they are
// captured: recorded on several lanes they do what they say, whatever ends first. So do steps over
// two streams, and what they lack is found; and steps of which some kernels start early, and end
// before those ahead of them. What is left at the end is a result, in whose memory temporaries may
// lie before.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"
#include "record/cuda/exec/timed_exec.h"

namespace anabranch::cuda {
namespace {

constexpr std::size_t kGiven = 4, kSteps = 50;
constexpr std::size_t kHostWords = 3;  // pinned, that all steps share
constexpr std::uint64_t kBytes = 256;

// Kernels are taken for as long as their memory is large.
std::uint64_t bytes_of_place(std::size_t place) { return kBytes + 4096 * (place * 7 % 16); }

// Tensors are numbered by their allocations: the given ones, then those of the capture.
struct Step {
  enum Kind : std::uint8_t {
    kAllocate,
    kAdd,       // to = a + 1
    kMix,       // to = a + b by way of scratch
    kEach,      // to = a + 1, then also = b + 1
    kFromHost,  // to = host
    kToHost,    // host = a
    kCopy,      // to = a
    kFill       // to = 0
  } kind = kAdd;
  bool is_noted = false, independent = false, in_turn = false;
  std::size_t a = 0, b = 0, to = 0, also = 0, host = 0;
  std::size_t left = 0;   // over in the parameters of kEach, which does nothing with it
  std::size_t place = 0;  // of what is allocated: where others may have been
};

// What a step does, and what the allocator does meanwhile: it takes the place freed last.
class RandomSteps {
 public:
  explicit RandomSteps(std::uint64_t seed) : random_(seed) {
    scratch_ = allocate();
    while (steps_.size() < kSteps) add_step();
    for (std::size_t i = 0; i < kGiven; ++i) {  // what is left shows in the given ones
      steps_.push_back({.kind = Step::kAdd, .is_noted = below(2) == 0, .a = pick(), .to = i});
    }
  }
  const std::vector<Step>& steps() const { return steps_; }
  std::size_t tensors() const { return places_.size(); }
  std::size_t place_count() const { return place_count_; }
  std::size_t place(std::size_t tensor) const { return places_[tensor]; }
  std::size_t scratch() const { return scratch_; }
  // Tensors of the step's own that nobody has freed.
  std::vector<std::size_t> results() const { return {live_.begin() + kGiven, live_.end()}; }

  // Of the given tensors, of the host's words behind them, and of the results.
  std::vector<std::uint32_t> interpret(std::vector<std::uint32_t> values,
                                       std::array<std::uint32_t, kHostWords> host) const {
    values.resize(tensors());
    for (const Step& step : steps_) {
      if (step.kind == Step::kAdd) values[step.to] = values[step.a] + 1;
      if (step.kind == Step::kMix) values[step.to] = values[step.a] + values[step.b];
      if (step.kind == Step::kEach) {
        values[step.to] = values[step.a] + 1;
        values[step.also] = values[step.b] + 1;
      }
      if (step.kind == Step::kFromHost) values[step.to] = host[step.host];
      if (step.kind == Step::kToHost) host[step.host] = values[step.a];
      if (step.kind == Step::kCopy) values[step.to] = values[step.a];
      if (step.kind == Step::kFill) values[step.to] = 0;
    }
    std::vector<std::uint32_t> left(values.begin(), values.begin() + kGiven);
    left.insert(left.end(), host.begin(), host.end());
    for (const std::size_t result : results()) left.push_back(values[result]);
    return left;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }
  std::size_t pick() {
    return live_[live_.size() - 1 - below(std::min<std::size_t>(live_.size(), 7))];
  }

  std::size_t allocate() {
    std::size_t place = place_count_;
    if (free_.empty()) {
      ++place_count_;
    } else {
      place = free_.back();
      free_.pop_back();
    }
    places_.push_back(place);
    steps_.push_back({.kind = Step::kAllocate, .place = place});
    return places_.size() - 1;
  }

  void add_step() {
    Step step;
    step.kind = std::array{
        Step::kAdd,  Step::kAdd,      Step::kMix,    Step::kMix,  Step::kEach,
        Step::kEach, Step::kFromHost, Step::kToHost, Step::kCopy, Step::kFill}[below(10)];
    step.host = below(kHostWords);
    step.is_noted = below(6) != 0;
    step.independent = below(3) != 0;
    step.in_turn = below(4) == 0;
    step.a = pick();
    step.b = pick();
    step.left = pick();
    const bool is_fresh = step.kind != Step::kToHost && below(3) != 0;
    step.to = is_fresh ? allocate() : pick();
    step.also = below(2) == 0 ? step.to : pick();
    steps_.push_back(step);
    if (is_fresh) live_.push_back(step.to);
    if (below(2) == 0 && live_.size() > kGiven + 3) {
      const std::size_t gone = kGiven + below(live_.size() - kGiven);
      free_.push_back(places_[live_[gone]]);
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(gone));
    }
  }

  std::mt19937_64 random_;
  std::vector<Step> steps_;
  std::vector<std::size_t> places_{0, 1, 2, 3};  // by tensor
  std::size_t place_count_ = kGiven, scratch_ = 0;
  std::vector<std::size_t> live_{0, 1, 2, 3}, free_;
};

// Places that a step uses, and whether it writes there. Host memory is behind all of the device's.
using Places = std::vector<std::pair<std::size_t, bool>>;

Places places_of(const RandomSteps& random, const Step& step) {
  constexpr std::size_t kHost = 1 << 20;
  const bool to_host = step.kind == Step::kToHost, from_host = step.kind == Step::kFromHost;
  Places places;
  places.push_back({to_host ? kHost + step.host : random.place(step.to), true});
  if (from_host) places.push_back({kHost + step.host, false});
  if (step.kind != Step::kFill && !from_host) places.push_back({random.place(step.a), false});
  if (step.kind == Step::kMix || step.kind == Step::kEach) {
    places.push_back({random.place(step.b), false});
  }
  if (step.kind == Step::kMix) places.push_back({random.place(random.scratch()), true});
  if (step.kind == Step::kEach) places.push_back({random.place(step.also), true});
  return places;
}

// Which kernels start early, as a seed says, and which of these never wait for the one ahead. None
// shares a place, one of the two writing, with a kernel that may run when it does.
class EarlyLaunches {
 public:
  enum How : std::uint8_t { kBehind, kWaiting, kHasty };
  explicit EarlyLaunches(std::uint64_t seed) : random_(seed), is_on_(seed != 0) {}

  How next(const Step& step, const Places& places) {
    const How how = choose(step, places);
    if (how == kBehind) begun_.clear(), running_.clear();
    if (how == kHasty) running_ = begun_;
    const bool is_kernel =
        step.kind == Step::kAdd || step.kind == Step::kMix || step.kind == Step::kEach;
    ahead_ = is_kernel ? places : Places{};
    begun_.insert(begun_.end(), ahead_.begin(), ahead_.end());
    return how;
  }

 private:
  How choose(const Step& step, const Places& places) {
    if (!is_on_ || step.kind != Step::kAdd || ahead_.empty() || random_() % 2) return kBehind;
    if (!clash(begun_, places) && random_() % 3) return kHasty;
    return clash(running_, places) ? kBehind : kWaiting;
  }
  static bool clash(const Places& a, const Places& b) {
    return std::ranges::any_of(a, [&](const auto& one) {
      return std::ranges::any_of(b, [&](const auto& other) {
        return one.first == other.first && (one.second || other.second);
      });
    });
  }

  std::mt19937_64 random_;
  const bool is_on_;
  Places ahead_;    // of the last step, if that is a kernel
  Places begun_;    // of that and of all that may run beside it
  Places running_;  // of all that may still run when it has ended
};

// The waits that steps need which are queued on two streams by turns that a seed takes: each comes
// behind those on the other stream that use the same place, one of the two writing.
class TwoStreams {
 public:
  explicit TwoStreams(std::uint64_t seed) : random_(seed) {}
  int next_stream() { return static_cast<int>(random_() % 2); }

  // Whether a step that uses these places there has to wait for the other stream.
  bool has_to_wait(int stream, const Places& places) {
    ++now_;
    bool waits = false;
    for (const auto& [place, writes] : places) {
      const Used& other = used_[1 - stream][place];
      waits |= other.written > seen_[stream] || (writes && other.read > seen_[stream]);
    }
    if (waits) seen_[stream] = now_;
    for (const auto& [place, writes] : places) {
      Used& own = used_[stream][place];
      (writes ? own.written : own.read) = now_;
    }
    return waits;
  }

 private:
  struct Used {
    std::uint64_t read = 0, written = 0;
  };
  std::mt19937_64 random_;
  std::uint64_t now_ = 0, seen_[2] = {};
  std::map<std::size_t, Used> used_[2];  // by place
};

class RelaxedRandomTest : public sim::SimTest {
 protected:
  static constexpr int kNone = -1;
  // Of steps on two streams: who takes turns, and which of their waits is left out.
  struct Branches {
    std::uint64_t seed = 0;
    int without = kNone;
  };

  void make(std::uint64_t seed) {
    code_.reset();
    start({.seed = seed, .jitter_ns = 3000});
    code_ = *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    mix_ = load({.name = "mix",
                 .params = sim::layout_of({8, 8, 8, 8}),
                 .run = [](const sim::KernelCall& call) {
                   const auto at = [&](std::uint32_t offset) {
                     return call.memory<std::uint32_t>(call.param<CuDevicePtr>(offset), 1);
                   };
                   auto *a = at(0), *b = at(8), *scratch = at(16), *to = at(24);
                   if (!a || !b || !scratch || !to) return;
                   *scratch = *a;
                   *to = *scratch + *b;
                 }});
    add_ = load("add_one");
    sim::Kernel hasty = sim::add_one_kernel();
    hasty.name = "hasty";
    hasty.waits = false;
    hasty_ = load(hasty);
    each_ = load({.name = "each",
                  .params = sim::layout_of({8, 8, 8}),
                  .run = [](const sim::KernelCall& call) {
                    const auto* from =
                        call.memory<const std::uint32_t>(call.param<CuDevicePtr>(0), 1);
                    auto* to = call.memory<std::uint32_t>(call.param<CuDevicePtr>(8), 1);
                    if (from && to) *to = *from + 1;
                  }});
    void* pinned = nullptr;
    EXPECT_CU(d->cuMemHostAlloc(&pinned, kHostWords * sizeof(std::uint32_t), 0));
    host_ = static_cast<std::uint32_t*>(pinned);
    std::fill_n(host_, kHostWords, 7);
    stream_ = stream();
    side_ = stream();
  }

  std::shared_ptr<CudaRecording> record(const RandomSteps& random, std::uint32_t lanes,
                                        bool of_second) {
    auto made = try_record(random, lanes, of_second);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }

  Result<std::shared_ptr<CudaRecording>> try_record(const RandomSteps& random, std::uint32_t lanes,
                                                    bool of_second,
                                                    const Branches* branches = nullptr) {
    const auto discovery = try_discover(random, of_second, branches);
    if (!discovery.ok()) return discovery.error();
    return make_recording(*d, *discovery, options_for(random, lanes));
  }

  CudaRecordOptions options_for(const RandomSteps& random, std::uint32_t lanes) const {
    CudaRecordOptions options;
    options.device_code = code_.get();
    options.lanes = lanes;
    options.ahead_bytes = 4 * (random.tensors() % 5);
    if (random.tensors() % 3 == 0) options.parallel_bytes = kBytes * (random.tensors() % 64);
    return options;
  }

  Result<Discovery> try_discover(const RandomSteps& random, bool of_second,
                                 const Branches* branches = nullptr) {
    CuGraph graphs[2] = {};
    std::vector<CaptureAllocation> memory[2];
    GraphImage images[2];
    CaptureMarks marks(*d);
    works_.clear();
    uses_.clear();
    for (int c = 0; c < 2; ++c) {
      std::vector<CuDevicePtr> places;
      for (std::size_t i = 0; i < random.place_count(); ++i) {
        places.push_back(allocate(bytes_of_place(i) + 512));
      }
      for (std::size_t i = 0; i < random.tensors(); ++i) {
        const CuDevicePtr place = (places[random.place(i)] + 511) / 512 * 512;
        memory[c].push_back({place, bytes_of_place(random.place(i))});
      }
      graphs[c] = capture(random, memory[c], (c == 1) == of_second ? &marks : nullptr, branches);
      images[c] = *read_graph(*d, graphs[c]);
      for (const CuDevicePtr place : places) EXPECT_CU(d->cuMemFree(place));
    }
    std::vector<UnitKind> kinds(random.tensors(), UnitKind::kTemporary);
    std::fill_n(kinds.begin(), kGiven, UnitKind::kGiven);
    for (const std::size_t result : random.results()) kinds[result] = UnitKind::kFresh;
    const Notes notes{&marks, kGiven, works_, uses_};
    return discover(*d, {graphs[0], memory[0], &images[0], of_second ? nullptr : &notes},
                    {graphs[1], memory[1], &images[1], of_second ? &notes : nullptr}, kinds,
                    {.device_code = code_.get()});
  }
  int waits() const { return waits_; }        // of the latest capture, also one that was left out
  int hasty() const { return hasty_count_; }  // kernels of the latest capture that never wait

  std::vector<std::uint64_t> new_places(const CudaRecording& recording) {
    std::vector<std::uint64_t> at;
    for (const SourceRule& rule : recording.source_rules()) {
      const std::uint64_t bytes = rule.bytes() + 512;
      const CuDevicePtr block = allocate(bytes);
      EXPECT_CU(d->cuMemsetD8(block, 0xA5, bytes));
      at.push_back((block + 511) / 512 * 512);
    }
    return at;
  }
  std::vector<std::uint32_t> launch_at_new_places(const CudaRecording& recording, CudaExec& exec,
                                                  const RandomSteps& random) {
    const std::vector<std::uint64_t> at = new_places(recording);
    for (std::uint32_t i = 0; i < kGiven; ++i) put(at[i], 1000 * i);
    std::copy(kOnHost.begin(), kOnHost.end(), host_);
    EXPECT_TRUE(exec.set_addresses(at).ok());
    EXPECT_TRUE(exec.launch(stream_).ok());
    EXPECT_CU(d->cuStreamSynchronize(stream_));
    std::vector<std::uint32_t> words;
    for (std::size_t i = 0; i < kGiven; ++i) words.push_back(get(at[i]));
    words.insert(words.end(), host_, host_ + kHostWords);
    for (const std::size_t result : random.results()) {
      const auto slot = std::ranges::find(recording.slots(), result, &CudaSlot::allocation);
      words.push_back(get(at[static_cast<std::size_t>(slot - recording.slots().begin())]));
    }
    return words;
  }
  static void expect_same(const CudaRecording& a, const CudaRecording& b) {
    const auto edges_of = [](const CudaRecording& recording) {
      std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
      for (const EdgeImage& edge : recording.image().edges) edges.emplace_back(edge.from, edge.to);
      return edges;
    };
    ASSERT_EQ(edges_of(a), edges_of(b));
    ASSERT_TRUE(std::ranges::equal(a.sites(), b.sites()));
    ASSERT_EQ(a.part_bytes(), b.part_bytes());
    ASSERT_EQ(a.arena().offsets, b.arena().offsets);
  }
  static std::size_t count_early_edges(const CudaRecording& recording) {
    return static_cast<std::size_t>(std::ranges::count_if(
        recording.image().edges, [](const EdgeImage& edge) { return is_early(edge); }));
  }
  // Whether temporaries lie in a result, and one not at its beginning: others are not counted.
  static bool has_loans(const CudaRecording& recording) {
    return std::ranges::any_of(recording.sites(), [&](const PlacedSite& site) {
      return site.source < recording.slots().size() && site.shift != 0;
    });
  }
  static std::vector<std::uint32_t> expected_of(const RandomSteps& random) {
    return random.interpret({0, 1000, 2000, 3000}, kOnHost);
  }
  std::uint64_t early_seed = 0;  // of captures in which kernels start early; 0: none does

 private:
  static constexpr std::array<std::uint32_t, kHostWords> kOnHost{10'000, 20'000, 30'000};

  CuGraph capture(const RandomSteps& random, const std::vector<CaptureAllocation>& memory,
                  CaptureMarks* marks, const Branches* branches) {
    std::uint64_t allocations = 0;
    EXPECT_CU(d->cuStreamBeginCapture(stream_, CuCaptureMode::kRelaxed));
    TwoStreams turns(branches ? branches->seed : 0);
    if (branches) wait(side_, stream_);
    EarlyLaunches early(early_seed);
    waits_ = hasty_count_ = 0;
    for (const Step& step : random.steps()) {
      if (step.kind == Step::kAllocate) {
        ++allocations;
        continue;
      }
      const CuStream on = branches ? next_stream(random, step, turns, *branches) : stream_;
      const bool is_noted = marks && step.is_noted && step.kind <= Step::kToHost;
      if (is_noted) (void)*marks->mark(on, allocations);
      queue(on, step, memory, random.scratch(), early.next(step, places_of(random, step)));
      if (is_noted) note(step, memory, *marks->mark(on, allocations));
    }
    if (branches) wait(stream_, side_);
    return end_capture(stream_);
  }
  // Behind what the step needs.
  CuStream next_stream(const RandomSteps& random, const Step& step, TwoStreams& turns,
                       const Branches& branches) {
    const int turn = turns.next_stream();
    const CuStream on = turn == 0 ? stream_ : side_;
    if (turns.has_to_wait(turn, places_of(random, step)) && waits_++ != branches.without) {
      wait(on, turn == 0 ? side_ : stream_);
    }
    return on;
  }
  void wait(CuStream on, CuStream behind) {
    const CuEvent done = event();
    EXPECT_CU(d->cuEventRecord(done, behind));
    EXPECT_CU(d->cuStreamWaitEvent(on, done, 0));
  }
  void queue(CuStream on, const Step& step, const std::vector<CaptureAllocation>& memory,
             std::size_t scratch, EarlyLaunches::How how) {
    CuDevicePtr a = memory[step.a].address, b = memory[step.b].address,
                to = memory[step.to].address, also = memory[step.also].address,
                between = memory[scratch].address, left = memory[step.left].address;
    std::uint32_t words = 1;
    const auto queued = [&] {
      if (how != EarlyLaunches::kBehind) return launch_early(on, how, {&a, &to, &words});
      if (step.kind == Step::kAdd) return launch(add_, on, {&a, &to, &words});
      if (step.kind == Step::kEach) return launch(each_, on, {&a, &to, &left});
      if (step.kind == Step::kMix) return launch(mix_, on, {&a, &b, &between, &to});
      std::uint32_t* const host = host_ + step.host;
      if (step.kind == Step::kFromHost) return d->cuMemcpyHtoDAsync(to, host, sizeof words, on);
      if (step.kind == Step::kToHost) return d->cuMemcpyDtoHAsync(host, a, sizeof words, on);
      if (step.kind == Step::kCopy) return d->cuMemcpyDtoDAsync(to, a, sizeof words, on);
      return d->cuMemsetD32Async(to, 0, 1, on);
    };
    EXPECT_CU(queued());
    if (step.kind != Step::kEach) return;
    EXPECT_CU(launch(each_, on, {&b, &also, &left}));
  }
  CuResult launch_early(CuStream on, EarlyLaunches::How how, std::vector<void*> params) {
    const bool is_hasty = how == EarlyLaunches::kHasty;
    hasty_count_ += is_hasty;
    CuLaunchAttribute attribute{};
    attribute.id = CuLaunchAttributeId::kProgrammaticStreamSerialization;
    attribute.value.programmatic_stream_serialization_allowed = 1;
    const CuLaunchConfig config{1, 1, 1, 32, 1, 1, 0, on, &attribute, 1};
    return d->cuLaunchKernelEx(&config, is_hasty ? hasty_ : add_, params.data(), nullptr);
  }
  void note(const Step& step, const std::vector<CaptureAllocation>& memory, std::uint32_t mark) {
    const std::size_t before = uses_.size();
    if (step.kind != Step::kFromHost) uses_.push_back({memory[step.a].address, false});
    if (step.kind == Step::kMix || step.kind == Step::kEach) {
      uses_.push_back({memory[step.b].address, false});
    }
    if (step.kind != Step::kToHost) uses_.push_back({memory[step.to].address, true});
    if (step.kind == Step::kEach) uses_.push_back({memory[step.also].address, true});
    works_.push_back({mark, static_cast<std::uint32_t>(uses_.size() - before),
                      step.kind == Step::kMix, step.independent && step.kind == Step::kEach,
                      step.in_turn});
  }

  std::unique_ptr<DeviceCode> code_;
  CuFunction mix_ = nullptr, add_ = nullptr, each_ = nullptr, hasty_ = nullptr;
  std::uint32_t* host_ = nullptr;
  CuStream stream_ = nullptr, side_ = nullptr;
  int waits_ = 0, hasty_count_ = 0;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
};

TEST_F(RelaxedRandomTest, StepsOnTwoStreamsThatWaitAreRecordedAndDoWhatTheySay) {
  std::size_t with_branches = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    make(seed);
    const RandomSteps random(seed);
    const Branches branches{seed};
    const auto made =
        try_record(random, static_cast<std::uint32_t>(1 + seed % 4), seed % 3 == 0, &branches);
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.error().message();
    with_branches += (*made)->image().edges.size() >= (*made)->image().nodes.size();
    const auto expected = expected_of(random);
    for (CudaExec* exec : {(*made)->executables()[0].get(), (*made)->updating()[0].get()}) {
      ASSERT_EQ(launch_at_new_places(**made, *exec, random), expected) << "seed " << seed;
    }
    ASSERT_THAT(sim->violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
  EXPECT_GT(with_branches, 200u);
}

TEST_F(RelaxedRandomTest, AWaitThatIsLeftOutIsOftenFoundAndNeverPutDownToAnotherReason) {
  std::size_t found = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    make(seed);
    const RandomSteps random(seed);
    Branches branches{seed};
    ASSERT_TRUE(try_record(random, 1, false, &branches).ok());
    ASSERT_GT(waits(), 0);
    branches.without = static_cast<int>(seed % static_cast<std::uint64_t>(waits()));
    const auto made = try_record(random, 1, false, &branches);
    if (made.ok()) continue;
    ++found;
    ASSERT_EQ(made.error().code(), StatusCode::kRace) << made.error().message();
  }
  EXPECT_GT(found, 30u);
}

// Whatever was recorded from it before.
TEST_F(RelaxedRandomTest, ADiscoveryGivesEachNumberOfLanesTheSameRecordingEveryTime) {
  std::size_t on_lanes = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    make(seed);
    const RandomSteps random(seed);
    const auto discovery = try_discover(random, seed % 3 == 0);
    ASSERT_TRUE(discovery.ok()) << "seed " << seed << ": " << discovery.error().message();
    std::vector<std::shared_ptr<CudaRecording>> made;
    for (const std::uint32_t lanes : {4, 1, 4, 1}) {
      auto recording = make_recording(*d, *discovery, options_for(random, lanes));
      ASSERT_TRUE(recording.ok()) << "seed " << seed << ": " << recording.error().message();
      made.push_back(*std::move(recording));
      CudaExec& exec = *made.back()->updating()[0];
      ASSERT_EQ(launch_at_new_places(*made.back(), exec, random), expected_of(random));
    }
    on_lanes += made[0]->step_counts().lanes > 1;
    ASSERT_EQ(made[1]->step_counts().lanes, 1u);
    for (const std::size_t i : {0, 1}) ASSERT_NO_FATAL_FAILURE(expect_same(*made[i], *made[i + 2]));
    ASSERT_THAT(sim->violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
  EXPECT_GT(on_lanes, 50u);  // or nothing would have been tried
}

TEST_F(RelaxedRandomTest, LaunchesDoWhatTheStepSays) {
  std::size_t on_all_lanes = 0, shared = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    make(seed);
    const RandomSteps random(seed);
    const auto lanes = static_cast<std::uint32_t>(1 + seed % 4);
    const auto recording = record(random, lanes, seed % 3 == 0);
    ASSERT_TRUE(recording) << "seed " << seed;
    shared += has_loans(*recording);
    on_all_lanes += lanes > 1 && recording->step_counts().lanes >= lanes;
    const auto expected = expected_of(random);
    for (CudaExec* exec : {recording->executables()[0].get(), recording->updating()[0].get()}) {
      for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(launch_at_new_places(*recording, *exec, random), expected) << "seed " << seed;
      }
    }
    ASSERT_THAT(sim->violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
  EXPECT_GT(on_all_lanes, 150u);  // or nothing would have been tried
  EXPECT_GT(shared, 30u);
}

TEST_F(RelaxedRandomTest, KernelsThatStartEarlyAndNeverWaitLeaveEveryStepItsResults) {
  std::size_t early = 0, on_lanes = 0;
  int hasty_kernels = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    make(seed);
    early_seed = seed;
    const RandomSteps random(seed);
    const auto recording = record(random, static_cast<std::uint32_t>(1 + seed % 4), seed % 3 == 0);
    ASSERT_TRUE(recording) << "seed " << seed;
    early += count_early_edges(*recording);
    on_lanes += recording->step_counts().lanes > 1;
    hasty_kernels += hasty();
    const auto expected = expected_of(random);
    for (CudaExec* exec : {recording->executables()[0].get(), recording->updating()[0].get()}) {
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(launch_at_new_places(*recording, *exec, random), expected) << "seed " << seed;
      }
    }
    ASSERT_THAT(sim->violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
  EXPECT_GT(early, 500u);  // or nothing would have been tried
  EXPECT_GT(hasty_kernels, 200);
  EXPECT_GT(on_lanes, 50u);
}

// With an event behind each node, whatever the nodes are: kernels that were made again, copies with
// the host's memory, fills, tables, on all lanes.
TEST_F(RelaxedRandomTest, ATimedTwinGivesTheSameAndNoNodeBeginsBeforeWhatItWaitsFor) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    make(seed);
    early_seed = seed % 2 == 0 ? 0 : seed;
    const RandomSteps random(seed);
    const auto recording = record(random, static_cast<std::uint32_t>(1 + seed % 4), seed % 3 == 0);
    ASSERT_TRUE(recording) << "seed " << seed;
    const auto twin = TimedExec::make(*d, *recording->executables()[0], recording->image(),
                                      new_places(*recording));
    ASSERT_TRUE(twin.ok()) << twin.error().message();
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(launch_at_new_places(*recording, (*twin)->exec(), random), expected_of(random))
          << "seed " << seed;
      const auto times = (*twin)->times();
      ASSERT_TRUE(times.ok());
      for (const EdgeImage& edge : recording->image().edges) {
        const NodeTime &before = (*times)[edge.from], &node = (*times)[edge.to];
        ASSERT_GE(node.begin_ns, is_early(edge) ? before.begin_ns : before.end_ns) << seed;
      }
    }
    ASSERT_THAT(sim->violations(), ::testing::IsEmpty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace anabranch::cuda
