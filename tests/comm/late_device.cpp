// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/late_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>

#include "kernels/cpu/cpu_device.hpp"
#include "model/error.hpp"
#include "tests/kernels/wrapped_device.hpp"

namespace shardcheck::testing {
namespace {

/// How much of each stream's work is known to be done before something.
using Clock = std::vector<std::size_t>;

void merge(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size(), 0);
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

struct Access {
  std::size_t stream, index;
  std::int64_t begin, end;  // bytes
  bool writes;
  std::string what;
};

/// A buffer of the inner device and who touched it.
struct Buffer {
  Tensor inner;
  std::vector<Access> accesses;
};

struct Task {
  std::function<void()> run;
  Clock after;
};

/// All streams of a device. One lock: ranks enqueue and run from threads of their own.
class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : random_(seed) {}

  std::size_t add_stream() {
    const std::lock_guard lock(mutex_);
    streams_.emplace_back();
    return streams_.size() - 1;
  }

  void enqueue(std::size_t stream, const std::string& what,
               std::span<const std::pair<Buffer*, Access>> touched, std::function<void()> run) {
    const std::lock_guard lock(mutex_);
    Queue& queue = streams_[stream];
    for (const auto& [buffer, access] : touched)
      note(*buffer, access, stream, queue.tasks.size(), what);
    queue.tasks.push_back({std::move(run), queue.clock});
    queue.clock.resize(std::max(queue.clock.size(), stream + 1), 0);
    queue.clock[stream] = queue.tasks.size();
  }

  Clock clock(std::size_t stream) {
    const std::lock_guard lock(mutex_);
    return streams_[stream].clock;
  }
  void wait(std::size_t stream, const Clock& clock) {
    const std::lock_guard lock(mutex_);
    merge(streams_[stream].clock, clock);
  }

  /// Runs the first `count` tasks of a stream (all: -1), what they need, and now and then something else.
  void run(std::size_t stream, std::size_t count) {
    const std::lock_guard lock(mutex_);
    count = std::min(count, streams_[stream].tasks.size());
    run_until(stream, count);
    streams_[stream].synchronized = std::max(streams_[stream].synchronized, count);
    if (!race_.empty()) throw DeviceError(race_);
  }

 private:
  struct Queue {
    std::deque<Task> tasks;
    std::size_t done = 0;
    std::size_t synchronized = 0;  // tasks that the host has waited for: what it enqueues now comes after them
    Clock clock;
  };

  void run_until(std::size_t stream, std::size_t count) {
    while (streams_[stream].done < count) {
      if (random_() % 2 == 0) {
        const std::size_t other = random_() % streams_.size();
        if (streams_[other].done < streams_[other].tasks.size()) run_next(other);
        if (streams_[stream].done >= count) return;
      }
      run_next(stream);
    }
  }

  void run_next(std::size_t stream) {
    Queue& queue = streams_[stream];
    const std::size_t index = queue.done;
    const Clock after = queue.tasks[index].after;
    for (std::size_t other = 0; other < after.size(); ++other) {
      if (other != stream) run_until(other, after[other]);
    }
    if (queue.done != index) return;  // it ran meanwhile
    ++queue.done;
    queue.tasks[index].run();
    queue.tasks[index].run = nullptr;
  }

  void note(Buffer& buffer, Access access, std::size_t stream, std::size_t index,
            const std::string& what) {
    access.stream = stream;
    access.index = index;
    access.what = what;
    const Clock& clock = streams_[stream].clock;
    for (const Access& old : buffer.accesses) {
      const bool ordered = old.stream == stream ||
                           (old.stream < clock.size() && clock[old.stream] > old.index) ||
                           streams_[old.stream].synchronized > old.index;
      const bool apart = old.end <= access.begin || access.end <= old.begin;
      if (ordered || apart || !(old.writes || access.writes) || !race_.empty()) continue;
      race_ = fmt::format(
          "race: {} on stream {} and {} on stream {} touch the same bytes, and no event orders "
          "them",
          old.what, old.stream, what, stream);
    }
    buffer.accesses.push_back(std::move(access));
  }

  std::mutex mutex_;
  std::deque<Queue> streams_;
  std::mt19937_64 random_;
  std::string race_;
};

class LateStorage final : public Storage {
 public:
  LateStorage(std::shared_ptr<Schedule> schedule, std::size_t stream, Tensor inner)
      : schedule_(std::move(schedule)), stream_(stream), buffer_(std::make_unique<Buffer>()) {
    buffer_->inner = std::move(inner);
  }
  /// Memory is given back in the order of the stream that it was allocated on: as if it were written there.
  ~LateStorage() override {
    const std::pair<Buffer*, Access> all{buffer_.get(),
                                         Access{0, 0, 0, buffer_->inner.bytes(), true, {}}};
    schedule_->enqueue(stream_, "the end of the buffer", {&all, 1}, [] {});
  }
  LateStorage(const LateStorage&) = delete;
  LateStorage& operator=(const LateStorage&) = delete;

  Buffer& buffer() const { return *buffer_; }

 private:
  std::shared_ptr<Schedule> schedule_;
  std::size_t stream_;
  std::unique_ptr<Buffer> buffer_;
};

class LateStream final : public Stream {
 public:
  explicit LateStream(std::shared_ptr<Schedule> schedule)
      : schedule_(std::move(schedule)), index_(schedule_->add_stream()) {}
  void synchronize() override { schedule_->run(index_, static_cast<std::size_t>(-1)); }
  std::size_t index() const { return index_; }

