// SPDX-License-Identifier: Apache-2.0
// A library of collectives for equal counts and contiguous memory, as NCCL is one, on the cpu device: members meet at a
// board and copy from each other.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <vector>

#include "model/error.hpp"
#include "sharded/comm/dense_group.hpp"

namespace shardcheck::testing {

/// Where the members of a group lay down what they bring. A device's kernels would wait here.
class Board {
 public:
  explicit Board(int size)
      : ins_(static_cast<std::size_t>(size)), sends_(static_cast<std::size_t>(size)) {}

  using Messages = std::vector<DenseGroup::Message>;

  /// Lays down this member's part, waits for all, lets it read the others', and waits until all have.
  void meet(int member, const Tensor& in, Messages sends, const std::function<void()>& read) {
    {
      const std::lock_guard lock(mutex_);
      ins_[static_cast<std::size_t>(member)] = in;
      sends_[static_cast<std::size_t>(member)] = std::move(sends);
    }
    wait_for_all();
    read();
    wait_for_all();
  }
  const Tensor& in(int member) const { return ins_[static_cast<std::size_t>(member)]; }
  const Messages& sends(int member) const { return sends_[static_cast<std::size_t>(member)]; }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    const std::size_t round = round_;
    if (++here_ == ins_.size()) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return aborted_ || round_ != round; });
    if (round_ == round) throw CommError("the board has been taken away");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Tensor> ins_;
  std::vector<Messages> sends_;
  std::size_t here_ = 0, round_ = 0;
  bool aborted_ = false;
};

/// Sums in the orders of `own`, by Device::reduce_n.
class BoardGroup final : public DenseGroup {
 public:
  BoardGroup(std::shared_ptr<Board> board, int size, int member, const std::set<ReduceOrder>& own)
      : board_(std::move(board)), size_(size), member_(member), own_(own) {}

  bool reduces(const ReduceSpec& spec, const Tensor&) const override {
    return own_.count(spec.order) > 0;
  }
  void all_reduce(Stream& stream, const Tensor& in, const ReduceSpec& spec, const Tensor& out) override {
    require_dense({in, out});
    meet(in, [&] { in.device->reduce_n(stream, all(), spec, 0, in.elements(), out); });
  }
  bool reduce_scatters(const ReduceSpec& spec, const Tensor& in) const override {
    return reduces(spec, in);
  }
  void reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out) override {
    require_dense({in, out});
    if (in.elements() != size_ * out.elements())
      throw std::logic_error("reduce_scatter: counts are not equal");
    meet(in, [&] {
      const Tensor whole = in.device->allocate(stream, in.dtype, in.rows, in.cols);
      in.device->reduce_n(stream, all(), {ReduceOp::sum, ReduceOrder::one_shot, HopRounding::f32},
                          0, in.elements(), whole);
      in.device->copy(stream, whole.row_range(member_, member_ + 1), out);
    });
  }
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out) override {
    require_dense({in, out});
    if (size_ * in.elements() != out.elements())
      throw std::logic_error("all_gather: counts are not equal");
    meet(in, [&] {
      for (int from = 0; from < size_; ++from) {
        if (board_->in(from).elements() != in.elements())
          throw std::logic_error("all_gather: counts differ");
        in.device->copy(stream, board_->in(from), out.row_range(from, from + 1));
      }
    });
  }
  void broadcast(Stream& stream, const Tensor& in, int root, const Tensor& out) override {
    require_dense({out});
    meet(in, [&] {
      Tensor flat = out;
      flat.cols = flat.row_stride = out.elements();
      flat.rows = 1;
      out.device->copy(stream, board_->in(root), flat);
    });
  }
  void exchange(Stream& stream, std::span<const Message> sends,
                std::span<const Message> receives) override {
    board_->meet(member_, {}, {sends.begin(), sends.end()}, [&] {
      for (const Message& receive : receives) {
        require_dense({receive.tensor});
        const auto& sent = board_->sends(receive.peer);
        const auto found = std::find_if(sent.begin(), sent.end(),
                                        [&](const Message& m) { return m.peer == member_; });
        if (found == sent.end()) throw std::logic_error("exchange: nobody sent what is received");
        require_dense({found->tensor});
        Tensor source = found->tensor;
        source.rows = receive.tensor.rows;
        source.cols = source.row_stride = receive.tensor.cols;
        receive.tensor.device->copy(stream, source, receive.tensor);
      }
    });
  }

  std::string failure() override { return {}; }
  void abort() override { board_->abort(); }
  void drain() override {}

 private:
  void meet(const Tensor& in, const std::function<void()>& read) {
    board_->meet(member_, in, {}, read);
  }
  std::vector<Tensor> all() const {
    std::vector<Tensor> terms;
    for (int member = 0; member < size_; ++member) terms.push_back(board_->in(member));
    return terms;
  }
  static void require_dense(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) {
      if (!tensor.contiguous()) throw std::logic_error("the library got a strided tensor");
    }
  }

  std::shared_ptr<Board> board_;
  int size_, member_;
  const std::set<ReduceOrder>& own_;
};

class BoardLibrary final : public CollectiveLibrary {
 public:
  explicit BoardLibrary(std::set<ReduceOrder> own = {}) : own_(std::move(own)) {}

  std::string_view device_kind() const override { return "cpu"; }
  std::string refusal(int ranks) const override {
    return ranks > 64 ? "the board has 64 places" : "";
  }
  std::string new_id() override {
    const std::lock_guard lock(mutex_);
    return std::to_string(++ids_);
  }
  std::unique_ptr<DenseGroup> join(Stream&, const Joining& joining) override {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Board>& board = boards_[joining.id];
    if (board == nullptr) board = std::make_shared<Board>(joining.size);
    return std::make_unique<BoardGroup>(board, joining.size, joining.member, own_);
  }
  std::string note() const override { return "by the board"; }

 private:
  const std::set<ReduceOrder> own_;
  std::mutex mutex_;
  int ids_ = 0;
  std::map<std::string, std::shared_ptr<Board>> boards_;
};

}  // namespace shardcheck::testing
