// SPDX-License-Identifier: Apache-2.0
// libshardcheck_nccl.so: collectives by NCCL. Communicators don't block, so that a rank which waits for a dead one can
// be told to stop; every call is checked, and its work is followed by an event that the watcher looks at.
#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/cuda/memory.hpp"
#include "model/error.hpp"
#include "sharded/comm/library_module.hpp"
#include "sharded/comm/nccl/peer_reduce.hpp"
#include "sharded/comm/timeout.hpp"

namespace shardcheck::gpu {

void check(cudaError_t status, std::string_view what);

namespace {

constexpr int kSharesGpus = 23003;  // NCCL 2.30.3: several ranks on one GPU, where it is told so

int nccl_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i64:
      return ncclInt64;
    case DType::u64:
      return ncclUint64;
    default:
      throw CommError(fmt::format("NCCL can't move {}", name(dtype)));
  }
}

std::size_t count_of(const Tensor& tensor) { return static_cast<std::size_t>(tensor.elements()); }

std::string shape(const Tensor& tensor) {
  return fmt::format("[{}, {}] {}", tensor.rows, tensor.cols, name(tensor.dtype));
}

class NcclGroup final : public DenseGroup {
 public:
  NcclGroup(Stream& stream, const Joining& joining)
      : name_(joining.name),
        size_(joining.size),
        member_(joining.member),
        stopped_(joining.stopped),
        timeout_(comm_timeout()) {
    check(cudaStreamGetDevice(native(stream), &device_), "cudaStreamGetDevice");
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "cudaEventCreate");
    try {
      init(joining);
      peers_ = PeerReduce::make(device_, size_, member_, [&](std::span<const std::uint64_t> own) {
        return gathered(stream, own);
      });
    } catch (...) {
      abort();
      static_cast<void>(cudaEventDestroy(done_));
      throw;
    }
  }
  /// All members' work is done by now (CollectiveLibrary's users drain first), so this end can go without the others.
  ~NcclGroup() override {
    static_cast<void>(cudaSetDevice(device_));
    abort();
    static_cast<void>(cudaEventDestroy(done_));
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// NCCL rounds to the dtype on the wire after every hop, in an order that it chooses. Its maximum loses NaN.
  bool reduces(const ReduceSpec& spec, const Tensor& in) const override {
    return by_nccl(spec, in) || (peers_ != nullptr && peers_->takes(spec, in));
  }
  bool reduce_scatters(const ReduceSpec& spec, const Tensor& in) const override {
    return by_nccl(spec, in);
  }

  void all_reduce(Stream& stream, const Tensor& in, const ReduceSpec& spec, const Tensor& out) override {
    if (by_nccl(spec, in)) {
      return call(stream, "ncclAllReduce", in, [&](ncclComm_t comm) {
        return ncclAllReduce(address(in), address(out), count_of(in), type_of(in.dtype), ncclSum,
                             comm, native(stream));
      });
    }
    require_alive("all_reduce over peers");
    check(cudaSetDevice(device_), "cudaSetDevice");
    peers_->all_reduce(native(stream), in, spec, out);
    follow(stream, "all_reduce over peers", in);
  }
  void reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out) override {
    call(stream, "ncclReduceScatter", in, [&](ncclComm_t comm) {
      return ncclReduceScatter(address(in), address(out), count_of(out), type_of(in.dtype), ncclSum,
                               comm, native(stream));
    });
  }
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out) override {
    call(stream, "ncclAllGather", in, [&](ncclComm_t comm) {
      return ncclAllGather(address(in), address(out), count_of(in), type_of(in.dtype), comm,
                           native(stream));
    });
  }
  void broadcast(Stream& stream, const Tensor& in, int root, const Tensor& out) override {
    call(stream, "ncclBroadcast", out, [&](ncclComm_t comm) {
      return ncclBroadcast(member_ == root ? address(in) : address(out), address(out),
                           count_of(out), type_of(out.dtype), root, comm, native(stream));
    });
  }
  void exchange(Stream& stream, std::span<const Message> sends,
                std::span<const Message> receives) override {
    if (sends.empty() && receives.empty()) return;
    const Tensor& first = sends.empty() ? receives.front().tensor : sends.front().tensor;
    call(stream, "ncclSend and ncclRecv", first, [&](ncclComm_t comm) {
      ncclResult_t result = ncclGroupStart();
      const auto add = [&](ncclResult_t next) {
        if (result == ncclSuccess || result == ncclInProgress) result = next;
      };
      for (const Message& m : sends) {
        add(ncclSend(address(m.tensor), count_of(m.tensor), type_of(m.tensor.dtype), m.peer, comm,
                     native(stream)));
      }
      for (const Message& m : receives) {
        add(ncclRecv(address(m.tensor), count_of(m.tensor), type_of(m.tensor.dtype), m.peer, comm,
                     native(stream)));
      }
      add(ncclGroupEnd());
      return result;
    });
  }

  std::string failure() override {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return {};
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess ||
        (state != ncclSuccess && state != ncclInProgress)) {
      return fmt::format("{}: NCCL reports {}: {}", name_, ncclGetErrorString(state),
                         ncclGetLastError(comm_));
    }
    if (peers_ != nullptr) {
      if (const std::string why = peers_->failure(); !why.empty())
        return fmt::format("{}: {}", name_, why);
    }
    if (!last_) return {};
    const cudaError_t status = cudaEventQuery(done_);
    if (status == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() - last_->enqueued < timeout_) return {};
      return fmt::format(
          "{}: {} has not ended {} s after it was enqueued; SHARDCHECK_TIMEOUT sets the seconds to "
          "wait",
          name_, last_->what, std::chrono::duration<double>(timeout_).count());
    }
    if (status == cudaSuccess) last_.reset();
    return status == cudaSuccess
               ? std::string()
               : fmt::format("{}: after {}: {}", name_, last_->what, cudaGetErrorString(status));
  }
  void abort() override {
    const std::lock_guard lock(mutex_);
    if (peers_ != nullptr) peers_->stop();
    if (comm_ != nullptr) static_cast<void>(ncclCommAbort(std::exchange(comm_, nullptr)));
  }
  void drain() override {
    if (!used_) return;
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(cudaEventSynchronize(done_), name_);
  }

 private:
  struct Enqueued {
    std::string what;
    std::chrono::steady_clock::time_point enqueued;
  };

  static bool by_nccl(const ReduceSpec& spec, const Tensor& in) {
    const bool chain = spec.order == ReduceOrder::ring || spec.order == ReduceOrder::tree;
    const bool rounds = spec.hop == HopRounding::wire || in.dtype == DType::f32 ||
                        in.dtype == DType::f64;
    return spec.op == ReduceOp::sum && chain && rounds && is_float(in.dtype);
  }

  void init(const Joining& joining) {
    ncclUniqueId id = {};
    if (joining.id.size() != sizeof id)
      throw CommError(fmt::format("{}: the group has no NCCL id", name_));
    std::memcpy(&id, joining.id.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      result = ncclCommInitRankConfig(&comm_, size_, id, member_, &config);
    }
    require(result, "ncclCommInitRankConfig");
    settle("ncclCommInitRankConfig");
  }

  /// Enqueues by `enqueue(comm)` and returns when NCCL has taken it.
  template <typename Enqueue>
  void call(Stream& stream, const char* what, const Tensor& tensor, const Enqueue& enqueue) {
    const std::string words = fmt::format("{} {}", what, shape(tensor));
    check(cudaSetDevice(device_), "cudaSetDevice");
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      require_alive(words);
      result = enqueue(comm_);
    }
    require(result, words);
    settle(words);
    follow(stream, words);
  }
  void follow(Stream& stream, const char* what, const Tensor& tensor) {
    follow(stream, fmt::format("{} {}", what, shape(tensor)));
  }
  void follow(Stream& stream, const std::string& what) {
    check(cudaEventRecord(done_, native(stream)), what);
    const std::lock_guard lock(mutex_);
    last_ = Enqueued{what, std::chrono::steady_clock::now()};
    used_ = true;
  }

  void require_alive(const std::string& what) const {
    if (comm_ == nullptr)
      throw CommError(fmt::format("{}: {}: the group has been stopped", name_, what));
  }
  void require(ncclResult_t result, const std::string& what) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const std::lock_guard lock(mutex_);
    throw CommError(fmt::format("{}: {}: {}: {}", name_, what, ncclGetErrorString(result),
                                ncclGetLastError(comm_)));
  }

  /// A communicator that doesn't block takes the next call only when it has finished with this one.
  void settle(const std::string& what) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (int looks = 0;; ++looks) {
      ncclResult_t state = ncclSuccess;
      {
        const std::lock_guard lock(mutex_);
        require_alive(what);
        const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
        if (result != ncclSuccess) state = result;
      }
      if (state == ncclSuccess) return;
      require(state, what);
      if (stopped_())
        throw CommError(fmt::format("{}: {}: given up, because the run has been stopped", name_, what));
      if (std::chrono::steady_clock::now() > deadline) {
        throw CommError(fmt::format(
            "{}: {}: the peers have not come in {} s; SHARDCHECK_TIMEOUT sets the seconds to wait",
            name_, what, std::chrono::duration<double>(timeout_).count()));
      }
      if (looks > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// Every member's numbers, by way of the GPUs.
  std::vector<std::uint64_t> gathered(Stream& stream, std::span<const std::uint64_t> own) {
    const std::size_t all_count = own.size() * static_cast<std::size_t>(size_);
    std::vector<std::uint64_t> all(all_count);
    void* memory = nullptr;
    check(cudaMalloc(&memory, all_count * sizeof(std::uint64_t)), "cudaMalloc");
    const std::unique_ptr<void, void (*)(void*)> owner(
        memory, [](void* p) { static_cast<void>(cudaFree(p)); });
    auto* const slots = static_cast<std::uint64_t*>(memory);
    std::uint64_t* const mine = slots + own.size() * static_cast<std::size_t>(member_);
    check(cudaMemcpyAsync(mine, own.data(), own.size_bytes(), cudaMemcpyDefault, native(stream)),
          "cudaMemcpyAsync");
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      require_alive("joining");
      result = ncclAllGather(mine, slots, own.size(), ncclUint64, comm_, native(stream));
    }
    require(result, "joining");
    settle("joining");
    check(cudaEventRecord(done_, native(stream)), "cudaEventRecord");
    await_gathered();  // before the copy, in which the host would wait for a peer that may never come
    check(cudaMemcpyAsync(all.data(), slots, all_count * sizeof(std::uint64_t), cudaMemcpyDefault,
                          native(stream)),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
    return all;
  }
  void await_gathered() {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (;;) {
      const cudaError_t status = cudaEventQuery(done_);
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) check(status, "joining");
      if (stopped_() || std::chrono::steady_clock::now() > deadline) {
        throw CommError(fmt::format("{}: the peers have not joined", name_));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  const std::string name_;
  const int size_, member_;
  const std::function<bool()> stopped_;
  const std::chrono::milliseconds timeout_;
  int device_ = 0;
  cudaEvent_t done_ = nullptr;  // after the work enqueued last
  std::mutex mutex_;            // of what follows: the watcher looks at it, and may take comm_ away
  ncclComm_t comm_ = nullptr;   // null once aborted
  std::optional<Enqueued> last_;
  bool used_ = false;
  std::unique_ptr<PeerReduce> peers_;  // null where the GPUs don't reach each other
};

class NcclLibrary final : public CollectiveLibrary {
 public:
  std::string_view device_kind() const override { return "cuda"; }

  std::string refusal(int ranks) const override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
    if (ranks <= gpus) return {};
    const int version = nccl_version();
    const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (version >= kSharesGpus && shares != nullptr && std::string_view(shares) == "1") return {};
    return fmt::format(
        "communicator 'nccl' needs a GPU for each of {} ranks, and there {} {}: use communicator "
        "threads, whose ranks share a "
        "GPU, {}",
        ranks, gpus == 1 ? "is" : "are", gpus,
        version >= kSharesGpus
            ? fmt::format("or set NCCL_MULTI_RANK_GPU_ENABLE=1, which NCCL {} understands",
                          version_text(version))
            : fmt::format("or NCCL 2.30.3 or later with NCCL_MULTI_RANK_GPU_ENABLE=1 (this is {})",
                          version_text(version)));
  }

  std::string new_id() override {
    ncclUniqueId id = {};
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) {
      throw CommError(fmt::format("ncclGetUniqueId: {}: {}", ncclGetErrorString(result),
                                  ncclGetLastError(nullptr)));
    }
    return {reinterpret_cast<const char*>(&id), sizeof id};
  }
  std::unique_ptr<DenseGroup> join(Stream& stream, const Joining& joining) override {
    return std::make_unique<NcclGroup>(stream, joining);
  }
  std::string note() const override {
    return fmt::format(
        "NCCL {} moves data between GPUs and takes the sums of ring and tree itself, by an "
        "algorithm that it chooses (NCCL_ALGO "
        "sets it); one_shot and two_shot are summed over peer memory, or, where GPUs don't reach "
        "each other, like the other "
        "orders: gathered by NCCL and summed by reduce_n",
        version_text(nccl_version()));
  }
};

std::shared_ptr<CollectiveLibrary> open(std::string& why) {
  int gpus = 0;
  const cudaError_t status = cudaGetDeviceCount(&gpus);
  if (status == cudaSuccess && gpus > 0) {
    // Tensors lie in memory pools, which admit their own GPU alone. Between GPUs of one process NCCL would reach into
    // them directly.
    setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);
    return std::make_shared<NcclLibrary>();
  }
  why = fmt::format("NCCL {} is there, but no GPU: {}", version_text(nccl_version()),
                    status == cudaSuccess ? "none was found" : cudaGetErrorString(status));
  return nullptr;
}

std::string describe() {
  std::string why;
  if (open(why) == nullptr) return "none: " + why;
  return fmt::format("NCCL {}, a thread and a GPU for each rank", version_text(nccl_version()));
}

}  // namespace
}  // namespace shardcheck::gpu

extern "C" {
extern const shardcheck::LibraryModule shardcheck_library_module
    __attribute__((visibility("default")));
const shardcheck::LibraryModule shardcheck_library_module = {
    shardcheck::kLibraryModuleVersion, shardcheck::gpu::open, shardcheck::gpu::describe};
}
