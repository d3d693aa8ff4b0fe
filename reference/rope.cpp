// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: pair i of every head is turned by position * frequency_i, so that the dot product of a
// query and a key depends on the distance of their positions.
// Source: Su et al. 2021 (arXiv 2104.09864); the half-split pairing and the llama3 scaling as Hugging Face has them.
#include <cmath>
#include <numbers>

#include "reference/blocks.hpp"

namespace shardcheck::reference {
namespace {

// llama3: wavelengths longer than the original context / low_freq_factor are divided by `factor`, those shorter than
// context / high_freq_factor stay, and between the two the frequency is blended linearly in context / wavelength.
double llama3_scaled(const RopeConfig& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double turns = rope.original_max_positions / wavelength;  // full turns within the original context
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(head_dim);
    const double frequency = 1.0 / std::pow(rope.theta, exponent);
    switch (rope.type) {
      case RopeConfig::Type::none:  // not rotated at all
        frequencies.push_back(0.0);
        break;
      case RopeConfig::Type::standard:
        frequencies.push_back(frequency);
        break;
      case RopeConfig::Type::linear:
        frequencies.push_back(frequency / rope.factor);
        break;
      case RopeConfig::Type::llama3:
        frequencies.push_back(llama3_scaled(rope, frequency));
        break;
    }
  }
  return frequencies;
}

template <typename T>
Matrix<T> rope(const Matrix<T>& x, std::span<const std::int64_t> positions,
               std::span<const double> frequencies) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  const std::int64_t heads = x.cols() / (2 * half);
  Matrix<T> y(x.rows(), x.cols());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double position = static_cast<double>(positions[static_cast<std::size_t>(m)]);
      const double angle = position * frequencies[static_cast<std::size_t>(i)];
      const T cos = static_cast<T>(std::cos(angle));
      const T sin = static_cast<T>(std::sin(angle));
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t low = h * 2 * half + i;
        const std::int64_t high = low + half;
        const T a = x(m, low), b = x(m, high);
        y(m, low) = a * cos - b * sin;
        y(m, high) = b * cos + a * sin;
      }
    }
  }
  return y;
}

template Matrix<float> rope(const Matrix<float>&, std::span<const std::int64_t>,
                            std::span<const double>);
template Matrix<double> rope(const Matrix<double>&, std::span<const std::int64_t>,
                             std::span<const double>);

}  // namespace shardcheck::reference