 private:
  std::shared_ptr<Schedule> schedule_;
  std::size_t index_;
};

std::size_t index_of(Stream& stream) { return static_cast<LateStream&>(stream).index(); }

struct LateEvent final : Event {
  explicit LateEvent(Clock c) : clock(std::move(c)) {}
  Clock clock;
};

class LateRead final : public HostRead {
 public:
  LateRead(std::shared_ptr<Schedule> schedule, std::size_t stream, std::size_t count,
           std::shared_ptr<HostTensor> host)
      : schedule_(std::move(schedule)), stream_(stream), count_(count), host_(std::move(host)) {}
  HostTensor take() override {
    schedule_->run(stream_, count_);
    return std::move(*host_);
  }

 private:
  std::shared_ptr<Schedule> schedule_;
  std::size_t stream_, count_;
  std::shared_ptr<HostTensor> host_;
};

class LateDevice final : public WrappedDevice {
 public:
  explicit LateDevice(std::uint64_t seed)
      : WrappedDevice(make_cpu_device()),
        schedule_(std::make_shared<Schedule>(seed)),
        inner_stream_(inner().make_stream()) {}

  std::string_view kind() const override { return "late"; }
  bool returns_early() const override { return true; }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<LateStream>(schedule_); }
  Tensor allocate(Stream& stream, DType dtype, std::int64_t rows, std::int64_t cols) override {
    Tensor inner_tensor = inner().allocate(*inner_stream_, dtype, rows, cols);
    Tensor tensor = outside(inner_tensor);
    tensor.storage = std::make_shared<LateStorage>(schedule_, index_of(stream),
                                                   std::move(inner_tensor));
    return tensor;
  }
  std::unique_ptr<Event> record(Stream& stream) override {
    return std::make_unique<LateEvent>(schedule_->clock(index_of(stream)));
  }
  void wait(Stream& stream, const Event& event) override {
    schedule_->wait(index_of(stream), static_cast<const LateEvent&>(event).clock);
  }
  void upload(Stream& stream, const HostTensor& host, const Tensor& out) override {
    enqueue(stream, "upload", {}, out,
            [this, host, target = inside(out)] { inner().upload(*inner_stream_, host, target); });
  }
  void poison(Stream& stream, const Tensor& out) override {
    enqueue(stream, "poison", {}, out,
            [this, target = inside(out)] { inner().poison(*inner_stream_, target); });
  }
  std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) override {
    auto host = std::make_shared<HostTensor>();
    enqueue(stream, "read", {&tensor, 1}, {}, [this, host, source = inside(tensor)] {
      *host = inner().to_host(*inner_stream_, source);
    });
    const std::size_t stream_index = index_of(stream);
    return std::make_unique<LateRead>(schedule_, stream_index,
                                      schedule_->clock(stream_index)[stream_index], host);
  }

 protected:
  Tensor inside(const Tensor& tensor) override {
    Tensor result = tensor;
    result.device = &inner();
    result.storage = static_cast<const LateStorage&>(*tensor.storage).buffer().inner.storage;
    return result;
  }
  void do_copy(Stream& stream, const Tensor& in, const Tensor& out) override {
    enqueue(stream, "copy", {&in, 1}, out, [this, source = inside(in), target = inside(out)] {
      inner().copy(*inner_stream_, source, target);
    });
  }
  void do_reduce_n(Stream& stream, std::span<const Tensor> terms, const ReduceSpec& spec,
                   std::int64_t first, std::int64_t total, const Tensor& out) override {
    std::vector<Tensor> sources;
    for (const Tensor& term : terms) sources.push_back(inside(term));
    enqueue(stream, "reduce_n", terms, out, [this, sources, spec, first, total, target = inside(out)] {
      inner().reduce_n(*inner_stream_, sources, spec, first, total, target);
    });
  }

 private:
  void enqueue(Stream& stream, const std::string& what, std::span<const Tensor> reads,
               const Tensor& writes, std::function<void()> run) {
    std::vector<std::pair<Buffer*, Access>> touched;
    for (const Tensor& tensor : reads) touch(tensor, false, touched);
    if (writes) touch(writes, true, touched);
    schedule_->enqueue(index_of(stream), what, touched, std::move(run));
  }
  static void touch(const Tensor& tensor, bool write, std::vector<std::pair<Buffer*, Access>>& touched) {
    if (tensor.elements() == 0) return;
    const auto size = static_cast<std::int64_t>(element_size(tensor.dtype));
    const std::int64_t last = (tensor.rows - 1) * tensor.row_stride +
                              (tensor.cols - 1) * tensor.col_stride;
    touched.push_back({&static_cast<const LateStorage&>(*tensor.storage).buffer(),
                       {0, 0, tensor.offset * size, (tensor.offset + last + 1) * size, write, {}}});
  }

  std::shared_ptr<Schedule> schedule_;
  std::unique_ptr<Stream> inner_stream_;
};

}  // namespace

std::unique_ptr<Device> make_late_device(std::uint64_t seed) {
  return std::make_unique<LateDevice>(seed);
}

}  // namespace shardcheck::testing
