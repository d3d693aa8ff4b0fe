// SPDX-License-Identifier: Apache-2.0
#include "reference/transformer.hpp"

#include <fmt/format.h>

#include <numeric>
#include <stdexcept>

#include "model/error.hpp"
#include "reference/decoder.hpp"

namespace shardcheck::reference {
namespace {

// Before anything is computed: what the tables have no row for.
void check_tokens(const Config& config, std::span<const std::int64_t> ids, std::int64_t length) {
  for (std::size_t m = 0; m < ids.size(); ++m) {
    const std::int64_t position = length + static_cast<std::int64_t>(m);
    if (ids[m] < 0 || ids[m] >= config.vocab_size) {
      throw InputError(fmt::format(
          "{}: token id {} at position {} is outside the vocabulary; use ids from 0 to {}",
          config.name, ids[m], position, config.vocab_size - 1));
    }
    if (config.family == Family::gpt2 && position >= config.max_positions) {
      throw InputError(fmt::format(
          "{}: token id {} stands at position {}, but the learned positions end at {}; use at "
          "most {} tokens",
          config.name, ids[m], position, config.max_positions - 1, config.max_positions));
    }
  }
}

template <typename T>
Matrix<T> forward_of(const Call<T>& call) {
  switch (call.model.config().family) {
    case Family::llama:
      return llama_forward(call);
    case Family::gpt2:
      return gpt2_forward(call);
    case Family::qwen3:
      return qwen3_forward(call);
    case Family::olmo2:
      return olmo2_forward(call);
    case Family::phi3:
      return phi3_forward(call);
  }
  throw std::logic_error("a family without a forward pass");
}

}  // namespace

template <typename T>
struct Transformer<T>::State {
  const Model& model;
  std::vector<LayerCache<T>> caches;
  std::int64_t length = 0;
};

template <typename T>
Transformer<T>::Transformer(const Model& model) : state_(new State{model, {}, 0}) {
  reset();
}

template <typename T>
Transformer<T>::~Transformer() = default;

template <typename T>
Transformer<T>::Transformer(Transformer&&) noexcept = default;

template <typename T>
Matrix<T> Transformer<T>::forward(std::span<const std::int64_t> ids, const Tap<T>& tap) {
  const Config& config = state_->model.config();
  check_tokens(config, ids, state_->length);
  for (LayerCache<T>& cache : state_->caches) {  // a call that threw half-way left rows of its own
    cache.k.resize(static_cast<std::size_t>(state_->length * config.kv_size()));
    cache.v.resize(cache.k.size());
  }
  std::vector<std::int64_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), state_->length);
  const Call<T> call{state_->model, ids, positions, state_->caches, tap};
  Matrix<T> logits = forward_of(call);
  state_->length += static_cast<std::int64_t>(ids.size());
  return logits;
}

template <typename T>
std::int64_t Transformer<T>::length() const {
  return state_->length;
}

template <typename T>
void Transformer<T>::reset() {
  state_->length = 0;
  state_->caches.assign(static_cast<std::size_t>(state_->model.config().num_layers), {});
}

std::vector<std::string> tap_names(const Config& config) {
  switch (config.family) {
    case Family::llama:
      return llama_tap_names(config);
    case Family::gpt2:
      return gpt2_tap_names(config);
    case Family::qwen3:
      return qwen3_tap_names(config);
    case Family::olmo2:
      return olmo2_tap_names(config);
    case Family::phi3:
      return phi3_tap_names(config);
  }
  throw std::logic_error("a family without tap names");
}

template class Transformer<float>;
template class Transformer<double>;

}  // namespace shardcheck::reference
