// SPDX-License-Identifier: Apache-2.0
// Runs written by hand: a program of a few instructions and the numbers that each rank would have, so that the judge is
// tested against arithmetic that nobody else's code did.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/judge.hpp"
#include "harness/local/local_op.hpp"
#include "model/config.hpp"
#include "model/sources.hpp"
#include "sharded/op.hpp"

namespace shardcheck::testing {

/// Row-major [rows, cols].
using Table = reference::Matrix<double>;

/// An op by name alone: the judge asks for nothing else.
class NamedOp final : public Op {
 public:
  explicit NamedOp(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>&) const override {
    return {};
  }
  Placed place(const PlaceQuery&) const override { return {}; }
  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>&,
            const std::vector<Extent>&) const override {
    return {};
  }
  std::vector<Tensor> run(const Instruction&, RankContext&, const std::vector<Tensor>&) const override {
    return {};
  }

 private:
  std::string name_;
};

/// Hidden 96 = 6 heads of 16, 3 kv heads, biases on q, k, v; vocabulary 57.
inline Model small_llama() {
  Config config = parse_config(R"({"model_type": "llama", "hidden_size": 96, "num_hidden_layers": 1,
      "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 160, "vocab_size": 57,
      "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
      "attention_bias": true, "tie_word_embeddings": false, "torch_dtype": "float32"})",
                               "small_llama");
  std::vector<Module> parts = modules(config);
  return Model(config, synthetic_source(11, parts));
}

inline Model small_gpt2() {
  Config config = parse_config(
      R"({"model_type": "gpt2", "n_embd": 96, "n_layer": 1, "n_head": 6, "n_inner": 160,
      "vocab_size": 57, "n_positions": 64, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})",
      "small_gpt2");
  std::vector<Module> parts = modules(config);
  return Model(config, synthetic_source(12, parts));
}

/// Hidden 60; 6 heads of 16, which are normalised one by one.
inline Model small_qwen3() {
  Config config = parse_config(R"({"model_type": "qwen3", "hidden_size": 60, "num_hidden_layers": 1,
      "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "intermediate_size": 80, "vocab_size": 57,
      "rms_norm_eps": 1e-5})",
                               "small_qwen3");
  std::vector<Module> parts = modules(config);
  return Model(config, synthetic_source(13, parts));
}

/// The nearest number of a dtype, by the model's own conversion.
inline double rounded(DType dtype, double value) {
  const HostTensor one = round_to(dtype, {1}, std::vector<double>{value});
  return one.at(0);
}

inline Table rounded(DType dtype, Table table) {
  for (std::int64_t i = 0; i < table.rows() * table.cols(); ++i)
    table.data()[i] = rounded(dtype, table.data()[i]);
  return table;
}

/// Normals of a seed, rounded to a dtype; about one in fifty is 30 times larger, as real activations are.
inline Table random_table(DType dtype, std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<double> normal;
  Table table(rows, cols);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    table.data()[i] = normal(bits) * (bits() % 50 == 0 ? 30.0 : 1.0);
  return rounded(dtype, std::move(table));
}

/// A weight or bias as a run stores it.
inline Table stored(const Model& model, DType dtype, const std::string& tensor) {
  const Model::Extents extents = model.extents(tensor);
  Table table(extents.rows, extents.cols);
  model.read_rows(
      tensor, 0, extents.rows,
      std::span<double>(table.data(), static_cast<std::size_t>(extents.rows * extents.cols)));
  return rounded(dtype, std::move(table));
}

/// f(T{}) with the type that a device computes in: double where that is the storage dtype, else float.
template <typename F>
Table in_machine(DType storage, F f) {
  return storage == DType::f64 ? f(double{}) : f(float{});
}

/// One program of a mesh of `ranks` and the taps of its run.
class HandRun {
 public:
  HandRun(const Model& model, std::vector<Mesh::Axis> axes, DType storage, DType wire) {
    program.config = model.config();
    program.modules = model.modules();
    program.mesh.axes = std::move(axes);
    program.plan.mesh = program.mesh;
    for (const Module& module : program.modules) program.plan.weights[module.path] = {};
    run.mesh = program.mesh;
    run.storage = storage;
    run.wire = wire;
  }
  HandRun(const Model& model, int ranks, DType storage)
      : HandRun(model, {{"tp", ranks}}, storage, storage) {}

