// SPDX-License-Identifier: Apache-2.0
// The emulated device: its memory, its streams, and the check of what tasks on different streams do to the same bytes.
// cuda_api.hpp, launch.hpp and cublaslt_api.hpp are made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/emu/access.hpp"
#include "kernels/emu/arena.hpp"
#include "kernels/emu/race_check.hpp"
#include "kernels/emu/stream_queue.hpp"

namespace shardcheck::emu {

struct EmuStream {
  std::shared_ptr<StreamQueue> queue;
};
struct EmuEvent {
  Moment moment;
  Clock clock;
  Point point;
};

/// Thread safe: one lock, which is held while tasks run.
class Runtime {
 public:
  /// CUDA's runtime is one per process and its calls name no object, so this is one per process too.
  static Runtime& instance();

  /// What runs when, within what streams and events leave open: 0 only what is waited for, in order; else other tasks
  /// too, and a kernel's blocks and threads in changing order. At the start the environment's
  /// SHARDCHECK_EMU_SEED, or 0.
  void set_seed(std::uint64_t seed);

  EmuStream* make_stream();
  /// Runs what it holds; errors are lost with it. False if there is no such stream (so below).
  bool destroy(EmuStream* stream);
  bool knows(EmuStream* stream) const;
  bool knows(EmuEvent* event) const;
  EmuEvent* make_event();
  bool destroy(EmuEvent* event);

  // Preconditions from here on: the stream and the event are known.

  void record(EmuEvent* event, EmuStream* stream);
  void wait(EmuStream* stream, EmuEvent* event);
  /// Runs what the target needs. Throws what a task throws, and DeviceError if work that leads up to the target was
  /// dropped because of an earlier error: for a stream once, for an event every time.
  void synchronize(EmuStream* stream);
  void synchronize(EmuEvent* event);
  void synchronize_all();
  /// Runs one task towards it if it hasn't been reached.
  bool query(EmuEvent* event);

  /// Device memory from this point of the stream on; null if there is no room.
  std::byte* allocate(std::size_t bytes, EmuStream* stream);
  /// False if nothing is allocated there. A use by another stream in no order with it becomes both streams' failure.
  bool free(std::byte* pointer, EmuStream* stream);
  std::byte* allocate_pinned(std::size_t bytes);
  bool free_pinned(std::byte* pointer);

  enum class Place { device, pinned, pageable };
  Place place_of(const void* pointer) const;

  /// Adds a task to the stream. Throws DeviceError, and adds nothing, if an access isn't inside of one allocation or
  /// is in conflict with a task that it is in no order with. `run` gets the seed for the order inside of a kernel.
  void enqueue(EmuStream* stream, std::string_view name, const std::vector<Access>& accesses,
               std::function<void(std::uint64_t order_seed)> run);

  /// Dynamic shared memory that a kernel was allowed by cudaFuncSetAttribute; 0: nothing was said.
  std::size_t dynamic_shared_limit(const void* kernel) const;
  void set_dynamic_shared_limit(const void* kernel, std::size_t bytes);

  std::size_t bytes_total() const { return arena_.capacity(); }
  std::size_t bytes_free() const;

 private:
  struct Block {
    Access range;
    bool on_device = true;
    std::vector<PastAccess> history;
  };
  using Lock = std::lock_guard<std::mutex>;

  Runtime();
  Block* find_block(std::uintptr_t address);
  const Block* find_block(std::uintptr_t address) const;
  Block& block_of(const Access& access, std::string_view name);
  std::byte* take_range(std::size_t bytes);
  void push(StreamQueue& queue, Task task);
  void run_until(const Moment& moment);
  void run_quietly(const Moment& moment) noexcept;
  std::shared_ptr<StreamQueue> queue_number(std::uint32_t number) const;

  mutable std::mutex mutex_;
  Arena arena_;
  RaceCheck races_;
  Scheduler scheduler_;
  std::map<std::uintptr_t, Block> blocks_;  // by first byte
  std::map<const EmuStream*, std::unique_ptr<EmuStream>> streams_;
  std::map<const EmuEvent*, std::unique_ptr<EmuEvent>> events_;
  std::uint32_t streams_made_ = 0;
  std::map<const void*, std::size_t> dynamic_shared_;
};

}  // namespace shardcheck::emu
