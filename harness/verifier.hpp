// SPDX-License-Identifier: Apache-2.0
// Verifier: a program of one's own hands in its tensors where it makes them, and they are judged as a folder is by
// `shardcheck compare --candidate`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/candidate.hpp"
#include "harness/inputs.hpp"
#include "harness/verify.hpp"
#include "sharded/op.hpp"

namespace shardcheck {

/// What the program ran: its ranks, its precisions, and what it was fed.
struct VerifierOptions {
  Mesh mesh;
  DType storage = DType::f32;
  std::optional<DType> wire;  // of reductions; default: the storage dtype
  ReduceSpec reduction;
  Sequences sequences;  // token ids, one list per sequence
};

class CandidateBuilder;

class Verifier {
 public:
  /// `model` must outlive the verifier. Throws InputError for an id outside the vocabulary or no sequence.
  Verifier(const Model& model, VerifierOptions options);
  ~Verifier();

  /// States a step of the run, before its tensors come: tokens [first, first + count) of each sequence. Steps of a phase
  /// are numbered from 0. Without any call the run is one prefill step of all sequences. Throws InputError if a sequence
  /// doesn't go on where it stopped.
  void step(Phase phase, const std::vector<StepSequence>& parts);

  /// States where the elements of all taps are that match `pattern` ("layers.*.mlp.{gate,up}_proj"), before their tensors
  /// come: per mesh axis one of R, S(features), S(head), S(kv_head), S(vocab), S(tokens), S(sequence), P(sum), P(max);
  /// axes left out are R. A cut is balanced unless `ranges` lists the element indices of each rank. Taps without a
  /// statement are R; where several match, the last one counts.
  void place(std::string pattern, std::map<std::string, std::string> axes,
             std::optional<std::vector<Ranges>> ranges = std::nullopt);

  /// One rank's part of a value in the `step`-th step stated: row-major [its tokens, its features] in the storage dtype,
  /// or the wire dtype where it is partial. Names are Hugging Face's module paths; "X.partial" is X before its
  /// reduction. Thread safe: ranks may be threads. Throws InputError for a tap that the model doesn't have (with the
  /// nearest), a rank or step that isn't there, another dtype, a second value for the same place.
  void tap(std::string_view name, int rank, HostTensor value, int step = 0);
  /// The same from the program's own numbers; the rows follow from their count. Throws InputError besides if a number is
  /// none of the tap's dtype: what is judged is what the program has, not a rounding of it.
  void tap(std::string_view name, int rank, std::span<const float> values, int step = 0);
  void tap(std::string_view name, int rank, std::span<const double> values, int step = 0);

  /// Judges what was handed in so far. Throws InputError if that is nothing.
  CandidateReport report(const VerifyParts& parts = builtin_parts()) const;

 private:
  struct Statement {
    std::string pattern;
    std::map<std::string, std::string> axes;
    std::optional<std::vector<Ranges>> ranges;
  };
  void begin();
  const Layout& layout_of(const std::string& name);
  void take_numbers(const std::string& name, int rank, std::span<const double> values, int step);
  void take(const std::string& name, int rank, HostTensor value, int step);
  [[noreturn]] static void fail(const std::string& message);

  const Model& model_;
  const VerifierOptions options_;
  const Registry ops_;  // the judged program points to its ops
  std::vector<Statement> statements_;
  mutable std::mutex mutex_;
  std::unique_ptr<CandidateBuilder> builder_;
};

}  // namespace shardcheck
