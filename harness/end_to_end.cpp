// SPDX-License-Identifier: Apache-2.0
#include "harness/end_to_end.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/transformer.hpp"

namespace shardcheck {
namespace {

double log_sum_exp(std::span<const double> x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (const double value : x) sum += std::exp(value - top);
  return top + std::log(sum);
}

/// KL(p || q) of two rows of logits, in nats.
double divergence(std::span<const double> reference, std::span<const double> candidate) {
  const double z_p = log_sum_exp(reference), z_q = log_sum_exp(candidate);
  double sum = 0.0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - z_p;
    sum += std::exp(log_p) * (log_p - (candidate[i] - z_q));
  }
  return sum;
}

std::int64_t argmax(std::span<const double> x) {
  return std::max_element(x.begin(), x.end()) - x.begin();
}

/// Distance between the largest and the second largest value.
double top_gap(std::span<const double> x) {
  double first = -std::numeric_limits<double>::infinity(), second = first;
  for (const double value : x) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
  return first - second;
}

/// The larger of two errors, where NaN is larger than any number: a comparison must never lose it.
double worse(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

struct Sums {
  double error2 = 0.0, reference2 = 0.0, largest_error = 0.0, largest_reference = 0.0;
};

}  // namespace

ReferenceLogits reference_logits(const Model& model, const Sequences& sequences) {
  reference::Transformer<double> transformer(model);
  ReferenceLogits logits;
  for (const auto& ids : sequences) {
    transformer.reset();
    logits.push_back(transformer.forward(ids));
  }
  return logits;
}

EndToEnd end_to_end(const TapRun& run, const std::string& logits, const ReferenceLogits& reference,
                    const EndToEnd* yardstick) {
  EndToEnd result;
  std::vector<const std::byte*> seen;  // replicas that are bitwise equal share their bytes: judged once
  for (int rank = 0; rank < run.mesh.ranks(); ++rank) {
    Sums sums;
    EndToEnd mine;
    std::int64_t tokens = 0, agreed = 0;
    double kl_sum = 0.0;
    bool repeated = true;
    for (const StepTaps& taps : run.steps) {
      const TapValue* value = taps.find(logits);
      const HostTensor* tensor = value == nullptr ? nullptr
                                                  : &value->ranks[static_cast<std::size_t>(rank)];
      if (tensor == nullptr || tensor->shape().empty() || tensor->rows() != taps.step.tokens() ||
          tensor->cols() != reference[0].cols()) {
        mine.complete = false;
        repeated = false;
        break;
      }
      if (std::find(seen.begin(), seen.end(), tensor->data()) == seen.end()) {
        seen.push_back(tensor->data());
        repeated = false;
      }
    }
    if (!mine.complete) {
      result.complete = false;
      result.worst_rank = rank;
      return result;
    }
    if (repeated) continue;
    for (const StepTaps& taps : run.steps) {
      const std::vector<double> got = taps.find(logits)->ranks[static_cast<std::size_t>(rank)].to_f64();
      const auto vocab = static_cast<std::size_t>(reference[0].cols());
      std::int64_t row = 0;
      for (const StepSequence& sequence : taps.step.sequences) {
        for (std::int64_t i = 0; i < sequence.count; ++i, ++row, ++tokens) {
          const auto truth = reference[static_cast<std::size_t>(sequence.sequence)].row(
              sequence.first + i);
          const std::span<const double> candidate(
              got.data() + static_cast<std::size_t>(row) * vocab, vocab);
          double token_error = 0.0;
          for (std::size_t c = 0; c < vocab; ++c) {
            const double error = std::abs(candidate[c] - truth[c]);
            sums.error2 += error * error;
            sums.reference2 += truth[c] * truth[c];
            sums.largest_reference = std::max(sums.largest_reference, std::abs(truth[c]));
            if (!(error <= token_error)) {
              token_error = worse(error, token_error);
              // The first NaN stays: nothing is larger.
              if (!std::isnan(sums.largest_error) && !(error <= sums.largest_error)) {
                sums.largest_error = worse(error, sums.largest_error);
                mine.phase = taps.step.phase;
                mine.step = taps.step.index;
                mine.row = row;
                mine.column = static_cast<std::int64_t>(c);
                mine.got = candidate[c];
                mine.expected = truth[c];
              }
            }
          }
          mine.token_error.push_back(token_error);
          const double kl = divergence(truth, candidate);
          kl_sum += kl;
          mine.kl_max = worse(kl, mine.kl_max);
          mine.top1.push_back(argmax(candidate));
          if (mine.top1.back() == argmax(truth)) {
            ++agreed;
          } else {
            ++mine.flips;
            const auto index = static_cast<std::size_t>(tokens);
            const double allowed = yardstick != nullptr && index < yardstick->token_error.size()
                                       ? 4.0 * yardstick->token_error[index]
                                       : 0.0;
            if (!(top_gap(truth) <= allowed)) ++mine.unexcused;
          }
        }
      }
    }
    const auto ratio = [](double a, double b) { return a == 0.0 ? 0.0 : a / b; };
    mine.rel_fro = ratio(std::sqrt(sums.error2), std::sqrt(sums.reference2));
    mine.rel_max = ratio(sums.largest_error, sums.largest_reference);
    mine.kl_mean = ratio(kl_sum, static_cast<double>(tokens));
    mine.top1_agree = tokens == 0 ? 1.0 : static_cast<double>(agreed) / static_cast<double>(tokens);
    mine.worst_rank = rank;
    if (result.token_error.empty() || !(mine.rel_max <= result.rel_max)) result = mine;
  }
  return result;
}

}  // namespace shardcheck
