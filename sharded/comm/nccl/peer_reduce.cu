// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cuda/atomic>
#include <new>
#include <random>

#include "kernels/cuda/reduce_n.cuh"
#include "model/error.hpp"
#include "sharded/comm/nccl/peer_reduce.hpp"
#include "sharded/comm/timeout.hpp"

namespace shardcheck::gpu {

struct PeerReduce::Host {
  volatile int stop;    // host to kernel
  volatile int failed;  // kernel to host: 1 + the member that didn't come
};

namespace {

constexpr int kMostPeers = kFewTerms;
constexpr std::int64_t kBufferBytes = std::int64_t{8} << 20;  // larger sums are gathered
constexpr std::int64_t kFlagBytes = 4096;

/// A member's memory: a flag of each peer, then two buffers for its terms and two for its slices of a sum. They are
/// used in turn: when a GPU writes one again, its peers have come to the call after the one in which they read it.
unsigned* flags_of(std::byte* memory) { return reinterpret_cast<unsigned*>(memory); }
std::byte* terms_of(std::byte* memory, unsigned half) {
  return memory + kFlagBytes + half * kBufferBytes;
}
std::byte* slices_of(std::byte* memory, unsigned half) {
  return memory + kFlagBytes + (2 + half) * kBufferBytes;
}

struct Meeting {
  unsigned* flags[kMostPeers];  // of each member
  int size, member;
  unsigned epoch;
  std::int64_t patience_ns;
  volatile int* stop;
  volatile int* failed;
};

__device__ inline std::int64_t nanoseconds() {
  std::int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Thread p tells member p that this GPU has come to `epoch`, and waits until p has. What this GPU wrote before is then
/// visible to p, and the other way round.
__global__ void meet_peers(Meeting meeting) {
  using Flag = cuda::atomic_ref<unsigned, cuda::thread_scope_system>;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= meeting.size || peer == meeting.member) return;
  __threadfence_system();
  Flag(meeting.flags[peer][meeting.member]).store(meeting.epoch, cuda::std::memory_order_release);
  const Flag theirs(meeting.flags[meeting.member][peer]);
  const std::int64_t start = nanoseconds();
  for (unsigned looks = 1;
       static_cast<int>(theirs.load(cuda::std::memory_order_acquire) - meeting.epoch) < 0; ++looks) {
    if (looks % 1024 != 0) continue;
    if (*meeting.stop != 0) return;
    if (nanoseconds() - start > meeting.patience_ns) {
      *meeting.failed = peer + 1;
      __threadfence_system();
      return;
    }
  }
}

/// out = terms[0] + terms[1] + ... from left to right, one rounding.                        `count` elements each
template <typename T>
void sum_peers(cudaStream_t stream, std::span<std::byte* const> terms, std::int64_t count,
               std::byte* out) {
  if (count == 0) return;
  Terms<T, kFewTerms> all;
  for (std::byte* const term : terms)
    all.values[all.size++] = {reinterpret_cast<const T*>(term), 1, count, count, 1};
  const View<T> target{reinterpret_cast<T*>(out), 1, count, count, 1};
  const bool many = reinterpret_cast<std::uintptr_t>(out) % kPackBytes ==
                    0;  // the buffers themselves are aligned
  const Cover grid = cover(1, many ? (count + kPackOf<T> - 1) / kPackOf<T> : count);
  using Op = HopSum<T, false>;
  launch(many ? reduce_chain<kPackOf<T>, T, kFewTerms, Op> : reduce_chain<1, T, kFewTerms, Op>,
         {"all_reduce over peers", stream, grid.grid, grid.block}, all, target, Chain{}, Op{});
}

/// This process's own: addresses mean something within it alone. (Its id may be another's on another machine, or in
/// another container.)
std::uint64_t process_number() {
  static const std::uint64_t number = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return number;
}

}  // namespace

std::unique_ptr<PeerReduce> PeerReduce::make(int device, int size, int member, const Gather& gather) {
  std::unique_ptr<PeerReduce> peers(new PeerReduce(size, member));
  if (size <= kMostPeers) peers->allocate();
  const std::uint64_t own[] = {process_number(), static_cast<std::uint64_t>(device),
                               reinterpret_cast<std::uint64_t>(peers->memory_)};
  const std::vector<std::uint64_t> all = gather(own);
  bool reaches = peers->memory_ != nullptr;
  for (int peer = 0; peer < size; ++peer) {
    const std::uint64_t* const theirs = all.data() + 3 * static_cast<std::size_t>(peer);
    peers->memories_.push_back(reinterpret_cast<std::byte*>(theirs[2]));
    if (peer == member) continue;
    const int peer_device = static_cast<int>(theirs[1]);
    int can = 0;
    if (theirs[0] == own[0] && theirs[1] != own[1] && theirs[2] != 0) {
      check(cudaDeviceCanAccessPeer(&can, device, peer_device), "cudaDeviceCanAccessPeer");
    }
    if (can == 0) {
      reaches = false;
      continue;
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer_device, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
    } else {
      check(status, "cudaDeviceEnablePeerAccess");
    }
  }
  // Its flags are zero and its peers reachable when a member says so; only where all do are they used.
  const std::uint64_t ready[] = {reaches ? std::uint64_t{1} : std::uint64_t{0}};
  const std::vector<std::uint64_t> answers = gather(ready);
  const bool all_ready = std::all_of(answers.begin(), answers.end(),
                                     [](std::uint64_t answer) { return answer == 1; });
  return all_ready ? std::move(peers) : nullptr;
}

/// Leaves memory_ null where the GPU has no room for it.
void PeerReduce::allocate() {
  void* host = nullptr;
  check(cudaHostAlloc(&host, sizeof(Host), cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc");
  host_ = new (host) Host{0, 0};
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<std::size_t>(kFlagBytes + 4 * kBufferBytes)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  memory_ = static_cast<std::byte*>(memory);
  check(cudaMemset(memory_, 0, static_cast<std::size_t>(kFlagBytes)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

PeerReduce::~PeerReduce() {
  static_cast<void>(cudaFree(memory_));
  static_cast<void>(cudaFreeHost(host_));
}

bool PeerReduce::takes(const ReduceSpec& spec, const Tensor& in) const {
  const bool order = spec.order == ReduceOrder::one_shot || spec.order == ReduceOrder::two_shot;
  return order && spec.op == ReduceOp::sum && is_float(in.dtype) && in.bytes() <= kBufferBytes;
}

void PeerReduce::meet(cudaStream_t stream) {
  Meeting meeting = {};
  for (int peer = 0; peer < size_; ++peer)
    meeting.flags[peer] = flags_of(memories_[static_cast<std::size_t>(peer)]);
  meeting.size = size_;
  meeting.member = member_;
  meeting.epoch = ++epoch_;
  meeting.patience_ns = std::chrono::nanoseconds(comm_timeout()).count();
  meeting.stop = &host_->stop;  // pinned memory has one address on host and device
  meeting.failed = &host_->failed;
  launch(meet_peers, {"meeting of peers", stream, dim3(1), dim3(kWarp)}, meeting);
}

void PeerReduce::all_reduce(cudaStream_t stream, const Tensor& in, const ReduceSpec& spec,
                            const Tensor& out) {
  const unsigned half = calls_++ % 2;
  const std::int64_t count = in.elements(), size = static_cast<std::int64_t>(element_size(in.dtype));
  check(cudaMemcpyAsync(terms_of(memory_, half), address(in), static_cast<std::size_t>(in.bytes()),
                        cudaMemcpyDeviceToDevice, stream),
        "all_reduce over peers");
  meet(stream);
  // Who sums which elements: everybody all of them, or each a slice of whole packs.
  const bool once = spec.order == ReduceOrder::two_shot;
  const std::int64_t pack = kPackBytes / size;
  const std::int64_t width = once ? ((count + size_ - 1) / size_ + pack - 1) / pack * pack : count;
  const auto slice = [&](int owner) {
    const std::int64_t begin = std::min(count, owner * width);
    return std::pair(begin, std::min(count, begin + width));
  };
  const auto [begin, end] = slice(once ? member_ : 0);
  std::vector<std::byte*> terms;
  for (std::byte* const memory : memories_) terms.push_back(terms_of(memory, half) + begin * size);
  std::byte* const target = once ? slices_of(memory_, half) + begin * size : address(out);
  with_storage_type(in.dtype,
                    [&]<typename T>(T) { sum_peers<T>(stream, terms, end - begin, target); });
  if (!once) return;
  meet(stream);
  for (int owner = 0; owner < size_; ++owner) {
    const auto [first, last] = slice(owner);
    if (first == last) continue;
    check(cudaMemcpyAsync(address(out) + first * size,
                          slices_of(memories_[static_cast<std::size_t>(owner)], half) + first * size,
                          static_cast<std::size_t>((last - first) * size), cudaMemcpyDefault, stream),
          "all_reduce over peers");
  }
}

std::string PeerReduce::failure() const {
  const int failed = host_ == nullptr ? 0 : host_->failed;
  return failed == 0 ? std::string()
                     : "a sum over peer GPUs waited in vain for member " + std::to_string(failed - 1);
}

void PeerReduce::stop() {
  if (host_ != nullptr) host_->stop = 1;
}

}  // namespace shardcheck::gpu
