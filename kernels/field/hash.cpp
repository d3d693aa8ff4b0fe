// SPDX-License-Identifier: Apache-2.0
#include "kernels/field/hash.hpp"

#include <bit>

namespace shardcheck::field {

std::string_view name(Function function) {
  switch (function) {
    case Function::exp:
      return "exp";
    case Function::log:
      return "log";
    case Function::rsqrt:
      return "rsqrt";
    case Function::sigmoid:
      return "sigmoid";
    case Function::phi:
      return "phi";
  }
  return "";
}

std::uint64_t Hash::absorb(std::uint64_t key, std::string_view text) {
  key = spread(key ^ text.size());
  for (const char c : text)
    key = spread(key * 0x9e3779b97f4a7c15u + static_cast<unsigned char>(c) + 1);
  return key;
}

Hash::Hash(std::uint64_t seed, std::string_view function, std::string_view site)
    : first_(absorb(absorb(spread(seed + 0x9e3779b97f4a7c15u), function), site)),
      second_(absorb(absorb(spread(seed + 0xd1342543de82ef95u), function), site)) {}

Givens::Givens(std::uint64_t seed)
    : constant_(seed, "constant", ""), cosine_(seed, "cos", ""), sine_(seed, "sin", "") {}

Residue Givens::of(const Hash& hash, double value) {
  return hash.at(std::bit_cast<std::uint64_t>(value + 0.0));  // -0 becomes 0
}

}  // namespace shardcheck::field