  /// A step of whole sequences at these positions: {sequence, first, count}.
  void step(Phase phase, std::vector<StepSequence> sequences, std::vector<std::int64_t> ids) {
    StepTaps taps;
    taps.step.phase = phase;
    for (const StepTaps& before : run.steps) taps.step.index += before.step.phase == phase ? 1 : 0;
    taps.step.sequences = std::move(sequences);
    taps.step.ids = std::move(ids);
    run.steps.push_back(std::move(taps));
  }
  /// One prefill of `tokens` tokens of one sequence.
  void prefill(std::int64_t tokens) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(i * 7 % 57);
    step(Phase::prefill, {{0, 0, tokens}}, std::move(ids));
  }

  Layout whole(std::int64_t features) const { return Layout::replicated(features, program.mesh); }
  Layout cut(const Partition& partition, bool may_overlap = false) const {
    return Layout::sharded(program.mesh, 0, partition, may_overlap);
  }
  Layout balanced(std::int64_t features) const {
    return cut(Partition::balanced(features, program.mesh.ranks()));
  }
  Layout partial(std::int64_t features) const { return Layout::partial(features, program.mesh, 0); }

  int value(const std::string& name, Layout layout, ValueDType dtype = ValueDType::storage) {
    program.values.push_back({name, std::move(layout), dtype});
    return static_cast<int>(program.values.size()) - 1;
  }

  void op(const std::string& name, const std::string& module, std::vector<int> inputs,
          std::vector<int> outputs, Attributes attributes = {}, bool adds_bias = false) {
    ops_.push_back(std::make_unique<NamedOp>(name));
    Instruction instruction;
    instruction.op = ops_.back().get();
    instruction.site = program.value(outputs[0]).name;
    instruction.module = module;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    instruction.attributes = std::move(attributes);
    instruction.adds_bias = adds_bias;
    add(std::move(instruction));
  }
  void collective(CollectiveStep::Kind kind, int input, int output, std::vector<int> axes = {0}) {
    Instruction instruction;
    instruction.collective.kind = kind;
    for (const int axis : axes)
      instruction.collective.axes.push_back(program.mesh.axes[static_cast<std::size_t>(axis)].name);
    instruction.axes = std::move(axes);
    instruction.site = program.value(output).name;
    instruction.inputs = {input};
    instruction.outputs = {output};
    add(std::move(instruction));
  }
  /// A value that comes from nowhere known: its producer is not part of the test.
  void source(int value) { op("given", "", {}, {value}); }

  /// What a rank has of a value in a step: its own numbers, rounded to the value's dtype.
  void set(int value, int rank, const Table& part, std::size_t step = 0) {
    const Value& v = program.value(value);
    StepTaps& taps = run.steps[step];
    if (taps.find(v.name) == nullptr) {
      taps.index[v.name] = taps.values.size();
      taps.values.push_back(
          {v.name, v.layout, std::vector<HostTensor>(static_cast<std::size_t>(run.mesh.ranks()))});
    }
    HostTensor& slot = taps.values[taps.index.at(v.name)].ranks[static_cast<std::size_t>(rank)];
    slot = round_to(dtype_of(value), {part.rows(), part.cols()}, part.values());
  }
  /// Every rank has its part of one whole; replicas share their bytes.
  void spread(int value, const Table& whole, std::size_t step = 0) {
    const Layout& layout = program.value(value).layout;
    std::vector<const Step*> so_far;
    for (std::size_t s = 0; s <= step; ++s) so_far.push_back(&run.steps[s].step);
    for (int rank = 0; rank < run.mesh.ranks(); ++rank) {
      const Ranges rows = layout.row_axes.empty()
                              ? Ranges{{0, whole.rows()}}
                              : held_rows(program.value(value), run.mesh, rank, so_far);
      set(value, rank, slice(whole, rows, layout.feature_ranges(rank)), step);
    }
    std::vector<HostTensor>& parts = tensors(value, step);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      for (std::size_t other = 0; other < rank; ++other) {
        if (parts[rank].bitwise_equal(parts[other])) parts[rank] = parts[other];
      }
    }
  }
  std::vector<HostTensor>& tensors(int value, std::size_t step = 0) {
    StepTaps& taps = run.steps[step];
    return taps.values[taps.index.at(program.value(value).name)].ranks;
  }
  /// One element of a rank's part, changed by a function.
  template <typename Change>
  void corrupt(int value, int rank, std::int64_t row, std::int64_t col, Change change,
               std::size_t step = 0) {
    const HostTensor part = tensors(value, step)[static_cast<std::size_t>(rank)];
    std::vector<double> values = part.to_f64();
    double& element = values[static_cast<std::size_t>(row * part.cols() + col)];
    element = change(element);
    tensors(value, step)[static_cast<std::size_t>(rank)] = round_to(part.dtype(), part.shape(), values);
  }

  DType dtype_of(int value) const {
    return shardcheck::dtype_of(program.value(value).dtype, run.storage, run.wire);
  }

  static Table slice(const Table& whole, const Ranges& rows, const Ranges& cols) {
    Table part(total(rows), total(cols));
    std::int64_t i = 0;
    for (const Range& r : rows) {
      for (std::int64_t m = r.begin; m < r.end; ++m) {
        for (const Range& c : cols) {
          for (std::int64_t d = c.begin; d < c.end; ++d) part.data()[i++] = whole(m, d);
        }
      }
    }
    return part;
  }

  /// Scores of the named taps; the sources' own scores are left out.
  std::vector<TapScore> judge(const Model& model, JudgeOptions options = {}) const {
    LocalOps ops = options.ops != nullptr ? *options.ops : builtin_local_ops();
    ops.add("given", {[](const LocalCall&) { return LocalValue{{}, {}, "given"}; }});
    options.ops = &ops;
    const JudgeCell cell{&program, &run};
    std::vector<TapScore> scores = judge_local(model, {&cell, 1}, options)[0];
    std::erase_if(scores, [](const TapScore& score) { return score.problem == "given"; });
    return scores;
  }

  Program program;
  TapRun run;

 private:
  void add(Instruction instruction) {
    // Without a decode list of its own, decode runs the same instructions.
    program.instructions[Phase::decode].push_back(instruction);
    program.instructions[Phase::prefill].push_back(std::move(instruction));
  }

  std::vector<std::unique_ptr<NamedOp>> ops_;
};

/// The first score that failed, in program order then rank; null if all passed.
inline const TapScore* first_failure(const std::vector<TapScore>& scores) {
  for (const TapScore& score : scores) {
    if (!score.passed()) return &score;
  }
  return nullptr;
}

/// Every way that the built-in devices store values.
inline const std::vector<DType> kDTypes{DType::f64, DType::f32, DType::bf16, DType::f16};

}  // namespace shardcheck::testing
