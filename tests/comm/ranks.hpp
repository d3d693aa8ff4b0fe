// SPDX-License-Identifier: Apache-2.0
// Ranks for the tests of collectives: a world over a mesh, each rank with a stream, a ledger and its communicators.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.hpp"
#include "model/host_tensor.hpp"
#include "sharded/comm/communicator.hpp"
#include "sharded/comm/turn.hpp"

namespace shardcheck::testing {

/// What the body of one rank works with.
class Rank {
 public:
  Rank(int rank, World& world, Device& device, Ledger& ledger)
      : index(rank), device_(device), stream_(device.make_stream()), world_(world), ledger_(ledger) {}

  const int index;  // in the world

  Stream& stream() { return *stream_; }
  /// A communicator of this rank over the named axes; "tp" where the mesh has only that.
  std::unique_ptr<Communicator> over(const std::vector<std::string>& axes = {"tp"}) {
    std::vector<int> indices;
    for (const std::string& axis : axes) indices.push_back(world_.mesh().axis_index(axis));
    return world_.group(index, indices, device_, ledger_);
  }
  Tensor empty(DType dtype, std::int64_t rows, std::int64_t cols) {
    return device_.allocate(*stream_, dtype, rows, cols);
  }
  Tensor put(const HostTensor& host) {
    Tensor tensor = device_.allocate(*stream_, host.dtype(), host.rows(), host.cols());
    if (device_.has_values()) device_.upload(*stream_, host, tensor);
    return tensor;
  }
  HostTensor get(const Tensor& tensor) { return device_.to_host(*stream_, tensor); }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  World& world_;
  Ledger& ledger_;
};

class Ranks {
 public:
  explicit Ranks(Mesh mesh, const std::string& device = "cpu", const std::string& world = "threads",
                 bool device_each = false)
      : ledgers(static_cast<std::size_t>(mesh.ranks())), world_(builtin_worlds().make(world, mesh)) {
    const int devices = device_each ? mesh.ranks() : 1;
    for (int i = 0; i < devices; ++i) devices_.push_back(builtin_devices().make(device));
  }
  explicit Ranks(int size) : Ranks(Mesh{{{"tp", size}}}) {}
  /// All ranks on this device.
  Ranks(Mesh mesh, std::unique_ptr<Device> device)
      : Ranks(builtin_worlds().make("threads", mesh), std::move(device)) {}
  Ranks(std::unique_ptr<World> world, std::unique_ptr<Device> device)
      : ledgers(static_cast<std::size_t>(world->mesh().ranks())), world_(std::move(world)) {
    devices_.push_back(std::move(device));
  }

  void run(const std::function<void(Rank&)>& body) {
    world_->run([&](int rank) {
      Device& device = *devices_[devices_.size() == 1 ? 0 : static_cast<std::size_t>(rank)];
      const Turn turn(device);
      Rank context(rank, *world_, device, ledgers[static_cast<std::size_t>(rank)]);
      body(context);
    });
  }
  World& world() { return *world_; }
  Device& device() { return *devices_[0]; }

  std::vector<Ledger> ledgers;

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<World> world_;
};

/// One tensor per rank, filled by the ranks' threads.
using PerRank = std::vector<HostTensor>;

/// Numbers of both signs over seven powers of two: sums of them depend on the order and round at every addition.
inline HostTensor varied(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  std::mt19937_64 random(seed * 2654435761u + 1);
  std::vector<double> values(static_cast<std::size_t>(rows * cols));
  for (double& value : values) {
    const std::uint64_t bits = random();
    const double mantissa = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
    value = std::ldexp(bits & 1 ? mantissa : -mantissa, static_cast<int>((bits >> 1) % 7) - 3);
  }
  return round_to(dtype, {rows, cols}, values);
}

/// The rows (tokens) or columns (features) of a matrix that the ranges name, in their order.
inline HostTensor part_of(const HostTensor& whole, Dim dim, const Ranges& ranges) {
  const std::int64_t extent = total(ranges);
  const std::int64_t rows = dim == Dim::tokens ? extent : whole.rows();
  const std::int64_t cols = dim == Dim::tokens ? whole.cols() : extent;
  std::vector<std::int64_t> index;
  for (const Range& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; ++i) index.push_back(i);
  }
  std::vector<double> values;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t row = dim == Dim::tokens ? index[static_cast<std::size_t>(r)] : r;
      const std::int64_t col = dim == Dim::tokens ? c : index[static_cast<std::size_t>(c)];
      values.push_back(whole.at(row * whole.cols() + col));
    }
  }
  return round_to(whole.dtype(), {rows, cols}, values);  // exact: the values have this dtype
}

inline CallSite at(std::string site, Phase phase = Phase::prefill, int step = 0) {
  return {std::move(site), phase, step};
}

}  // namespace shardcheck::testing
