// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "model/error.hpp"

namespace shardcheck::emu {
namespace {

// Addresses cost nothing; what is touched counts.
constexpr std::size_t kDeviceBytes = std::size_t{64} << 30;
constexpr int kPoison = 0xff;  // NaN in every floating dtype
constexpr std::align_val_t kPinnedAlignment{Arena::kAlignment};

std::uint64_t seed_of_environment() {
  const char* const text = std::getenv("SHARDCHECK_EMU_SEED");
  if (text == nullptr) return 0;
  char* end = nullptr;
  const std::uint64_t seed = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') {
    throw InputError(fmt::format("SHARDCHECK_EMU_SEED must be a whole number; it is '{}'", text));
  }
  return seed;
}

int lowest_unused_label(const std::vector<std::shared_ptr<StreamQueue>>& queues) {
  for (int label = 0;; ++label) {
    const auto has_it = [label](const auto& queue) { return queue->order.label == label; };
    if (std::none_of(queues.begin(), queues.end(), has_it)) return label;
  }
}

}  // namespace

Runtime::Runtime() : arena_(kDeviceBytes) { scheduler_.set_seed(seed_of_environment()); }

Runtime& Runtime::instance() {
  // Never destroyed: objects that live until the process ends may still give memory back.
  static Runtime* const runtime = new Runtime;
  return *runtime;
}

void Runtime::set_seed(std::uint64_t seed) {
  const Lock lock(mutex_);
  scheduler_.set_seed(seed);
}

// ---- streams and events ------------------------------------------------------------------------------------------

EmuStream* Runtime::make_stream() {
  const Lock lock(mutex_);
  auto queue = std::make_shared<StreamQueue>();
  queue->order.number = ++streams_made_;
  queue->order.label = lowest_unused_label(scheduler_.queues());
  scheduler_.add(queue);
  auto stream = std::make_unique<EmuStream>(EmuStream{std::move(queue)});
  EmuStream* const handle = stream.get();
  streams_.emplace(handle, std::move(stream));
  return handle;
}

bool Runtime::destroy(EmuStream* stream) {
  const Lock lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return false;
  const std::shared_ptr<StreamQueue> queue = stream->queue;
  run_quietly({queue, queue->order.time});
  scheduler_.remove(queue);
  streams_.erase(found);
  return true;
}

bool Runtime::knows(EmuStream* stream) const {
  const Lock lock(mutex_);
  return streams_.contains(stream);
}

bool Runtime::knows(EmuEvent* event) const {
  const Lock lock(mutex_);
  return events_.contains(event);
}

EmuEvent* Runtime::make_event() {
  const Lock lock(mutex_);
  auto event = std::make_unique<EmuEvent>();
  EmuEvent* const handle = event.get();
  events_.emplace(handle, std::move(event));
  return handle;
}

bool Runtime::destroy(EmuEvent* event) {
  const Lock lock(mutex_);
  return events_.erase(event) == 1;
}

void Runtime::record(EmuEvent* event, EmuStream* stream) {
  const Lock lock(mutex_);
  const StreamOrder& order = stream->queue->order;
  *event = {{stream->queue, order.time}, order.clock, order.now()};
}

void Runtime::wait(EmuStream* stream, EmuEvent* event) {
  const Lock lock(mutex_);
  StreamQueue& queue = *stream->queue;
  if (!event->moment.queue || event->moment.queue == stream->queue) return;
  queue.order.clock.join(event->clock);
  queue.order.clock.raise(event->point);
  races_.shorten(queue.order.clock);
  if (std::string why = failure_of(event->moment); !why.empty()) queue.failure = std::move(why);
  if (!scheduler_.reached(event->moment)) push(queue, {.run = nullptr, .after = event->moment});
}

