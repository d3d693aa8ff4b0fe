// SPDX-License-Identifier: Apache-2.0
#include "harness/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "harness/judge_collective.hpp"
#include "harness/judge_comparison.hpp"
#include "harness/judge_linear.hpp"
#include "harness/judge_requests.hpp"
#include "harness/judge_work.hpp"
#include "model/error.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

/// Pieces of work that don't depend on each other, dearest first, shared by a few threads. Each writes to its own slot,
/// so the result doesn't depend on who does what.
class TaskList {
 public:
  void add(double cost, std::function<void()> run) { tasks_.push_back({cost, std::move(run)}); }

  void run(int threads, const std::function<void(double)>& progress) {
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.cost > b.cost; });
    for (const Task& task : tasks_) total_ += task.cost;
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&] { work(progress); });
    work(progress);
    for (std::thread& thread : others) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Task {
    double cost;
    std::function<void()> run;
  };

  void work(const std::function<void(double)>& progress) {
    for (std::size_t i = next_++; i < tasks_.size(); i = next_++) {
      try {
        tasks_[i].run();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        next_ = tasks_.size();
        return;
      }
      const std::lock_guard lock(mutex_);
      done_ += tasks_[i].cost;
      if (progress) progress(total_ > 0.0 ? done_ / total_ : 1.0);
    }
  }

  std::vector<Task> tasks_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
  double total_ = 0.0, done_ = 0.0;
};

/// All cells of one call.
class Judge {
 public:
  Judge(const Model& model, std::span<const JudgeCell> cells, const JudgeOptions& options)
      : options_(options),
        builtin_(builtin_local_ops()),
        ops_(options.ops != nullptr ? *options.ops : builtin_),
        weights_(model, cells.empty() ? DType::f64 : cells.front().run->storage) {
    for (const JudgeCell& cell : cells) {
      works_.push_back(work_of(*cell.program, *cell.run));
      scores_.emplace_back(works_.back().size());
    }
  }

  std::vector<std::vector<TapScore>> run() {
    TaskList tasks;
    std::map<std::string, std::vector<std::pair<const Work*, std::vector<TapScore>*>>> products;
    for (std::size_t c = 0; c < works_.size(); ++c) {
      for (std::size_t w = 0; w < works_[c].size(); ++w) {
        const Work& work = works_[c][w];
        std::vector<TapScore>* scores = &scores_[c][w];
        const LocalOp* local = work.instruction->op == nullptr
                                   ? nullptr
                                   : ops_.find(work.instruction->op->name());
        if (local != nullptr && local->product) {
          products[work.instruction->module].push_back({&work, scores});
        } else {
          tasks.add(static_cast<double>(work.elements()) * 16.0, [this, &work, local, scores] {
            *scores = work.instruction->op == nullptr
                          ? judge_collective(work, options_.taps_may_be_missing)
                          : judge_op(work, local);
          });
        }
      }
    }
    for (const auto& [path, uses] : products) {
      const Module& module = weights_.model().module(path);
      double rows = 64.0;  // reading a row of W costs about as much as multiplying it with 64 tokens
      for (const auto& use : uses) rows += static_cast<double>(use.first->tokens());
      tasks.add(rows * static_cast<double>(module.out * module.in),
                [this, &path, &uses] { judge_module(path, uses); });
    }
    tasks.run(options_.threads, options_.progress);

    std::vector<std::vector<TapScore>> all;
    for (std::vector<std::vector<TapScore>>& cell : scores_) {
      std::vector<TapScore>& flat = all.emplace_back();
      for (std::vector<TapScore>& scores : cell)
        flat.insert(flat.end(), scores.begin(), scores.end());
    }
    return all;
  }

 private:
  Arithmetic arithmetic(Primitive primitive, DType storage) const {
    if (options_.arithmetic) return options_.arithmetic(primitive, storage);
    Arithmetic plain;
    plain.accumulate = accumulate_dtype(storage);
    return plain;
  }

