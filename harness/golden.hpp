// SPDX-License-Identifier: Apache-2.0
// The reference against somebody else's f64 numbers: `shardcheck compare MODEL --golden FILE`.
//
// A golden is a safetensors file with `ids` (I64, [1, T]) and tensors `prefill/<module path>` and
// `decode<k>/<module path>`, each [1, tokens, features]. With k_max the largest k, the prefill covers all ids but the
// last k_max + 1 and each decode step takes one more; without a decode tensor it covers all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/host_tensor.hpp"
#include "model/model.hpp"
#include "reference/transformer.hpp"

namespace shardcheck {

/// One tensor of a golden.
struct GoldenTensor {
  std::string name;  // in the file: "decode1/model.layers.0.mlp"
  int call = 0;      // 0: the prefill; k + 1: decode step k
  std::string tap;   // without the base model's prefix: "layers.0.mlp"
  HostTensor value;  // [1, tokens, features], any floating dtype
};

struct Golden {
  std::string file;  // as named in messages
  std::vector<std::int64_t> ids;
  int decode_steps = 0;
  std::vector<GoldenTensor> tensors;  // by call, then in the order of the forward pass
  std::int64_t unknown = 0;           // tensors that are no tap of the model
};

struct GoldenOptions {
  bool allow_unknown = false;  // --allow-unknown: count tensors that the model doesn't have, instead of refusing them
};

/// Reads and checks a golden for a model of this config.
/// Throws InputError: no or ill-formed `ids`, an id outside the vocabulary, more decode steps than ids, nothing to
/// compare, a tensor that isn't [1, tokens, features] of floats, a name that is no tap (with the nearest one).
Golden read_golden(const Config& config, const std::filesystem::path& file,
                   const GoldenOptions& options = {});

/// One tensor's verdict: max |reference - golden| / max |golden|, NaN where either holds one. Where the golden is all
/// zero it is 0 if the reference is too, else infinite.
struct GoldenRow {
  std::string phase;  // "prefill", "decode0", ...
  std::string tap;
  double rel = 0.0;
  double limit = 0.0;
  bool passed() const { return rel <= limit; }  // NaN fails
};

struct GoldenReport {
  std::int64_t compared = 0, unknown = 0;
  std::vector<GoldenRow> rows;  // by call, then in the order of the forward pass; never empty
  std::size_t worst = 0;  // the row with the largest rel / limit; NaN is larger than any number
  double limit = 0.0;     // of tensors stored as F64
  bool passed() const;
};

/// The largest max-norm relative difference that two correct f64 programs of this model may have at any tap.
/// Derivation: a sum of K terms errs by about sqrt(K) u of its size if rounding errors are independent (Higham and
/// Mary 2019), and a layer has eight sums in series (norm, q and k, scores, softmax times v, o, norm, gate and up,
/// down), of about K = hidden_size terms; errors of the layers add at worst linearly along the residual. So
///     8 layers sqrt(hidden_size) 2^-53, rounded up to a power of ten and never below 1e-13
/// (two orders of summation on a tiny model). That is 1e-13 for the shipped tiny models, 1e-12 for SmolLM2.
double golden_limit(const Config& config);

/// One call of a forward pass: these ids are appended to the sequence, every tap is reported.
using GoldenForward =
    std::function<void(std::span<const std::int64_t> ids, const reference::Tap<double>& tap)>;

/// Runs `forward` call by call and compares every tensor. A tensor in a narrower dtype than F64 is allowed that
/// dtype's unit roundoff on top: what storing it cost.
/// Throws InputError where a golden tensor hasn't the shape of the model's value.
GoldenReport compare_golden(const Golden& golden, double limit, const GoldenForward& forward);

/// The reference against the file.
GoldenReport compare_golden(const Model& model, const std::filesystem::path& file,
                            const GoldenOptions& options = {});

/// The report as JSON, schema "shardcheck.compare/1"; NaN and infinity are the strings "nan" and "inf".
std::string golden_json(const GoldenReport& report);

/// The worst row of each tap, in the order of the forward pass, and a last line with the verdict.
std::string golden_table(const GoldenReport& report);

}  // namespace shardcheck
