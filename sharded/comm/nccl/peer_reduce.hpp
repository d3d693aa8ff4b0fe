// SPDX-License-Identifier: Apache-2.0
// Private to the nccl module: sums over the memory of peer GPUs, in the orders that NCCL doesn't offer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/api.hpp"
#include "kernels/device.hpp"

namespace shardcheck::gpu {

/// One member's end of a group of GPUs that reach each other's memory, all in one process. Each GPU has a buffer that
/// its peers read; a kernel of one block tells the peers how far a GPU has come, and waits for them.
class PeerReduce {
 public:
  /// Gives every member's numbers to all, by member.
  using Gather = std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t> own)>;

  /// To be called by all members. Null for all of them where two share a GPU, can't reach each other, or are too many.
  /// Precondition: `device` is the current one.
  static std::unique_ptr<PeerReduce> make(int device, int size, int member, const Gather& gather);
  ~PeerReduce();
  PeerReduce(const PeerReduce&) = delete;
  PeerReduce& operator=(const PeerReduce&) = delete;

  /// one_shot and two_shot, of what fits the buffers. The same on all members.
  bool takes(const ReduceSpec& spec, const Tensor& in) const;
  /// The bits of Device::reduce_n. Precondition: takes(spec, in); in and out are contiguous and not empty.
  void all_reduce(cudaStream_t stream, const Tensor& in, const ReduceSpec& spec, const Tensor& out);

  // ---- from any thread ----
  /// Empty if no kernel has given up waiting.
  std::string failure() const;
  /// Lets waiting kernels give up.
  void stop();

 private:
  struct Host;  // what kernels and host tell each other

  PeerReduce(int size, int member) : size_(size), member_(member) {}
  void allocate();
  void meet(cudaStream_t stream);

  const int size_, member_;
  std::byte* memory_ = nullptr;       // of this GPU
  Host* host_ = nullptr;              // pinned
  std::vector<std::byte*> memories_;  // by member
  unsigned epoch_ = 0;                // meetings so far
  unsigned calls_ = 0;
};

}  // namespace shardcheck::gpu
