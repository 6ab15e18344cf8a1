// SPDX-License-Identifier: Apache-2.0
// Kernels of one's own over two streams of a GPU, recorded once as a CUDA graph and launched 10,000
// times, or as often as an argument says, at changing addresses: y = (9 x + 4) * (25 x + 6), and
// every y is checked.
//
//   ambient   left 0 -> left 1 ---+-> join
//   side      right 0 -> right 1 -+
#include <anabranch/anabranch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

using namespace anabranch;

constexpr unsigned kItems = 1 << 16, kBlock = 256, kGrid = kItems / kBlock;
constexpr unsigned kInputs = 7, kOutputs = 5;

__device__ unsigned item() { return blockIdx.x * blockDim.x + threadIdx.x; }
__global__ void affine(const unsigned* in, unsigned* out, unsigned factor, unsigned addend) {
  out[item()] = factor * in[item()] + addend;
}
__global__ void multiply(const unsigned* a, const unsigned* b, unsigned* out) {
  out[item()] = a[item()] * b[item()];
}
__global__ void fill(unsigned* x, unsigned seed) { x[item()] = seed * 7919 + item(); }
__global__ void check(const unsigned* x, const unsigned* y, unsigned* wrong) {
  if (y[item()] != (9 * x[item()] + 4) * (25 * x[item()] + 6)) atomicAdd(wrong, 1);
}

// A region queues its kernels on the stream it is given, with the addresses it is given. It runs
// while the plan is recorded, and never again: launches replace the addresses.
unsigned* buffer(const RegionCall* call, int access) {
  return static_cast<unsigned*>(call->buffers[access]);
}
cudaStream_t stream_of(const RegionCall* call) {
  return static_cast<cudaStream_t>(call->stream.get());
}

struct Affine {
  unsigned factor, addend;
};
int run_affine(void* context, const RegionCall* call) {
  const Affine& by = *static_cast<const Affine*>(context);
  affine<<<kGrid, kBlock, 0, stream_of(call)>>>(buffer(call, 0), buffer(call, 1), by.factor,
                                                by.addend);
  return cudaGetLastError();
}
int run_multiply(void*, const RegionCall* call) {
  multiply<<<kGrid, kBlock, 0, stream_of(call)>>>(buffer(call, 0), buffer(call, 1),
                                                  buffer(call, 2));
  return cudaGetLastError();
}

// Steps say what they read and write. Waits between the streams are the plan's business.
Result<Program> make_program() {
  ProgramBuilder b;
  const StreamId side = b.add_stream("side");
  const std::uint64_t bytes = kItems * sizeof(unsigned);
  const BufferId x = b.add_buffer({"x", Role::kInput, bytes});
  const BufferId y = b.add_buffer({"y", Role::kOutput, bytes});
  BufferId t[4];
  for (BufferId& temporary : t) temporary = b.add_buffer({"t", Role::kTemporary, bytes});
  b.compute(kAmbient, "left", {b.read(x), b.write(t[0])});
  b.compute(side, "right", {b.read(x), b.write(t[1])});
  b.compute(kAmbient, "left", {b.read(t[0]), b.write(t[2])});
  b.compute(side, "right", {b.read(t[1]), b.write(t[3])});
  b.compute(kAmbient, "join", {b.read(t[2]), b.read(t[3]), b.write(y)});
  return b.build();
}

int fail(const Status& status) {
  std::puts(status.message().c_str());
  return 1;
}

// Memory of the caller's own; the recording has an arena for what lies between x and y.
struct Memory {
  unsigned *x[kInputs], *y[kOutputs], *wrong;
  Memory() {
    for (unsigned*& each : x) cudaMalloc(&each, kItems * sizeof(unsigned));
    for (unsigned*& each : y) cudaMalloc(&each, kItems * sizeof(unsigned));
    cudaMalloc(&wrong, sizeof(unsigned));
    cudaMemset(wrong, 0, sizeof(unsigned));
  }
};

// Fills x, launches and checks y, all in order on one stream; the host waits once, at the end.
int launch_many(const Recording& recording, unsigned launches) {
  const Memory memory;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const auto begin = std::chrono::steady_clock::now();
  Ticket last;
  for (unsigned i = 0; i < launches; ++i) {
    unsigned* const x = memory.x[i % kInputs];
    unsigned* const y = memory.y[i % kOutputs];
    fill<<<kGrid, kBlock, 0, stream>>>(x, i);
    const Binding bindings[] = {{x, kItems * sizeof *x}, {y, kItems * sizeof *y}};
    const Result<Ticket> ticket = launch(recording, bindings, CudaStream(stream));
    if (!ticket) return fail(ticket.error());
    check<<<kGrid, kBlock, 0, stream>>>(x, y, memory.wrong);
    last = *ticket;
  }
  if (const Status ended = last.wait(); !ended) return fail(ended);
  unsigned wrong = 0;
  cudaStreamSynchronize(stream);
  const cudaError_t copied = cudaMemcpy(&wrong, memory.wrong, sizeof wrong, cudaMemcpyDefault);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("launched: %u times, %.0f a second with filling and checking, %u items wrong (%s)\n",
              launches, launches / took.count(), wrong, cudaGetErrorString(copied));
  return wrong == 0 && copied == cudaSuccess ? 0 : 1;
}

int main(int argc, char** argv) {
  const Result<Device> device = Device::cuda();
  if (!device) {
    std::printf("skipped: %s\n", device.error().message().c_str());
    return 77;
  }
  const Result<Program> program = make_program();
  if (!program) return fail(program.error());
  const Result<Plan> plan = make_plan(*program);
  if (!plan) return fail(plan.error());

  Affine left{3, 1}, right{5, 1};
  const RegionTable regions{
      {"left", {run_affine, &left}}, {"right", {run_affine, &right}}, {"join", {run_multiply}}};
  const Result<Recording> recording = record(*plan, *device, regions);
  if (!recording) return fail(recording.error());
  std::printf("recorded: %zu steps on %zu streams, %zu waits, on %s\n", program->steps().size(),
              program->streams().size(), plan->waits().size(), device->name().c_str());
  const int result = launch_many(*recording, argc > 1 ? std::atoi(argv[1]) : 10'000);
  std::puts(dump_recording(*recording).c_str());
  return result;
}