void Runtime::synchronize(EmuStream* stream) {
  const Lock lock(mutex_);
  StreamQueue& queue = *stream->queue;
  try {
    run_until({stream->queue, queue.order.time});
  } catch (...) {
    queue.failure.clear();  // this is its report
    throw;
  }
  races_.host_waited(queue.order.clock, queue.order.now());
  if (!queue.failure.empty()) throw DeviceError(std::exchange(queue.failure, {}));
}

void Runtime::synchronize(EmuEvent* event) {
  const Lock lock(mutex_);
  if (!event->moment.queue) return;
  run_until(event->moment);
  races_.host_waited(event->clock, event->point);
  if (const std::string why = failure_of(event->moment); !why.empty()) throw DeviceError(why);
}

void Runtime::synchronize_all() {
  std::vector<EmuStream*> streams;
  {
    const Lock lock(mutex_);
    for (const auto& [handle, stream] : streams_) streams.push_back(stream.get());
  }
  for (EmuStream* const stream : streams) synchronize(stream);
}

bool Runtime::query(EmuEvent* event) {
  const Lock lock(mutex_);
  if (!scheduler_.reached(event->moment)) {
    const Arena::Opened opened(arena_);
    scheduler_.run_one_towards(event->moment);
  }
  if (!scheduler_.reached(event->moment)) return false;
  races_.host_waited(event->clock, event->point);
  return true;
}

void Runtime::run_until(const Moment& moment) {
  if (scheduler_.reached(moment)) return;
  const Arena::Opened opened(arena_);
  scheduler_.run_until(moment);
}

/// What goes wrong is left to the synchronisations of the streams that it concerns.
void Runtime::run_quietly(const Moment& moment) noexcept {
  try {
    run_until(moment);
  } catch (...) {  // NOLINT: drop_all has noted it
  }
}

std::shared_ptr<StreamQueue> Runtime::queue_number(std::uint32_t number) const {
  for (const auto& queue : scheduler_.queues()) {
    if (queue->order.number == number) return queue;
  }
  return nullptr;
}

// ---- memory ------------------------------------------------------------------------------------------------------

const Runtime::Block* Runtime::find_block(std::uintptr_t address) const {
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return nullptr;
  const Block& block = std::prev(next)->second;
  return address < block.range.end() ? &block : nullptr;
}

Runtime::Block* Runtime::find_block(std::uintptr_t address) {
  return const_cast<Block*>(std::as_const(*this).find_block(address));
}

/// The free range's bytes; where there is none, tasks that wait to free theirs may be run at any time.
std::byte* Runtime::take_range(std::size_t bytes) {
  if (std::byte* const range = arena_.allocate(bytes)) return range;
  for (const auto& queue : std::vector(scheduler_.queues())) run_until({queue, queue->order.time});
  return arena_.allocate(bytes);
}

std::byte* Runtime::allocate(std::size_t bytes, EmuStream* stream) {
  const Lock lock(mutex_);
  std::byte* const pointer = take_range(bytes);
  if (pointer == nullptr) return nullptr;
  Access range = access_to(pointer, bytes, Use::allocates);
  Block& block = blocks_[range.begin];
  block.range = range;
  push(*stream->queue,
       {.run = [pointer, bytes](std::uint64_t) { std::memset(pointer, kPoison, bytes); },
        .after = {},
        .keeps_memory = true});
  races_.add(block.history, stream->queue->order, range, "cudaMallocAsync");
  return pointer;
}

bool Runtime::free(std::byte* pointer, EmuStream* stream) {
  const Lock lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == blocks_.end() || !found->second.on_device) return false;
  StreamQueue& queue = *stream->queue;
  Access range = found->second.range;
  range.use = Use::frees;
  if (const auto conflict = races_.find(found->second.history, queue.order, range, "cudaFreeAsync",
                                        range)) {
    queue.failure = conflict->message;
    if (const auto other = queue_number(conflict->other.stream)) other->failure = conflict->message;
  }
  blocks_.erase(found);
  push(queue, {.run =
                   [this, pointer, bytes = range.width](std::uint64_t) {
                     std::memset(pointer, kPoison, bytes);
                     arena_.release(pointer);
                   },
               .after = {},
               .keeps_memory = true});
  return true;
}