  // One op that is recomputed on whole tensors: once for all ranks that saw the same numbers.
  std::vector<TapScore> judge_op(const Work& work, const LocalOp* local) {
    OutputSet outputs(work, options_.taps_may_be_missing);
    if (outputs.empty()) return outputs.scores();
    if (local == nullptr) {
      outputs.fail_all(fmt::format("no local check for op '{}': add one to LocalOps",
                                   work.instruction->op->name()),
                       true);
      return outputs.scores();
    }
    const std::vector<std::size_t> input_steps = local->reads_history ? work.history() : work.steps;
    std::vector<TapReader> inputs;
    for (const int input : work.inputs) {
      inputs.emplace_back(*work.run, input_steps, work.program->value(input));
      if (inputs.back().present()) continue;
      if (options_.taps_may_be_missing) return {};
      outputs.fail_all(fmt::format("its input {} is missing", inputs.back().name()), false);
      return outputs.scores();
    }

    using Key = std::pair<std::vector<const void*>, std::vector<std::int64_t>>;
    struct Readers {
      std::vector<std::vector<int>> peers;  // by input
      Ranges weight_rows;
      std::vector<int> ranks;
    };
    std::map<Key, Readers> readers;
    for (int rank = 0; rank < work.run->mesh.ranks(); ++rank) {
      Key key;
      Readers reader;
      std::string defect;
      for (const TapReader& input : inputs) {
        reader.peers.push_back(input.seen_by(rank));
        for (const int peer : reader.peers.back()) {
          if (defect.empty()) defect = input.defect(peer);
        }
        if (!defect.empty()) {
          outputs.fail(rank, fmt::format("its input {} {}", input.name(), defect));
          break;
        }
        const std::vector<const void*> parts = input.key(reader.peers.back());
        key.first.insert(key.first.end(), parts.begin(), parts.end());
      }
      if (!defect.empty()) continue;
      reader.weight_rows = work.weight_rows(rank);
      for (const Range& range : reader.weight_rows)
        key.second.insert(key.second.end(), {range.begin, range.end});
      Readers& known = readers.emplace(std::move(key), std::move(reader)).first->second;
      known.ranks.push_back(rank);
    }
    for (const auto& [key, reader] : readers)
      recompute(work, *local, inputs, reader.peers, reader.weight_rows, reader.ranks, outputs);
    return outputs.scores();
  }

  void recompute(const Work& work, const LocalOp& local, const std::vector<TapReader>& inputs,
                 const std::vector<std::vector<int>>& peers, const Ranges& weight_rows,
                 const std::vector<int>& ranks, OutputSet& outputs) {
    LocalCall call{work.program->config, *work.instruction, weights_, {}};
    call.arithmetic = [this](Primitive primitive, DType storage) {
      return arithmetic(primitive, storage);
    };
    call.storage = work.run->storage;
    call.weight_rows = weight_rows;
    for (const std::size_t s : work.steps) call.steps.push_back(&work.run->steps[s].step);
    for (const std::size_t s : work.history()) call.history.push_back(&work.run->steps[s].step);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      call.inputs.push_back(inputs[i].assemble(peers[i]));
    for (std::size_t output = 0; output < work.instruction->outputs.size(); ++output) {
      std::vector<Comparison> comparisons = outputs.comparisons(output, ranks, local.rounds_once);
      if (comparisons.empty()) continue;
      call.output = static_cast<int>(output);
      call.out = comparisons.front().dtype();
      call.columns.clear();
      for (const Comparison& c : comparisons) {
        call.columns.insert(call.columns.end(), c.features().begin(), c.features().end());
      }
      const LocalValue value = local.recompute(call);
      compare_all(value, comparisons);
      outputs.take(comparisons);
    }
  }

  void judge_module(const std::string& path,
                    const std::vector<std::pair<const Work*, std::vector<TapScore>*>>& uses) {
    std::vector<ProductRequest> requests;
    std::vector<std::pair<std::size_t, std::size_t>> owners;  // request -> use
    std::vector<OutputSet> sets;
    for (const auto& [work, scores] : uses) {
      const Arithmetic stated = arithmetic(Primitive::linear, work->run->storage);
      sets.push_back(product_outputs(*work, options_.taps_may_be_missing));
      for (ProductRequest& request :
           product_requests(*work, sets.back(), stated, options_.taps_may_be_missing)) {
        owners.push_back({requests.size(), sets.size() - 1});
        requests.push_back(std::move(request));
      }
    }
    judge_products(weights_, path, requests);
    for (const auto& [request, set] : owners) sets[set].take(requests[request].outputs);
    for (std::size_t i = 0; i < uses.size(); ++i) *uses[i].second = sets[i].scores();
  }

  const JudgeOptions& options_;
  LocalOps builtin_;
  const LocalOps& ops_;
  RoundedWeights weights_;
  std::vector<std::vector<Work>> works_;                    // by cell
  std::vector<std::vector<std::vector<TapScore>>> scores_;  // by cell, by work
};

}  // namespace

std::vector<std::vector<TapScore>> judge_local(const Model& model, std::span<const JudgeCell> cells,
                                               const JudgeOptions& options) {
  for (const JudgeCell& cell : cells) {
    if (cell.run->storage != cells.front().run->storage) {
      throw InputError(fmt::format(
          "judge_local: cells of storage dtypes {} and {}; all cells of a call share one",
          name(cells.front().run->storage), name(cell.run->storage)));
    }
  }
  return Judge(model, cells, options).run();
}

}  // namespace shardcheck
