// SPDX-License-Identifier: Apache-2.0
// What a run over the field asked of its random functions, and from that the chance that it called two different
// programs equal.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/field/hash.hpp"

namespace shardcheck::field {

/// One random function at one place of the model, over all ranks and runs of a device.
struct SiteCount {
  Function function;
  std::string site;
  std::int64_t calls = 0;
  std::int64_t degree = 0;  // of an argument, at most, as a ratio of polynomials in the random elements
};

/// The chance that two different arguments met by accident at this site, so that the function hid a difference:
/// calls^2 degree / p, the pairs of calls times the bound of Schwartz and Zippel. May exceed 1.
double chance(const SiteCount& count);
/// The sum over sites: the chance of a false "equal" with one seed, if below 1. K seeds raise it to the K-th power.
double chance(const std::vector<SiteCount>& counts);

/// Thread safe.
class Counts {
 public:
  void add(Function function, const std::string& site, std::int64_t calls, std::int64_t degree);
  void add_zero_denominators(std::int64_t n);
  /// By site, then function.
  std::vector<SiteCount> sites() const;
  std::int64_t zero_denominators() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, Function>, SiteCount> sites_;
  std::int64_t zero_denominators_ = 0;
};

}  // namespace shardcheck::field