std::byte* Runtime::allocate_pinned(std::size_t bytes) {
  const Lock lock(mutex_);
  auto* const pointer = static_cast<std::byte*>(::operator new(bytes, kPinnedAlignment, std::nothrow));
  if (pointer == nullptr) return nullptr;
  std::memset(pointer, kPoison, bytes);
  const Access range = access_to(pointer, bytes, Use::allocates);
  blocks_[range.begin] = {range, false, {}};
  return pointer;
}

bool Runtime::free_pinned(std::byte* pointer) {
  const Lock lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == blocks_.end() || found->second.on_device) return false;
  for (const PastAccess& past : found->second.history) {
    if (const auto queue = queue_number(past.task.stream)) run_quietly({queue, past.task.time});
  }
  blocks_.erase(found);
  ::operator delete(pointer, kPinnedAlignment);
  return true;
}

Runtime::Place Runtime::place_of(const void* pointer) const {
  const Lock lock(mutex_);
  if (arena_.contains(pointer)) return Place::device;
  return find_block(reinterpret_cast<std::uintptr_t>(pointer)) != nullptr ? Place::pinned
                                                                          : Place::pageable;
}

std::size_t Runtime::bytes_free() const {
  const Lock lock(mutex_);
  return arena_.capacity() - arena_.in_use();
}

// ---- tasks -------------------------------------------------------------------------------------------------------

Runtime::Block& Runtime::block_of(const Access& access, std::string_view name) {
  Block* const block = find_block(access.begin);
  const std::string_view touches = access.use == Use::reads ? "reads" : "writes";
  if (block == nullptr) {
    const bool device = arena_.contains(reinterpret_cast<const void*>(access.begin));
    throw DeviceError(fmt::format(
        "{}: {} device memory at {:#x} {}", name, touches, access.begin,
        device ? "that is not allocated: it was freed before, or never asked for"
               : "that is pageable host memory, which a device can't reach; copy it first"));
  }
  if (access.end() > block->range.end()) {
    throw DeviceError(fmt::format("{}: {} bytes {} to {} of an allocation of {} bytes", name,
                                  touches, access.begin - block->range.begin,
                                  access.end() - block->range.begin - 1, block->range.width));
  }
  return *block;
}

void Runtime::enqueue(EmuStream* stream, std::string_view name, const std::vector<Access>& accesses,
                      std::function<void(std::uint64_t order_seed)> run) {
  const Lock lock(mutex_);
  StreamQueue& queue = *stream->queue;
  std::vector<Block*> blocks;
  for (const Access& access : accesses) {
    blocks.push_back(access.empty() ? nullptr : &block_of(access, name));
    if (access.empty()) continue;
    const Block& block = *blocks.back();
    if (const auto conflict = races_.find(block.history, queue.order, access, name, block.range)) {
      throw DeviceError(conflict->message);
    }
  }
  push(queue, {.run = std::move(run), .after = {}});
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    if (blocks[i] != nullptr) races_.add(blocks[i]->history, queue.order, accesses[i], name);
  }
}

void Runtime::push(StreamQueue& queue, Task task) {
  queue.tasks.push_back(std::move(task));
  ++queue.order.time;
}

std::size_t Runtime::dynamic_shared_limit(const void* kernel) const {
  const Lock lock(mutex_);
  const auto found = dynamic_shared_.find(kernel);
  return found == dynamic_shared_.end() ? 0 : found->second;
}

void Runtime::set_dynamic_shared_limit(const void* kernel, std::size_t bytes) {
  const Lock lock(mutex_);
  dynamic_shared_[kernel] = bytes;
}

}  // namespace shardcheck::emu
