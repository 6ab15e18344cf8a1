// SPDX-License-Identifier: Apache-2.0
#include "device/host/crew.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace anabranch::host {
namespace {

constexpr std::uint32_t kWorkers = 3;

struct Seen {
  std::array<int, kWorkers> runs{};
  static void run(void* self, std::uint32_t worker) noexcept {
    ++static_cast<Seen*>(self)->runs[worker];
  }
};

DeviceOptions with_spin(std::uint64_t spin_ns) {
  DeviceOptions options;
  options.spin_ns = spin_ns;
  return options;
}

TEST(Crew, RunsEachJobOnceOnEachWorkerAskedFor) {
  for (const std::uint64_t spin_ns : {0, 1'000, 50'000}) {
    Crew crew(kWorkers, with_spin(spin_ns));
    ASSERT_TRUE(crew.grow(kWorkers).ok());
    Seen seen;
    for (int job = 0; job < 200; ++job) {
      crew.start({Seen::run, &seen, 0}, kWorkers);
      crew.wait();
      crew.start({Seen::run, &seen, 0}, 1);
      crew.wait();
    }
    EXPECT_EQ(seen.runs, (std::array<int, kWorkers>{400, 200, 200}));
  }
}

TEST(Crew, GrowsWhileItsFirstWorkersRun) {
  Crew crew(kWorkers, {});
  ASSERT_TRUE(crew.grow(1).ok());
  Seen seen;
  crew.start({Seen::run, &seen, 0}, 1);
  ASSERT_TRUE(crew.grow(kWorkers).ok());
  crew.wait();
  EXPECT_EQ(crew.size(), kWorkers);
  crew.start({Seen::run, &seen, 0}, kWorkers);
  crew.wait();
  EXPECT_EQ(seen.runs, (std::array<int, kWorkers>{2, 1, 1}));
}

TEST(Crew, IsLeasedOnceUntilReleased) {
  Crew crew(kWorkers, {});
  EXPECT_TRUE(crew.try_lease());
  EXPECT_FALSE(crew.try_lease());
  crew.release();
  EXPECT_TRUE(crew.try_lease());
}

std::atomic<int> prepared{0}, openmp_calls{0}, mkl_calls{0};
std::atomic<int> openmp_threads{0}, mkl_threads{0};

ThreadControl counting_control() {
  prepared = openmp_calls = mkl_calls = 0;
  ThreadControl control;
  control.prepare = [](std::uint32_t*) { return std::int32_t{++prepared * 0}; };
  control.set_openmp = [](int threads) {
    ++openmp_calls;
    openmp_threads = threads;
  };
  control.set_mkl_local = [](int threads) {
    ++mkl_calls;
    mkl_threads = threads;
    return 0;
  };
  return control;
}

TEST(Crew, TellsAWorkerItsShareOfThreadsOnlyWhenItChanged) {
  DeviceOptions options;
  options.threads = counting_control();
  Crew crew(kWorkers, options);
  ASSERT_TRUE(crew.grow(1).ok());
  Seen seen;
  for (const int threads : {0, 2, 2, 0, 2, 3}) {
    crew.start({Seen::run, &seen, threads}, 1);
    crew.wait();
  }
  EXPECT_EQ(prepared, 1);
  EXPECT_EQ(openmp_calls, 2);
  EXPECT_EQ(mkl_calls, 2);
  EXPECT_EQ(openmp_threads, 3);
  EXPECT_EQ(mkl_threads, 3);
}

TEST(Crew, WorkersLeaveSignalsToOtherThreads) {
  Crew crew(kWorkers, {});
  ASSERT_TRUE(crew.grow(1).ok());
  sigset_t blocked;
  sigemptyset(&blocked);
  const auto read_mask = [](void* set, std::uint32_t) noexcept {
    pthread_sigmask(SIG_BLOCK, nullptr, static_cast<sigset_t*>(set));
  };
  crew.start({read_mask, &blocked, 0}, 1);
  crew.wait();
  EXPECT_TRUE(sigismember(&blocked, SIGINT));
  EXPECT_TRUE(sigismember(&blocked, SIGALRM));
  sigset_t ours;
  pthread_sigmask(SIG_BLOCK, nullptr, &ours);
  EXPECT_FALSE(sigismember(&ours, SIGINT));
}

TEST(Crew, ChildOfAForkHasAnotherGenerationAndJoinsNobody) {
  const std::uint32_t here = process_generation();
  auto* crew = new Crew(kWorkers, {});
  ASSERT_TRUE(crew->grow(kWorkers).ok());
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    delete crew;
    _exit(process_generation() == here ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(process_generation(), here);
  delete crew;
}

}  // namespace
}  // namespace anabranch::host
