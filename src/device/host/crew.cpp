// SPDX-License-Identifier: Apache-2.0
#include "device/host/crew.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstring>

namespace anabranch::host {
namespace {

std::atomic<std::uint32_t> generation{1};

void count_fork() { generation.fetch_add(1, std::memory_order_relaxed); }

// Workers leave the process's signals to its other threads, whose handlers may belong to an
// interpreter.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

std::uint32_t process_generation() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

Crew::Crew(std::uint32_t max_workers, const DeviceOptions& options)
    : options_(options), workers_(std::make_unique<Worker[]>(max_workers)) {}

Crew::~Crew() {
  if (generation_ != process_generation()) return;
  const std::uint32_t size = this->size();
  job_ = {};
  for (std::uint32_t i = 0; i < size; ++i) workers_[i].started.publish(++workers_[i].jobs);
  for (std::uint32_t i = 0; i < size; ++i) pthread_join(workers_[i].thread, nullptr);
}

Status Crew::grow(std::uint32_t workers) {
  const SignalsBlocked blocked;
  for (std::uint32_t i = size(); i < workers; ++i) {
    Worker& worker = workers_[i];
    worker.crew = this;
    worker.index = i;
    if (const int error = start_thread(worker)) {
      return Status(StatusCode::kRecordFailed,
                    fmt::format("record: worker thread {} of {} could not be started ({}). Free "
                                "some threads, or allow fewer lanes (HostOptions::max_lanes).",
                                i + 1, workers, std::strerror(error)));
    }
    size_.store(i + 1, std::memory_order_release);
  }
  return {};
}

int Crew::start_thread(Worker& worker) {
  const int error = pthread_create(&worker.thread, nullptr, run_thread, &worker);
  if (!error) {
    // Linux allows 15 characters.
    pthread_setname_np(worker.thread, fmt::format("anabranch {}", worker.index + 1).c_str());
  }
  return error;
}

void* Crew::run_thread(void* worker) {
  auto* self = static_cast<Worker*>(worker);
  self->crew->work(*self);
  return nullptr;
}

void Crew::work(Worker& worker) {
  std::uint32_t ignored = 0;
  if (options_.threads.prepare) options_.threads.prepare(&ignored);
  int threads = 0;
  for (std::uint32_t number = 1;; ++number) {
    worker.started.wait(number, options_.spin_ns);
    if (!job_.run) return;
    if (job_.threads_each != 0) set_threads(job_.threads_each, threads);
    job_.run(job_.context, worker.index);
    worker.ended.publish(number);
  }
}

void Crew::set_threads(int threads, int& current) const noexcept {
  if (threads == current) return;
  if (options_.threads.set_openmp) options_.threads.set_openmp(threads);
  if (options_.threads.set_mkl_local) options_.threads.set_mkl_local(threads);
  current = threads;
}

void Crew::start(const Job& job, std::uint32_t workers) noexcept {
  job_ = job;
  job_workers_ = workers;
  for (std::uint32_t i = 0; i < workers; ++i) workers_[i].started.publish(++workers_[i].jobs);
}

void Crew::wait() noexcept {
  for (std::uint32_t i = 0; i < job_workers_; ++i) {
    workers_[i].ended.wait(workers_[i].jobs, options_.spin_ns);
  }
}

}  // namespace anabranch::host
