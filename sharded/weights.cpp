// SPDX-License-Identifier: Apache-2.0
#include "sharded/weights.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

namespace shardcheck {
namespace {

/// Rows read at a time while a weight is rounded: bounds the f64 copy.
constexpr std::int64_t kElementsAtOnce = 1 << 20;

/// The given rows and columns of a matrix, in the order of the ranges, dense.
HostTensor slice(const HostTensor& whole, const Ranges& rows, const Ranges& cols) {
  HostTensor part(whole.dtype(), {total(rows), total(cols)});
  const auto element = static_cast<std::int64_t>(element_size(whole.dtype()));
  std::byte* out = part.mutable_data();
  for (const Range& row_range : rows) {
    for (std::int64_t row = row_range.begin; row < row_range.end; ++row) {
      for (const Range& col_range : cols) {
        const std::int64_t bytes = col_range.size() * element;
        out = std::copy_n(whole.data() + (row * whole.cols() + col_range.begin) * element, bytes, out);
      }
    }
  }
  return part;
}

}  // namespace

WeightStore::WeightStore(const Model& model, DType storage) : WeightStore(model, storage, nullptr) {}

WeightStore::WeightStore(const Model& model, DType storage, Values values)
    : model_(model), storage_(storage), values_(std::move(values)) {
  for (const Module& module : model.modules()) {
    slots_[model.storage_name(module.weight())] = std::make_unique<Slot>();
    if (module.has_bias) slots_[model.storage_name(module.bias())] = std::make_unique<Slot>();
  }
}

HostTensor WeightStore::whole(const std::string& tensor) {
  Slot& slot = *slots_.at(model_.storage_name(tensor));
  std::call_once(slot.once, [&] {
    const Model::Extents extents = model_.extents(tensor);
    // By what it is, not by its shape: a matrix may have one column.
    const Module& module = model_.module(std::string_view(tensor).substr(0, tensor.rfind('.')));
    const bool vector = module.kind == ModuleKind::norm || tensor != module.weight();
    HostTensor whole(storage_, vector ? std::vector<std::int64_t>{1, extents.rows}
                                      : std::vector<std::int64_t>{extents.rows, extents.cols});
    if (values_) {
      values_(model_.storage_name(tensor), whole);
      slot.tensor = std::move(whole);
      return;
    }
    const std::int64_t step = std::max<std::int64_t>(
        1, kElementsAtOnce / std::max<std::int64_t>(1, extents.cols));
    std::vector<double> block;
    for (std::int64_t begin = 0; begin < extents.rows; begin += step) {
      const std::int64_t end = std::min(begin + step, extents.rows);
      const auto first = static_cast<std::size_t>(begin * extents.cols);
      const auto count = static_cast<std::size_t>((end - begin) * extents.cols);
      if (storage_ == DType::f64) {
        model_.read_rows(tensor, begin, end, whole.as_mutable<double>().subspan(first, count));
      } else if (storage_ == DType::f32) {
        model_.read_rows(tensor, begin, end, whole.as_mutable<float>().subspan(first, count));
      } else {
        // From f64, so that the value is rounded once: through f32 it would be rounded twice.
        block.resize(count);
        model_.read_rows(tensor, begin, end, block);
        const HostTensor rounded = round_to(storage_, {static_cast<std::int64_t>(count)}, block);
        std::copy(rounded.as<std::uint16_t>().begin(), rounded.as<std::uint16_t>().end(),
                  whole.as_mutable<std::uint16_t>().begin() + static_cast<std::ptrdiff_t>(first));
      }
    }
    slot.tensor = std::move(whole);
  });
  return slot.tensor;
}

void WeightStore::load_all(int threads, const std::function<void(double)>& progress) {
  std::vector<std::string> names;
  for (const auto& [name, slot] : slots_) names.push_back(name);
  std::atomic<std::size_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < names.size(); i = next++) {
      try {
        whole(names[i]);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
        next = names.size();
      }
      if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(names.size()));
    }
  };
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
}

Tensor WeightStore::shard(const std::string& tensor, const Ranges& rows, const Ranges& cols,
                          Device& device, Stream& stream) {
  if (!device.has_values()) return device.allocate(stream, storage_, total(rows), total(cols));
  if (!device.shares_host_memory()) {
    return device.adopt(stream, slice(whole(tensor), rows, cols));
  }
  const Tensor whole_tensor = device.adopt(stream, whole(tensor));
  if (rows.size() == 1 && cols.size() == 1) {
    return whole_tensor.row_range(rows[0].begin, rows[0].end).col_range(cols[0].begin, cols[0].end);
  }
  const Tensor copy = device.allocate(stream, storage_, total(rows), total(cols));
  std::int64_t row = 0;
  for (const Range& row_range : rows) {
    std::int64_t col = 0;
    for (const Range& col_range : cols) {
      device.copy(stream,
                  whole_tensor.row_range(row_range.begin, row_range.end)
                      .col_range(col_range.begin, col_range.end),
                  copy.row_range(row, row + row_range.size()).col_range(col, col + col_range.size()));
      col += col_range.size();
    }
    row += row_range.size();
  }
  return copy;
}

}  // namespace shardcheck
